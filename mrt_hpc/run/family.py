"""Families: the runs of a sweep over recipes and fields, in one directory.

Each member is a full run in its own folder, preempted, resumed and cancelled by itself. The directory holds the file of
fields and values, and a shared results folder.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Self

from mrt_hpc.errors import Advice, UserError
from mrt_hpc.recipe.find import expand_home
from mrt_hpc.recipe.source import Swept, parse_yaml
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.layout import FAMILY, RunLayout
from mrt_hpc.run.typed_file import Whole, read_if_there

RESULTS = "results"
"""Shared by members: samples of equal weights and settings, e.g. of version 0 with the same seed, are made once."""
SEED = "seed"
"""The runs of an arm differ in this field."""
RECIPE = "recipe"
"""The axis of several recipes, by name."""
SYNTAX = "FIELD=VALUE,VALUE,..., of which 0..4 is five whole numbers"
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_OTHER_RANGE = re.compile(r"(-?\d+)[-:](-?\d+)")
_SAFE = re.compile(r"[+-]?\.?\w[\w.+-]*")


def meaning(value: str) -> float | str:
    """So that 1, 01 and 1.0 are one value."""
    content, _ = parse_yaml(value)
    return content if isinstance(content, int | float) and not isinstance(content, bool) else str(content)


@dataclass(frozen=True)
class Axis:
    """A field and its values, as texts of ``--set``."""

    field: str
    values: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Self:
        """The axis in the text of ``--sweep``."""
        field, _, typed = text.partition("=")
        pieces = typed.split(",")
        others = [other for piece in pieces if (other := _OTHER_RANGE.fullmatch(piece))]
        values = tuple(value for piece in pieces for value in _values(piece))
        unsafe = [value for value in values if not _SAFE.fullmatch(value) or ".." in value]
        if field == RECIPE or others or not _SAFE.fullmatch(field) or unsafe:
            expected = f"{SYNTAX}, the smaller one first; of letters, digits, and . + - _"
            meant = f"--sweep {field}={others[0][1]}..{others[0][2]}" if others else "--sweep seed=0..4"
            advice = Advice("mrt-hpc submit {recipes}", recipes=pieces) if field == RECIPE else Advice(meant)
            raise UserError("this is no sweep", value=text, where="--sweep", expected=expected, advice=advice)
        if len(set(map(meaning, values))) < len(values):
            raise UserError("a value stands twice", value=text, where="--sweep", advice="leave one of them out")
        return cls(field, values)

    @property
    def words(self) -> list[str]:
        """The option of a command; none for the axis of recipes."""
        return [] if self.field == RECIPE else ["--sweep", f"{self.field}={','.join(self.values)}"]

    def add_values(self, other: "Axis") -> "Axis":
        """The axis with the other's further values; values of both keep this spelling."""
        own = set(map(meaning, self.values))
        return Axis(self.field, (*self.values, *(value for value in other.values if meaning(value) not in own)))


def _values(piece: str) -> list[str]:
    """A value, or a range's whole numbers; a descending range counts as a value."""
    ends = _RANGE.fullmatch(piece)
    return [*map(str, range(int(ends[1]), int(ends[2]) + 1))] or [piece] if ends else [piece]


@dataclass(frozen=True)
class Member:
    values: tuple[tuple[str, str], ...]
    """Each field's value, in the order of the axes."""

    @property
    def overrides(self) -> tuple[str, ...]:
        """The values as ``--set`` takes them, without the recipe's name."""
        return tuple(Swept(f"{field}={value}") for field, value in self.values if field != RECIPE)

    @property
    def folder(self) -> str:
        """The name of its run directory."""
        return "+".join(f"{field}={value}" for field, value in self.values)

    @property
    def recipe(self) -> str | None:
        """The name of its recipe, where the family has several."""
        return dict(self.values).get(RECIPE)

    @property
    def arm(self) -> str:
        """All values but the seed, as tables show them."""
        fields = [field for field, _ in self.values]
        named = [(_short(field, fields), value) for field, value in self.values if field != SEED]
        return " ".join(value if name == RECIPE else f"{name} {value}" for name, value in named) or "all seeds"


def _short(field: str, fields: Sequence[str]) -> str:
    """The shortest unique end of a field's name."""
    steps = field.split(".")
    ends = (".".join(steps[-length:]) for length in range(1, len(steps) + 1))
    return next((end for end in ends if sum(f".{other}".endswith(f".{end}") for other in fields) == 1), field)


@dataclass(frozen=True)
class Family:
    axes: tuple[Axis, ...]
    at_once: Whole | None = None
    """Members that go side by side; None for all."""

    @property
    def members(self) -> list[Member]:
        """Every combination; the last axis changes fastest."""
        pairs = ([(axis.field, value) for value in axis.values] for axis in self.axes)
        return [Member(values) for values in product(*pairs)]

    def continue_family(self, root: Path) -> "Family":
        """The family in this directory with further values, in its own order and spelling; refuses runs, other fields
        and missing values.
        """
        before = read_family(root)
        if before is None:
            if RunLayout(root).plan.is_file():
                raise _other("this directory is a run", root)
            return self
        mine = {axis.field: axis for axis in self.axes}
        if mine.keys() != {axis.field for axis in before.axes}:
            raise _other("this family has runs with values of other fields", root)
        axes = tuple(axis.add_values(mine[axis.field]) for axis in before.axes)
        if any(len(axis.values) > len(mine[axis.field].values) for axis in axes):
            options = [word for axis in axes for word in axis.words]
            also = "the same command with {options}, to add runs; or with --run DIR, a directory of its own"
            raise _other("this family has runs with other values", root, Advice(also, options=options))
        return replace(self, axes=axes)

    def record(self, root: Path) -> None:
        """Write the family's file, once its members are made."""
        write_json(root / FAMILY, asdict(self))


def _other(what: str, root: Path, advice: str = "the same command with --run DIR, a directory of its own") -> UserError:
    expected = "a new directory, or the values that a family has and further ones"
    return UserError(what, where=root, expected=expected, advice=advice)


def read_family(root: Path) -> Family | None:
    """None where the directory is no family."""
    advice = Advice("rm -r {run}, and the submit command with its --sweep again", run=root / FAMILY)
    if not root.is_dir():
        return None
    return read_if_there(root / FAMILY, Family, "the record of a family", None, advice=advice)


def runs_of(typed: Path) -> list[Path]:
    """The runs of a path: a family's existing members, else itself."""
    if (family := read_family(typed)) is None:
        return [typed]
    return [run for member in family.members if _is_made(run := typed / member.folder)]


def _is_made(run: Path) -> bool:
    return RunLayout(run).plan.is_file()


def missing_runs(typed: Iterable[str]) -> list[str]:
    """A sentence for each family that lacks runs, with the command that makes them."""
    families = {root: family for text in typed if (family := read_family(root := expand_home(text))) is not None}
    sentences = []
    for root, family in families.items():
        if gone := [member.folder for member in family.members if not _is_made(root / member.folder)]:
            recipes = ["RECIPE"] * (2 if any(axis.field == RECIPE for axis in family.axes) else 1)
            options = [word for axis in family.axes for word in axis.words]
            again = Advice("mrt-hpc submit {words} --run {run}", words=[*recipes, *options], run=root)
            sentences.append(
                f"{root} lacks {', '.join(gone)}: left out; {again}, with the --set that it had, makes them"
            )
    return sentences


def arms_of(typed: Sequence[str]) -> tuple[list[str], list[str]]:
    """The paths that are no family; and each arm, members that differ in the seed alone, as ``NAME=RUN,RUN``. With
    several families an arm bears its family's name.
    """
    found = {text: read_family(expand_home(text)) for text in typed}
    families = {expand_home(text): family for text, family in found.items() if family is not None}
    arms: dict[str, list[str]] = defaultdict(list)
    for root, family in families.items():
        for member in (member for member in family.members if _is_made(root / member.folder)):
            name = member.arm if len(families) == 1 else f"{root.name}, {member.arm}"
            arms[name].append(str(root / member.folder))
    alone = [text for text in typed if found[text] is None]
    return alone, [f"{name}={','.join(runs)}" for name, runs in arms.items()]
