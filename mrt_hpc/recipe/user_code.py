"""Imports the user's own classes that a recipe names as ``type: my_module:MyClass``. Of modules beside the recipe the
run keeps a copy, so that its tasks and later reports use the code that it began with.
"""

import ast
import importlib.util
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from pydantic_core import PydanticCustomError

from mrt_hpc.errors import Advice, UserError
from mrt_hpc.recipe.base import Section
from mrt_hpc.recipe.ownership import refuse_changeable
from mrt_hpc.recipe.registry import NEAREST, Registry, is_installed
from mrt_hpc.recipe.schema import Experiment

NAMING = ("type", "verifier")
CODE = (".py", ".pyc", ".so")
COMPILED = "__pycache__"
WRITTEN_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def import_from(folder: Path, content: Any, *, trust: bool = False) -> None:
    """Let the modules that a file names be imported from a folder; installed ones come first. Refuses code that another
    user could change, unless ``trust``.
    """
    wanted = [name for name in named_modules(content) if _spec(name) is None]
    if not wanted or not folder.is_dir():
        return
    place, what = folder.resolve(), f"the code of {', '.join(wanted)} is not imported from this folder"
    if not trust:
        place = refuse_changeable(folder, what)
        for path in _code_in(place, wanted):
            refuse_changeable(path, what)
    if str(place) not in sys.path:
        sys.path.append(str(place))
    importlib.invalidate_caches()


def _code_in(folder: Path, modules: Iterable[str]) -> Iterator[Path]:
    """All that Python reads of a folder when it imports these modules. A link to nothing, as editors leave them, is
    none.
    """
    compiled = folder / COMPILED
    beside = [path for path in folder.iterdir() if path.suffix in CODE and path.exists()]
    yield from (*beside, *(path for path in (compiled, *compiled.glob("*")) if path.exists()))
    for path in _reachable_modules(folder, [*modules, *(path.stem for path in beside)], Path.exists):
        if path.is_dir():
            yield from (inside for inside in (path, *path.rglob("*")) if inside.exists())


def _reachable_modules(folder: Path, modules: Iterable[str], counts: Callable[[Path], bool]) -> Iterator[Path]:
    """Modules of a folder with these names, or imported by them in turn, that count."""
    left, seen = [*modules], set[str]()
    while left:
        if (name := left.pop()) in seen:
            continue
        seen.add(name)
        for path in (folder / name, folder / f"{name}.py"):
            if (path.is_dir() or (path.is_file() and path.suffix == ".py")) and counts(path):
                yield path
                left += sorted(top for file in _files(path) for top in _imported_modules(file))


def _imported_modules(path: Path) -> set[str]:
    """Empty where it is no Python."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return set()
    nodes = list(ast.walk(tree))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.partition(".")[0] for name in names}


def _spec(module: str) -> ModuleSpec | None:
    """None for a missing module, and for the program itself."""
    try:
        return importlib.util.find_spec(module)
    except ValueError:
        return None


def origin(name: str) -> Path | None:
    """None for the package's classes, and for a missing module."""
    if ":" not in name:
        return None
    spec = _spec(name.partition(":")[0].partition(".")[0])
    place = None if spec is None else _place(spec)
    return None if place is None else place.parent


def own_class(name: str, registries: Mapping[str, Registry[Any]]) -> tuple[str, type[Section]]:
    """A class that a command names, with its section; the module may lie in the working directory. ``registries`` are
    the possible kinds by section.
    """
    if ":" not in name:
        advice = Advice("{name}:Class, with the name of the class in that module", name=name)
        raise UserError("a class is named with its module", value=name, expected="module:Class", advice=advice)
    import_from(Path.cwd(), {"type": name})
    refused: dict[str, None] = {}
    for section, registry in registries.items():
        try:
            return section, registry.user_class(name)
        except PydanticCustomError as error:
            refused[error.message()] = None
    what = "there is no such class"
    expected = min(refused, key=lambda text: NEAREST not in text)
    raise UserError(what, value=name, expected=expected, advice="name another class, or correct its module")


def named_modules(content: Any) -> list[str]:
    """Top-level modules of classes and functions that a file names, each once."""
    names = (name.partition(":")[0].partition(".")[0] for name in _class_names(content))
    return list(dict.fromkeys(names))


def _class_names(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (name for key in NAMING if isinstance(name := value.get(key), str) and ":" in name)
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in items:
        yield from _class_names(item)


def own_code(recipe: Experiment) -> list[Path]:
    """What the recipe names and is not installed, with the imports beside it."""
    specs = map(_spec, named_modules(recipe.model_dump(mode="json")))
    tops = [place for spec in specs if spec is not None and (place := _place(spec)) is not None]
    return list(dict.fromkeys(path for top in tops if not is_installed(top) for path in _module_and_imports(top)))


def code_files(name: str, folder: Path | None = None) -> list[Path]:
    """The Python files that decide what ``module:Class`` does: its module or package, and imports beside it; an
    installed package alone. Nothing is imported.

    Raises:
        ImportError: there is no such module.
    """
    module = name.partition(":")[0].partition(".")[0]
    spec = _spec(module) or (None if folder is None else PathFinder.find_spec(module, [str(folder)]))
    if spec is None or (top := _place(spec)) is None:
        raise ImportError(f"there is no module of {name}")
    return sorted(file for path in ([top] if is_installed(top) else _module_and_imports(top)) for file in _files(path))


def _place(spec: ModuleSpec) -> Path | None:
    """None within Python."""
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.has_location and spec.origin else None


def _module_and_imports(top: Path) -> list[Path]:
    """A module with those beside it that it imports in turn. Installed ones come first."""
    beside = _reachable_modules(top.parent, [top.stem], lambda path: path == top or _is_own(path))
    return [top, *(path for path in beside if path != top)]


def _is_own(path: Path) -> bool:
    """Whether Python would import it by its name from this folder, as the user's own."""
    if is_installed(path) or not (path.is_file() or any(path.glob("*.py"))):
        return False
    return (spec := _spec(path.stem)) is None or _place(spec) == path


def keep(recipe: Experiment, folder: Path) -> None:
    """Only the user may write to the copies, as tasks import nothing that another user can change."""
    for path in own_code(recipe):
        folder.mkdir(exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, folder / path.name)
    for copied in (folder, *folder.rglob("*")) if folder.is_dir() else ():
        copied.chmod(copied.stat().st_mode & ~WRITTEN_BY_OTHERS)


def changed_modules(recipe: Experiment, folder: Path) -> list[Path]:
    """Modules that differ from the run's copies."""
    pairs = [(file, folder / file.relative_to(path.parent)) for path in own_code(recipe) for file in _files(path)]
    return [file for file, kept in pairs if not kept.is_file() or kept.read_bytes() != file.read_bytes()]


def own_files(recipe: Experiment) -> list[Path]:
    return [file for path in own_code(recipe) for file in _files(path)]


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*.py") if file.is_file()) if path.is_dir() else [path]
