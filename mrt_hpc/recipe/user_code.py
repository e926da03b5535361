"""Imports classes of the user's own that a recipe names, and keeps copies of their files in a run.

A recipe may say ``type: my_module:MyClass``. The module may be installed, or lie beside the recipe; in the second case
the run directory keeps a copy, so that its tasks and a later report use the code that the run began with.
"""

import ast
import grp
import importlib.util
import os
import pwd
import shutil
import stat
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from pydantic_core import PydanticCustomError

import mrt_hpc
from mrt_hpc.errors import UserError, word
from mrt_hpc.recipe.base import Section
from mrt_hpc.recipe.registry import NEAREST, Registry
from mrt_hpc.recipe.schema import Experiment

# Whose a file is. Code is imported, and commands are taken, only from what only this user and root can change.


ROOT = 0
REACHED_BY_OTHERS = stat.S_IXGRP | stat.S_IXOTH
"""The rights of a folder without which no other user reaches what is in it, whatever rights that has."""


FOREIGN_CODE = "read what is there; then copy it to a folder of your own, or add --trust where the command has it"
"""What to do about code of another user."""


def refuse_changeable(path: Path, what: str, instead: str = FOREIGN_CODE) -> None:
    """Refuse a file or a folder that another user owns, may write to, or may put another one in the place of.

    Folders that lie higher than the one that holds it are not looked at: who can exchange those can exchange all that
    this user has in them.

    Args:
        path: what is there; links are followed.
        what: what is refused, a sentence about it.
        instead: what to do where another user owns it.

    Raises:
        UserError: naming the place, its owner and its mode.
    """
    place = path.resolve()
    sheltered = any(not parent.stat().st_mode & REACHED_BY_OTHERS for parent in place.parents)
    for each in (place, place.parent):
        status = each.stat()
        written = not sheltered and is_written_by_others(each) and (each == place or not status.st_mode & stat.S_ISVTX)
        if status.st_uid not in (os.geteuid(), ROOT) or written:
            raise _changeable(each, what, instead)


def is_written_by_others(path: Path) -> bool:
    """Whether its mode lets another user write to a file or folder. A group that has no member but this user, as many
    systems give to each, is no other user.
    """
    status = path.stat()
    return bool(status.st_mode & stat.S_IWOTH) or (
        bool(status.st_mode & stat.S_IWGRP) and (not _is_own_group(status.st_gid) or _has_access_list(path))
    )


def _is_own_group(number: int) -> bool:
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
    except KeyError:
        return False
    return (user.pw_gid, user.pw_name) == (number, group.gr_name) and set(group.gr_mem) <= {user.pw_name}


def _has_access_list(path: Path) -> bool:
    """Whether more users than its owner and group have rights, which its mode does not name."""
    try:
        return bool(os.getxattr(path, "system.posix_acl_access"))
    except OSError:
        return False


def _changeable(place: Path, what: str, instead: str) -> UserError:
    status = place.stat()
    mine = status.st_uid in (os.geteuid(), ROOT)
    return UserError(
        f"{what}, because another user can change it",
        where=place,
        value=f"owner {_name(status.st_uid)}, mode {stat.filemode(status.st_mode)}",
        expected="owner you or root, and no other user with the right to write",
        advice=f"chmod go-w {word(place)}" if mine else instead,
    )


def _name(number: int) -> str:
    try:
        return f"{pwd.getpwuid(number).pw_name} ({number})"
    except KeyError:
        return str(number)


NAMING = ("type", "verifier")
"""The fields whose text may name a class or a function of the user's own."""
CODE = (".py", ".pyc", ".so")
COMPILED = "__pycache__"
WRITTEN_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def import_from(folder: Path, content: Any, *, trust: bool = False) -> None:
    """Let the modules whose classes a file names be imported from a folder; what is installed under a name comes first.

    Args:
        folder: where they may lie.
        content: of the file, before it is checked.
        trust: whether the user has said that the folder may be one that other users can change.

    Raises:
        UserError: the folder, or code in it, could be changed by another user.
    """
    wanted = [name for name in named_modules(content) if _spec(name) is None]
    if not wanted or not folder.is_dir():
        return
    place = folder.resolve()
    if not trust:
        for path in (place, *_code_in(place, wanted)):
            refuse_changeable(path, f"the code of {', '.join(wanted)} is not imported from this folder")
    if str(place) not in sys.path:
        sys.path.append(str(place))
    importlib.invalidate_caches()


def _code_in(folder: Path, modules: Iterable[str]) -> Iterator[Path]:
    """The files and folders of a folder that Python reads when it imports these modules, and what these import in turn;
    all modules that lie beside them, too. A link to nothing, as editors leave them, is none.
    """
    compiled = folder / COMPILED
    beside = [path for path in folder.iterdir() if path.suffix in CODE and path.exists()]
    yield from (*beside, *(path for path in (compiled, *compiled.glob("*")) if path.exists()))
    for path in _reached(folder, [*modules, *(path.stem for path in beside)], Path.exists):
        if path.is_dir():
            yield from (inside for inside in (path, *path.rglob("*")) if inside.exists())


def _reached(folder: Path, modules: Iterable[str], counts: Callable[[Path], bool]) -> Iterator[Path]:
    """The modules and packages of a folder that have these names, or that they import, and these in turn; of others
    than those that count, neither they nor what they import.
    """
    left, seen = [*modules], set[str]()
    while left:
        if (name := left.pop()) in seen:
            continue
        seen.add(name)
        for path in (folder / name, folder / f"{name}.py"):
            if (path.is_dir() or (path.is_file() and path.suffix == ".py")) and counts(path):
                yield path
                left += sorted(top for file in _files(path) for top in _imported(file))


def _imported(path: Path) -> set[str]:
    """The top-level modules that a file of Python names in its imports; none where it is no Python."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return set()
    nodes = list(ast.walk(tree))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.partition(".")[0] for name in names}


def _spec(module: str) -> ModuleSpec | None:
    """Where a top-level module is; None for one that is not there, and for the program itself."""
    try:
        return importlib.util.find_spec(module)
    except ValueError:
        return None


def origin(name: str) -> Path | None:
    """The folder that the class ``module:Class`` is imported from; None for a name without a colon, whose class comes
    with the package, and for a module that is not there.
    """
    if ":" not in name:
        return None
    spec = _spec(name.partition(":")[0].partition(".")[0])
    place = None if spec is None else _place(spec)
    return None if place is None else place.parent


def own_class(name: str, registries: Mapping[str, Registry[Any]]) -> tuple[str, type[Section]]:
    """A class of the user's own that a command names; its module may lie in the working directory.

    Args:
        name: ``module:Class``, or ``module:function`` of a verifier.
        registries: the kinds that it may be of, by the section of each.

    Returns:
        Its section, and the class.

    Raises:
        UserError: there is none of these kinds, or its code could be changed by another user.
    """
    if ":" not in name:
        advice = f"{name}:Class, with the name of the class in that module"
        raise UserError("a class is named with its module", value=name, expected="module:Class", advice=advice)
    import_from(Path.cwd(), {"type": name})
    refused: dict[str, None] = {}
    for section, registry in registries.items():
        try:
            return section, registry.of_user(name)
        except PydanticCustomError as error:
            refused[error.message()] = None
    raise UserError(
        "there is no such class",
        value=name,
        expected=min(refused, key=lambda text: NEAREST not in text),
        advice="name another class, or correct its module",
    )


def named_modules(content: Any) -> list[str]:
    """The top-level modules whose classes or functions the content of a file names, each once."""
    names = (name.partition(":")[0].partition(".")[0] for name in _named(content))
    return list(dict.fromkeys(names))


def _named(value: Any) -> Iterator[str]:
    """Every ``type`` below a value that names a class; a verifier may be written as its type alone."""
    if isinstance(value, dict):
        yield from (name for key in NAMING if isinstance(name := value.get(key), str) and ":" in name)
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in items:
        yield from _named(item)


def own_code(recipe: Experiment) -> list[Path]:
    """The modules and packages with classes that the recipe names and that are not installed; and those beside them
    that these import.
    """
    specs = map(_spec, named_modules(recipe.model_dump(mode="json")))
    tops = [place for spec in specs if spec is not None and (place := _place(spec)) is not None]
    return list(dict.fromkeys(path for top in tops if not _is_installed(top) for path in _with_imported(top)))


def code_files(name: str, folder: Path | None = None) -> list[Path]:
    """The files of Python that decide what a class or function does: those of its module or package, and of what lies
    beside it and is imported there. Of an installed one, its own package alone. Nothing is imported.

    Args:
        name: as ``module:Class``.
        folder: where the module lies if it is not on the search path; None where it is.

    Raises:
        ImportError: there is no such module.
    """
    module = name.partition(":")[0].partition(".")[0]
    spec = _spec(module) or (None if folder is None else PathFinder.find_spec(module, [str(folder)]))
    if spec is None or (top := _place(spec)) is None:
        raise ImportError(f"there is no module of {name}")
    return sorted(file for path in ([top] if _is_installed(top) else _with_imported(top)) for file in _files(path))


def _place(spec: ModuleSpec) -> Path | None:
    """The file of a module, or the folder of a package; None for a module within Python."""
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.has_location and spec.origin else None


def _is_installed(path: Path) -> bool:
    return any(path.is_relative_to(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib"))


def _with_imported(top: Path) -> list[Path]:
    """A module or package of the user's own, and those beside it that it imports, and these in turn. What is installed
    under a name comes before them.
    """
    beside = _reached(top.parent, [top.stem], lambda path: path == top or _is_own(path))
    return [top, *(path for path in beside if path != top)]


def _is_own(path: Path) -> bool:
    """Whether Python imports this module or package by its name, where it looks into the folder at all, and it is the
    user's own.
    """
    if path == Path(mrt_hpc.__file__).parent or not (path.is_file() or any(path.glob("*.py"))):
        return False
    return (spec := _spec(path.stem)) is None or _place(spec) == path


def keep(recipe: Experiment, folder: Path) -> None:
    """Copy the user's own code into a folder of the run, where there is any. Only the user may write to the copies, as
    tasks import nothing that another user can change.
    """
    for path in own_code(recipe):
        folder.mkdir(exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, folder / path.name)
    for copied in (folder, *folder.rglob("*")) if folder.is_dir() else ():
        copied.chmod(copied.stat().st_mode & ~WRITTEN_BY_OTHERS)


def changed(recipe: Experiment, folder: Path) -> list[Path]:
    """The user's own modules that differ from the copies that a run keeps."""
    pairs = [(file, folder / file.relative_to(path.parent)) for path in own_code(recipe) for file in _files(path)]
    return [file for file, kept in pairs if not kept.is_file() or kept.read_bytes() != file.read_bytes()]


def own_files(recipe: Experiment) -> list[Path]:
    """The files of the user's own modules and packages."""
    return [file for path in own_code(recipe) for file in _files(path)]


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*.py") if file.is_file()) if path.is_dir() else [path]
