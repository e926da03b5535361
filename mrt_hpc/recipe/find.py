"""Where a recipe or a site profile is found: by its path, or by its name in the folders that hold such files."""

from __future__ import annotations

import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import mrt_hpc
from mrt_hpc.recipe.errors import UserError, nearest

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class Kind:
    """A kind of file that a command takes by its name."""

    word: str
    """For messages."""
    checkout: Path
    """Its folder in a checkout."""
    folder: str
    """Name of its folder in the user's configuration, and beside an installed package."""
    advice: str
    """What to type where none was found."""


RECIPES = Kind("recipe", Path("recipes"), "recipes", "mrt-hpc fields recipe")
SITES = Kind("site profile", Path("slurm") / "sites", "sites", "mrt-hpc fields site")


def find(kind: Kind, name: str) -> Path:
    """The file of this path or name.

    Args:
        kind: of file.
        name: a path; or a path within one of the folders, with or without its suffix.

    Raises:
        UserError: there is none; the error names the folders that were searched.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    within = path.relative_to(kind.checkout) if path.is_relative_to(kind.checkout) else path
    for folder in folders(kind):
        for candidate in _spellings(folder / within):
            if candidate.is_file():
                return candidate
    raise _not_found(kind, path, within)


def folders(kind: Kind) -> list[Path]:
    """The folders that are there and hold files of a kind; the first that has a name wins.

    The user's own, the one below the working directory, the one of the checkout that the package runs from, and those
    installed with the package.
    """
    configuration = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    package = Path(mrt_hpc.__file__).resolve().parents[1]
    of_checkout = [package / kind.checkout] if (package / "pyproject.toml").is_file() else []
    installed = [Path(sysconfig.get_path("data", scheme)) for scheme in _schemes()]
    candidates = [
        configuration / "mrt-hpc" / kind.folder,
        Path.cwd() / kind.checkout,
        *of_checkout,
        *(prefix / "share" / "mrt-hpc" / kind.folder for prefix in installed),
    ]
    return [folder for folder in dict.fromkeys(candidates) if folder.is_dir()]


def _schemes() -> list[str]:
    """Names of the ways in which this Python installs packages: for all users of it, and for one."""
    return [sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user")]


def _spellings(path: Path) -> list[Path]:
    return [path] if path.suffix in SUFFIXES else [path.with_name(path.name + suffix) for suffix in SUFFIXES]


def _not_found(kind: Kind, path: Path, within: Path) -> UserError:
    """What was looked for, where, and what is there instead."""
    searched = folders(kind)
    beside = path.parent.absolute()
    known = {str(file.relative_to(folder).with_suffix("")) for folder in searched for file in _files(folder)}
    known |= {str(path.parent / file.name) for file in beside.glob("*.y*ml")} if beside not in searched else set()
    names = sorted(known)
    guess = nearest(str(path), names) or nearest(str(within.with_suffix("")), names)
    there = f"one of {', '.join(names)}" if names else f"the path of a {kind.word}"
    return UserError(
        f"there is no such {kind.word}",
        value=str(path),
        where=", ".join(map(str, dict.fromkeys([beside, *searched]))),
        expected=f"{guess} is the nearest; {there}" if guess else there,
        advice=kind.advice,
    )


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.suffix in SUFFIXES]
