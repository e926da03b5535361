"""The recipes, suites and site profiles that can be named, and copies of them to edit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.errors import UserError, nearest
from mrt_hpc.recipe.find import OTHER_KINDS, RECIPES, SITES, SUFFIXES, SUITES, Kind, expanded, folders, spellings
from mrt_hpc.recipe.paths import named_paths
from mrt_hpc.recipe.source import read_source
from mrt_hpc.recipe.suites import SECTION

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = (RECIPES, SUITES, SITES)


@dataclass(frozen=True)
class Entry:
    """A file that a command finds by its name."""

    kind: Kind
    name: str
    path: Path

    @property
    def about(self) -> str:
        """The first sentence of its first line, where that is a comment."""
        with self.path.open(encoding="utf-8", errors="replace") as stream:
            first = stream.readline().strip()
        sentence, more, _ = first.lstrip("# ").partition(". ")
        return sentence + more.strip() if first.startswith("#") else ""


@dataclass(frozen=True)
class Copy:
    """A file to write so that a user can edit it."""

    entry: Entry
    output: Path
    beside: dict[Path, Path]
    """Further files that it names in its own folder, and the place of the copy of each."""


def entries(kind: Kind) -> list[Entry]:
    """All files of a kind by their names, sorted, and those of subfolders last. Of several with one name only the first
    is there, as it is the one that commands take.
    """
    found: dict[str, Entry] = {}
    for folder in folders(kind):
        for entry in _entries_in(kind, folder):
            found.setdefault(entry.name, entry)
    return list(found.values())


def _entries_in(kind: Kind, folder: Path) -> Iterator[Entry]:
    for path in sorted(folder.rglob("*"), key=lambda path: (path.parent != folder, path)):
        within = path.relative_to(folder)
        if path.suffix in SUFFIXES and path.is_file() and not OTHER_KINDS & set(within.parts):
            yield Entry(kind, str(within.with_suffix("")), path)


def copy_of(name: str, output: Path | None) -> Copy:
    """What has to be copied for a recipe, a suite or a site profile.

    Args:
        name: as commands take it, with or without the folder and the suffix.
        output: the copy; None takes the same name below ``recipes/``, ``recipes/suites/`` or ``slurm/sites/`` in the
            working directory, where commands find it before that of the package.

    Raises:
        UserError: there is no such file.
    """
    entry = _entry(name)
    place = output if output is not None else entry.kind.checkout / f"{entry.name}.yaml"
    return Copy(entry, place, {path: place.parent / path.relative_to(entry.path.parent) for path in _beside(entry)})


def _entry(name: str) -> Entry:
    """The file of a name, of whatever kind.

    Raises:
        UserError: there is none.
    """
    wanted = expanded(name)
    known = [entry for kind in KINDS for entry in entries(kind)]
    for entry in known:
        bare = wanted.relative_to(entry.kind.checkout) if wanted.is_relative_to(entry.kind.checkout) else wanted
        if Path(entry.name) in (bare, bare.with_suffix("")):
            return entry
    for path in spellings(wanted):
        if path.is_file():
            return Entry(RECIPES, path.stem, path)
    names = [entry.name for entry in known]
    guess = nearest(name, names)
    raise UserError(
        "there is no recipe, suite or site profile of this name",
        value=name,
        expected=f"{guess} is the nearest" if guess else "a name that `mrt-hpc recipes list` shows",
        advice=f"mrt-hpc recipes copy {guess}" if guess else "mrt-hpc recipes list",
    )


def _beside(entry: Entry) -> list[Path]:
    """The files in its own folder that a recipe or a suite names by relative paths."""
    if entry.kind is SITES:
        return []
    data = read_source(entry.path, advice=f"mrt-hpc recipes copy {entry.name}").data
    folder = entry.path.parent
    named = [Path(text) for text in named_paths({SECTION: data} if entry.kind is SUITES else data)]
    inside = [folder / path for path in named if not path.is_absolute() and ".." not in path.parts]
    return list(dict.fromkeys(path for path in inside if path.is_file()))
