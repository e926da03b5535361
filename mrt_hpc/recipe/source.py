"""Reads YAML files with the place of each field, so that an error can name file and line."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.find import is_of_the_package

Location = tuple[int | str, ...]

MAX_BYTES = 1_000_000
"""The maximum size of a YAML file: a recipe has some kilobytes, and the parser is slow on far larger files."""
MAX_FIELDS = 100_000
"""The maximum number of fields and list items of a file: aliases of aliases make millions of a few lines."""

UNREADABLE = (YAMLError, ValueError, TypeError, AttributeError, RecursionError)
"""The errors of the parser for text that is no YAML, or YAML of a kind that no recipe needs (an alias within itself).
"""


class FieldPlace(NamedTuple):
    """The place of a field. Places are ordered as a reader sees them: a recipe before the one that it extends."""

    depth: int
    """0 in the file that was named, 1 in the one that it extends, and so on."""
    line: int
    """The number of the line, from 1."""
    path: Path


@dataclass(frozen=True)
class Source:
    """A parsed YAML file: its data, and where each field stands."""

    path: Path
    data: dict[str, Any]
    places: dict[Location, FieldPlace]
    """The places of fields and list items."""
    overrides: dict[Location, str] = field(default_factory=dict)
    """Fields set on the command line, with the text they came from."""
    correction: str = ""
    """How to correct a fault in it; empty means to edit the file."""
    below: Location = ()
    """The location in the file of the part that is checked."""

    def where(self, location: Location) -> str:
        """The place of a field, for an error: file and line, or the command-line option."""
        if (below := self._option_below(location)) is not None:
            return f"--set {below}"
        for length in range(len(location), 0, -1):
            if location[:length] in self.overrides:
                return f"--set {self.overrides[location[:length]]}"
            if (place := self.place(location[:length])) is not None:
                return f"{place.path}, line {place.line}"
        return str(self.path)

    def _option_below(self, location: Location) -> str | None:
        """The option that has set a field below one that no file names; None where there is none."""
        below = (text for at, text in self.overrides.items() if at[: len(location)] == location)
        return next(below, None) if self.place(location) is None else None

    def place(self, location: Location) -> FieldPlace | None:
        """The place of a field; None for one that no file contains."""
        return self.places.get((*self.below, *location))

    def nearest_place(self, location: Location) -> FieldPlace | None:
        """The place of a field, or of the section that it belongs to."""
        places = (self.place(location[:length]) for length in range(len(location), 0, -1))
        return next((place for place in places if place is not None), None)

    def advice(self, location: Location) -> str:
        """How to correct a fault in a field: in the option that has set it, the file, or both."""
        place = self.nearest_place(location)
        if (below := self._option_below(location)) is not None:
            return change(below)
        # a file of the package stays as it is: the user's own one may name the field as well
        mine = place is None or (is_of_the_package(place.path) and not is_of_the_package(self.path))
        edit = self.correction or f"edit {self.path if place is None or mine else place.path}"
        for length in range(len(location), 0, -1):
            if location[:length] in self.overrides:
                return change(self.overrides[location[:length]])
        options = " ".join(f"--set {text}" for text in self.overrides.values())
        return f"{edit}, or change the options {options}" if options and options not in edit else edit


def change(override: str) -> str:
    """The advice on an option of the command line."""
    return f"change the option --set {override}"


def parsed(text: str) -> tuple[Any, dict[Location, int]]:
    """The content of a text in YAML 1.2, and the lines of its fields and list items.

    Raises:
        YAMLError: and the others of ``UNREADABLE``; a ValueError where aliases make too many fields of few lines.
    """
    yaml = YAML(typ="safe", pure=True)
    if (node := yaml.compose(text)) is None:
        return None, {}
    lines = list(islice(_lines(node, ()), MAX_FIELDS))
    if len(lines) == MAX_FIELDS:
        raise ValueError(f"it has {MAX_FIELDS:,} fields or more, those that aliases repeat included")
    return yaml.constructor.construct_document(node), dict(lines)


def read_source(path: Path, *, advice: str, depth: int = 0) -> Source:
    """Parse a YAML file (1.2).

    Args:
        path: the file.
        advice: what to type once it is corrected.
        depth: how many other files extend it on the way from the one that was named.

    Raises:
        UserError: it is not there, or holds no YAML with fields.
    """
    if not path.is_file():
        raise UserError("no such file", value=str(path), expected="a YAML file", advice=advice)
    if (size := path.stat().st_size) > MAX_BYTES:
        raise UserError(
            "the file is too large for a recipe or a site profile",
            value=f"{size / 1e6:.1f} MB",
            where=path,
            expected=f"{MAX_BYTES / 1e6:g} MB or less; put problems into a file that data.path names",
            advice=advice,
        )
    try:
        text = path.read_text(encoding="utf-8")
        data, lines = parsed(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        edit = f"correct that line, often its indentation or a missing quote; then {advice}"
        raise UserError(f"not YAML: {error.problem or error.context}", where=where, advice=edit) from error
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8 text: {error}", where=path, advice=advice) from error
    except UNREADABLE as error:
        raise UserError(f"not YAML that can be read: {error}", where=path, advice=advice) from error
    if not isinstance(data, dict):
        raise UserError(
            "the file holds no fields",
            value=data,
            where=path,
            expected="lines such as `name: quickstart`",
            advice=advice,
        )
    return Source(path, data, {location: FieldPlace(depth, line, path) for location, line in lines.items()})


def _lines(node: Node, at: Location) -> Iterator[tuple[Location, int]]:
    if isinstance(node, MappingNode):
        for key, value in node.value:
            name = key.value if isinstance(key, ScalarNode) else ""  # a list or a mapping is the name of no field
            yield (*at, name), key.start_mark.line + 1
            yield from _lines(value, (*at, name))
    elif isinstance(node, SequenceNode):
        for index, item in enumerate(node.value):
            yield (*at, index), item.start_mark.line + 1
            yield from _lines(item, (*at, index))
