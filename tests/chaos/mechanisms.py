"""Takes each mechanism out of a copy of the project, and checks that a test notices.

    python tests/chaos/mechanisms.py                 all
    python tests/chaos/mechanisms.py lease heart     those whose name holds one of the words

A mechanism is an expression or some statements of one function, or a part of a shell script. Python code is compared as
a syntax tree, so that comments and layout do not matter. The command ends with 1 when no test notices a mechanism.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ruamel.yaml import YAML

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_suffix(".yaml")
IGNORED = shutil.ignore_patterns(".git", ".venv", "runs", "__pycache__", "*.egg-info", ".*_cache")
DEADLINE_S = 600
NOTICED = 1
"""pytest's exit code where tests failed; others are of tests that did not run."""


@dataclass(frozen=True)
class Mechanism:
    """What it is for, how it is taken out, and which tests must notice."""

    row: str
    """The behaviour that is promised."""
    name: str
    where: str
    """``module:function``, ``module:Class.method``, ``module:`` for what stands in none, or the path of a script."""
    code: str
    """What stands there once."""
    instead: str
    tests: tuple[str, ...]

    @property
    def file(self) -> str:
        """The path of its file."""
        module, colon, _ = self.where.partition(":")
        return f"{module.replace('.', '/')}.py" if colon else self.where

    def taken_out(self, source: str) -> str:
        """The text of its file without it.

        Raises:
            ValueError: its code does not stand there exactly once.
        """
        _, colon, function = self.where.partition(":")
        if not colon:
            found = [(n, n + len(self.code), 0) for n in range(len(source)) if source.startswith(self.code, n)]
        else:
            found = list(places(source, function, self.code))
        if len(found) != 1:
            raise ValueError(f"{self.name}: {self.code!r} stands {len(found)} times in {self.where}")
        ((start, end, indent),) = found
        text = textwrap.indent(self.instead.rstrip("\n"), " " * indent).lstrip(" ") if indent else self.instead
        return source[:start] + text + source[end:]


def places(source: str, function: str, code: str) -> Iterator[tuple[int, int, int]]:
    """Where an expression, or some statements, stand in a function: start, end, and the columns before statements.

    Args:
        source: of the module.
        function: its name, behind those of the classes and functions that it stands in, with dots between.
        code: what is looked for.

    Raises:
        ValueError: there is no such function.
    """
    body: ast.AST = ast.parse(source)
    for name in filter(None, function.split(".")):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        named = [n for n in ast.walk(body) if isinstance(n, kinds) and n.name == name]
        if not named:
            raise ValueError(f"no function {function}")
        body = named[0]
    wanted, lines = ast.parse(code).body, source.splitlines(keepends=True)

    def at(line: int, column: int) -> int:
        return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())

    for first, last in matches(body, wanted):
        indent = first.col_offset if isinstance(first, ast.stmt) else 0
        yield at(first.lineno, first.col_offset), at(last.end_lineno or 0, last.end_col_offset or 0), indent


def matches(body: ast.AST, wanted: list[ast.stmt]) -> Iterator[tuple[ast.stmt | ast.expr, ast.stmt | ast.expr]]:
    """The first and the last node of each match. An expression that is a statement counts as one."""
    dumps = [ast.dump(statement) for statement in wanted]
    for node in ast.walk(body):
        blocks = [getattr(node, name, None) for name in ("body", "orelse", "finalbody")]
        for block in (block for block in blocks if isinstance(block, list)):
            for n in range(len(block) - len(dumps) + 1):
                if [ast.dump(statement) for statement in block[n : n + len(dumps)]] == dumps:
                    yield block[n], block[n + len(dumps) - 1]
    if len(wanted) == 1 and isinstance(wanted[0], ast.Expr):
        whole = {id(node.value) for node in ast.walk(body) if isinstance(node, ast.Expr)}
        expression = ast.dump(wanted[0].value)
        others = (node for node in ast.walk(body) if isinstance(node, ast.expr) and id(node) not in whole)
        yield from ((node, node) for node in others if ast.dump(node) == expression)


def mechanisms() -> list[Mechanism]:
    """Those of the table."""
    table = YAML(typ="safe").load(TABLE)
    return [Mechanism(row, **{**m, "tests": tuple(m["tests"])}) for row, entries in table.items() for m in entries]


def noticed(mechanism: Mechanism, copy: Path) -> bool:
    """Whether a test fails without it.

    Raises:
        ValueError: the code is not what the mechanism says, or the tests did not run.
    """
    file = copy / mechanism.file
    before = file.read_text()
    file.write_text(mechanism.taken_out(before))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout=300", *mechanism.tests],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    finally:
        file.write_text(before)
    if done.returncode not in (0, NOTICED) and done.returncode >= 0:
        raise ValueError(f"{mechanism.name}: the tests did not run:\n{done.stdout[-2000:]}")
    return done.returncode != 0


def main(words: list[str]) -> int:
    """A line a mechanism."""
    missed = []
    with tempfile.TemporaryDirectory(prefix="mrt-hpc-mechanisms-") as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=IGNORED)
        copy.parent.chmod(0o755)  # the ordinary user of a cluster has to read it
        for mechanism in mechanisms():
            if words and not any(word in f"{mechanism.row} {mechanism.name}" for word in words):
                continue
            began = time.monotonic()
            found = noticed(mechanism, copy)
            missed += [] if found else [mechanism]
            word = "noticed" if found else "NOT NOTICED"
            print(f"{word:12s} {time.monotonic() - began:5.0f} s  {mechanism.row}: {mechanism.name}", flush=True)
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
