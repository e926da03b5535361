"""Families: the runs of a sweep, one for each combination of values of some fields, in one directory.

Each member is a run in a folder of its own, with all that is promised of runs: it is preempted, resumed and cancelled
by itself. The directory of the family holds the file that names the fields and their values, and the results folder
that its members share.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Self

from mrt_hpc.errors import UserError, word
from mrt_hpc.recipe.find import expanded
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.layout import FAMILY, RunLayout
from mrt_hpc.run.typed_file import Whole, read_if_there

RESULTS = "results"
"""The folder that the members share: what one has sampled with weights and settings that another one has too, such as
weights version 0 with the same seed, is not sampled again."""
SEED = "seed"
"""The field in which the runs of an arm differ."""
SYNTAX = "FIELD=VALUE,VALUE,..., or FIELD=0..4 for whole numbers"
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_OTHER_RANGE = re.compile(r"(-?\d+)[-:](-?\d+)")
_SAFE = re.compile(r"[\w.+-]+")


@dataclass(frozen=True)
class Axis:
    """A field of the recipe and its values, as texts of ``--set``."""

    field: str
    values: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Self:
        """What was typed for ``--sweep``.

        Raises:
            UserError: it has another form, or a value that cannot be a part of a folder's name.
        """
        field, _, typed = text.partition("=")
        numbers = _RANGE.fullmatch(typed)
        values = [*map(str, range(int(numbers[1]), int(numbers[2]) + 1))] if numbers else typed.split(",")
        other = _OTHER_RANGE.fullmatch(typed)
        if other or not (_SAFE.fullmatch(field) and values and all(map(_SAFE.fullmatch, values))):
            expected = f"{SYNTAX}, the smaller one first; of letters, digits, and . + - _"
            meant = f"{field}={other[1]}..{other[2]}" if other else "seed=0..4"
            raise UserError(
                "this is no sweep", value=text, where="--sweep", expected=expected, advice=f"--sweep {meant}"
            )
        if len(set(values)) < len(values):
            raise UserError("a value stands twice", value=text, where="--sweep", advice="leave one of them out")
        return cls(field, tuple(values))


@dataclass(frozen=True)
class Member:
    """One combination of values."""

    values: tuple[tuple[str, str], ...]
    """Each field with its value, in the order of the axes."""

    @property
    def overrides(self) -> tuple[str, ...]:
        """The values as ``--set`` takes them."""
        return tuple(f"{field}={value}" for field, value in self.values)

    @property
    def folder(self) -> str:
        """The name of its run directory."""
        return "+".join(self.overrides)

    @property
    def arm(self) -> str:
        """The name of its arm: the values of all fields but the seed, as tables show them."""
        shown = [f"{field.rpartition('.')[2]} {value}" for field, value in self.values if field != SEED]
        return " ".join(shown) or "all seeds"


@dataclass(frozen=True)
class Family:
    """The content of the file of a family."""

    axes: tuple[Axis, ...]
    at_once: Whole | None = None
    """How many members go side by side; None for all."""

    @property
    def members(self) -> list[Member]:
        """Every combination; the last axis changes fastest."""
        pairs = ([(axis.field, value) for value in axis.values] for axis in self.axes)
        return [Member(values) for values in product(*pairs)]

    def refuse_others(self, root: Path) -> None:
        """Refuse a directory that holds something else; a family of fewer members may grow.

        Raises:
            UserError: it is a run, or a family with members that this one does not have.
        """
        before = read_family(root)
        known = [] if before is None else before.members
        if RunLayout(root).plan.is_file() or not set(known) <= set(self.members):
            raise UserError(
                "this directory is a run" if before is None else "this family has runs with other values",
                where=root,
                expected="a new directory, or the values that a family has and further ones",
                advice="the same command with --run DIR, a directory of its own",
            )

    def record(self, root: Path) -> None:
        """Write the file of the family, once its members are made."""
        write_json(root / FAMILY, asdict(self))


def read_family(root: Path) -> Family | None:
    """The family of a directory; None where it is none.

    Raises:
        UnreadableError: its file is damaged.
    """
    advice = f"rm -r {word(root / FAMILY)}, and the submit command with its --sweep again"
    if not root.is_dir():
        return None
    return read_if_there(root / FAMILY, Family, "the record of a family", None, advice=advice)


def runs_of(typed: Path) -> list[Path]:
    """The run directories that a path stands for: of a family those of its members that were made, else itself."""
    if (family := read_family(typed)) is None:
        return [typed]
    return [run for member in family.members if RunLayout(run := typed / member.folder).plan.is_file()]


def arms_of(typed: Sequence[str]) -> tuple[list[str], list[str]]:
    """What was typed, with families replaced by their arms: the members that differ in their seed alone. Of several
    families each arm bears the name of its own.

    Returns:
        What is no family; and each arm as ``NAME=RUN,RUN``.
    """
    found = {text: read_family(expanded(text)) for text in typed}
    families = {expanded(text): family for text, family in found.items() if family is not None}
    arms: dict[str, list[str]] = defaultdict(list)
    for root, family in families.items():
        for member in family.members:
            name = member.arm if len(families) == 1 else f"{root.name}, {member.arm}"
            arms[name].append(str(root / member.folder))
    alone = [text for text in typed if found[text] is None]
    return alone, [f"{name}={','.join(runs)}" for name, runs in arms.items()]
