"""The places of the package at which files or names change, found in its text."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tables import tables

PACKAGE = Path(__file__).parents[2] / "mrt_hpc"
METHODS = frozenset({
    "write_text", "write_bytes", "rename", "unlink", "mkdir", "rmdir", "touch", "symlink_to", "hardlink_to", "link",
    "fsync", "rmtree", "copyfile", "copy2", "copytree", "move", "truncate", "makedirs", "save_pretrained", "ZipFile",
    "save_file", "ParquetWriter", "write_table",
})  # fmt: skip
WRITERS = frozenset({
    "write_json", "write_text", "replace_file", "create_file", "create_text", "commit_directory", "commit_whole",
    "make_folder", "remove_whole", "move_path", "write_manifest",
})  # fmt: skip
"""Functions of the package that change files for others."""
WRITING, LONGEST_MODE = frozenset("wax+"), 3
WRITING_FLAGS = frozenset({"O_CREAT", "O_WRONLY", "O_RDWR"})
EXCEPTIONS = {place for several in tables("crash_sites")["exceptions"].values() for place in several}
"""Places at which nothing crashes."""


def excused(place: str, function: str) -> bool:
    """Whether a place stands among the exceptions."""
    file = place.partition(":")[0]
    return any(file.startswith(name) if " " not in name else name == f"{file} {function}" for name in EXCEPTIONS)


def change_sites() -> dict[str, str]:
    """Each such call as ``run/atomic.py:93``, with the name of its function."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        for function, call in _calls(ast.parse(file.read_text()), ""):
            if _changes_files(call) or getattr(call.func, "id", getattr(call.func, "attr", "")) in WRITERS:
                found[f"{file.relative_to(PACKAGE)}:{call.lineno}"] = function
    return found


def _calls(node: ast.AST, function: str) -> Iterator[tuple[str, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        inner = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else function
        if isinstance(child, ast.Call):
            yield function, child
        yield from _calls(child, inner)


def _changes_files(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name == "open":
        modes = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        flags = {n.attr for a in call.args for n in ast.walk(a) if isinstance(n, ast.Attribute)}
        return any({*mode} & WRITING for mode in modes if len(mode) <= LONGEST_MODE) or bool(flags & WRITING_FLAGS)
    if not isinstance(call.func, ast.Attribute):
        return False
    if name == "ZipFile":
        return len(call.args) > 1
    if name == "replace":  # that of a text has two arguments
        return len(call.args) == 1 and not call.keywords
    if name == "copy":
        return getattr(call.func.value, "id", "") == "shutil"
    return name in METHODS
