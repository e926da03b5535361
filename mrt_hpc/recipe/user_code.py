"""Imports classes of the user's own that a recipe names, and keeps copies of their files in a run.

A recipe may say ``type: my_module:MyClass``. The module may be installed, or lie beside the recipe; in the second case
the run directory keeps a copy, so that its tasks and a later report use the code that the run began with.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.recipe.evaluation_recipe import Experiment


def import_from(folder: Path) -> None:
    """Let modules in a folder be imported by their names; what is installed under a name comes first."""
    if (text := str(folder.absolute())) not in sys.path:
        sys.path.append(text)


def origin(name: str) -> Path | None:
    """The folder that the class ``module:Class`` is imported from; None for a name without a colon, whose class comes
    with the package, and for a module that is not there.
    """
    if ":" not in name:
        return None
    spec = importlib.util.find_spec(name.partition(":")[0].partition(".")[0])
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin)
    return path.parent.parent if path.name == "__init__.py" else path.parent


def module_file(name: str) -> Path:
    """The file of the module whose class or function ``module:name`` is.

    Raises:
        ImportError: there is no such module.
    """
    return Path(inspect.getfile(importlib.import_module(name.partition(":")[0])))


def modules_named(recipe: Experiment) -> list[str]:
    """The top-level modules whose classes a recipe names, each once."""
    names = (name.partition(":")[0].partition(".")[0] for name in _types(recipe.model_dump(mode="json")))
    return list(dict.fromkeys(names))


def _types(value: Any) -> Iterator[str]:
    """Every ``type`` below a value that names a class."""
    if isinstance(value, dict):
        name = value.get("type")
        if isinstance(name, str) and ":" in name:
            yield name
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in items:
        yield from _types(item)


def own_code(recipe: Experiment) -> list[Path]:
    """The modules and packages with classes that the recipe names and that are not installed."""
    found = [importlib.util.find_spec(name) for name in modules_named(recipe)]
    origins = [Path(spec.origin) for spec in found if spec is not None and spec.origin is not None]
    paths = [origin.parent if origin.name == "__init__.py" else origin for origin in origins]
    installed = [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib")]
    return [path for path in paths if not any(path.is_relative_to(folder) for folder in installed)]


def keep(recipe: Experiment, folder: Path) -> None:
    """Copy the user's own code into a folder of the run, where there is any."""
    for path in own_code(recipe):
        folder.mkdir(exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, folder / path.name)


def changed(recipe: Experiment, folder: Path) -> list[Path]:
    """The user's own modules that differ from the copies that a run keeps."""
    pairs = [(file, folder / file.relative_to(path.parent)) for path in own_code(recipe) for file in _files(path)]
    return [file for file, kept in pairs if not kept.is_file() or kept.read_bytes() != file.read_bytes()]


def own_files(recipe: Experiment) -> list[Path]:
    """The files of the user's own modules and packages."""
    return [file for path in own_code(recipe) for file in _files(path)]


def _files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]
