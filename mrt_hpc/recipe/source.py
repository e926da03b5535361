"""Reads YAML files with the place of each field, so that an error can name file and line."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from mrt_hpc.errors import Advice, UserError
from mrt_hpc.recipe.find import is_of_the_package
from mrt_hpc.recipe.ownership import Opened, read_file

Location = tuple[int | str, ...]

MAX_BYTES = 1_000_000
"""A recipe has some kilobytes, and the parser is slow on far larger files."""
MAX_FIELDS = 100_000
"""Fields and list items of a file: aliases of aliases make millions of a few lines."""

UNREADABLE = (YAMLError, ValueError, TypeError, AttributeError, RecursionError)
"""Errors of the parser for text that is no YAML, or YAML that no recipe needs (an alias within itself)."""


class FieldPlace(NamedTuple):
    """The place of a field, ordered as readers see them: a recipe before the one that it extends."""

    depth: int
    """0 in the named file, 1 in the one that it extends, and so on."""
    line: int
    path: Path


@dataclass(frozen=True)
class Source:
    """A parsed YAML file: its data, and where each field stands."""

    path: Path
    data: dict[str, Any]
    places: dict[Location, FieldPlace]
    overrides: dict[Location, str] = field(default_factory=dict)
    """Fields set on the command line, with their texts."""
    correction: str = ""
    """How to correct a fault; empty means to edit the file."""
    below: Location = ()
    file: Opened | None = None
    """None where several files make up the data."""

    def where(self, location: Location) -> str:
        """File and line of a field, or the command-line option, for an error."""
        if (below := self._option_below(location)) is not None:
            return option_text(below)
        for length in range(len(location), 0, -1):
            if location[:length] in self.overrides:
                return option_text(self.overrides[location[:length]])
            if (place := self.place(location[:length])) is not None:
                return f"{place.path}, line {place.line}"
        return str(self.path)

    def _option_below(self, location: Location) -> str | None:
        """The option that has set a field below an unnamed one."""
        below = (text for at, text in self.overrides.items() if at[: len(location)] == location)
        return next(below, None) if self.place(location) is None else None

    def place(self, location: Location) -> FieldPlace | None:
        return self.places.get((*self.below, *location))

    def nearest_place(self, location: Location) -> FieldPlace | None:
        """The place of the field, or of the section around it."""
        places = (self.place(location[:length]) for length in range(len(location), 0, -1))
        return next((place for place in places if place is not None), None)

    def advice(self, location: Location) -> str:
        """Names the option that has set the field, the file, or both."""
        place = self.nearest_place(location)
        if (below := self._option_below(location)) is not None:
            return change(below)
        # a file of the package stays as it is: the user's own one may name the field as well
        mine = place is None or (is_of_the_package(place.path) and not is_of_the_package(self.path))
        edit = self.correction or f"edit {self.path if place is None or mine else place.path}"
        for length in range(len(location), 0, -1):
            if location[:length] in self.overrides:
                return change(self.overrides[location[:length]])
        options = " ".join(map(option_text, self.overrides.values()))
        return f"{edit}, or change the options {options}" if options and options not in edit else edit


class Swept(str):
    """A field that ``--sweep`` has set, with one of its values."""


def option_text(override: str) -> str:
    return f"--{'sweep' if isinstance(override, Swept) else 'set'} {override}"


def change(override: str) -> str:
    return f"change the option {option_text(override)}"


def parse_yaml(text: str) -> tuple[Any, dict[Location, int]]:
    """YAML 1.2, with the lines of its fields and list items. Raises ``UNREADABLE``, a ValueError where aliases make too
    many fields.
    """
    yaml = YAML(typ="safe", pure=True)
    if (node := yaml.compose(text)) is None:
        return None, {}
    lines = list(islice(_lines(node, ()), MAX_FIELDS))
    if len(lines) == MAX_FIELDS:
        raise ValueError(f"it has {MAX_FIELDS:,} fields or more, those that aliases repeat included")
    return yaml.constructor.construct_document(node), dict(lines)


def read_source(path: Path, *, advice: str, depth: int = 0) -> Source:
    """``advice`` says what to type once the file is corrected; ``depth`` is that of :class:`FieldPlace`."""
    if not path.is_file():
        raise UserError("no such file", value=str(path), expected="a YAML file", advice=advice)
    corrected = Advice("edit {path}, then {command}", path=path, command=Advice(advice))
    try:
        file = read_file(path, MAX_BYTES)
    except ValueError as error:
        raise UserError(
            f"this is no recipe, and no site profile: {error}",
            where=path,
            expected=f"{MAX_BYTES / 1e6:g} MB or less; put problems into a file that data.path names",
            advice=corrected,
        ) from error
    try:
        data, lines = parse_yaml(file.content.decode())
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        mend = "correct that line, often its indentation or a missing quote; then {command}"
        edit = Advice(mend, command=Advice(advice))
        raise UserError(f"not YAML: {error.problem or error.context}", where=where, advice=edit) from error
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8 text: {error}", where=path, advice=corrected) from error
    except UNREADABLE as error:
        raise UserError(f"not YAML that can be read: {error}", where=path, advice=corrected) from error
    if not isinstance(data, dict):
        expected = "lines such as `name: quickstart`"
        raise UserError("the file holds no fields", value=data, where=path, expected=expected, advice=corrected)
    places = {location: FieldPlace(depth, line, path) for location, line in lines.items()}
    return Source(path, data, places, file=file)


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
