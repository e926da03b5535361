"""Opens the source of a data set: a file, a folder with the files of a data set, or a data set of the hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mrt_hpc.datasets.hub import fetch, hub_name
from mrt_hpc.datasets.repository import CARD, Part, Selection, choose
from mrt_hpc.datasets.rows import ONE_KIND, SourceFile
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.hub_models import PREFIX


@dataclass(frozen=True)
class Source:
    """The files that a data set is made from."""

    name: str
    """What the user typed."""
    files: tuple[SourceFile, ...]
    commit: str | None = None
    """The commit of a data set of the hub."""
    part: Part | None = None
    """The configuration and split; None for a single file."""


def open_source(name: str, selection: Selection) -> Source:
    """Open the source of this name: ``hub:OWNER/NAME``, or the path of a file or folder.

    Raises:
        UserError: there is no such source, the choice of a split is open, or options do not apply to it.
    """
    if name.startswith(PREFIX):
        fetched = fetch(hub_name(name, selection))
        return Source(name, fetched.files, fetched.commit, fetched.chosen.part)
    path = Path(name).expanduser()
    if path.is_dir():
        return _folder(name, path, selection)
    if not path.is_file():
        raise UserError("no such source", value=name, expected=f"{ONE_KIND}, a folder of them, or hub:OWNER/NAME")
    _refuse(selection.config, "config", "a single file")
    _refuse(selection.split, "split", "a single file")
    _refuse(selection.revision, "revision", "a single file")
    return Source(name, (SourceFile(name, path),))


def _folder(name: str, path: Path, selection: Selection) -> Source:
    _refuse(selection.revision, "revision", "a folder")
    card = path / CARD
    text = card.read_text(errors="replace") if card.is_file() else ""
    names = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
    chosen = choose(names, text, selection, name)
    return Source(name, tuple(SourceFile(file, path / file) for file in chosen.names), None, chosen.part)


def _refuse(value: str | None, option: str, kind: str) -> None:
    if value is not None:
        raise UserError(f"{kind} has no {option}", value=value, advice=f"leave out --{option}")
