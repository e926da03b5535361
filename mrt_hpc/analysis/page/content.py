"""What the page shows: of each run, and as sections of tables and figures."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mrt_hpc.analysis.episode_progress import EpisodeProgress
    from mrt_hpc.analysis.measures import RunSummary
    from mrt_hpc.analysis.page.traces import SampleProblem, SampleTrace
    from mrt_hpc.analysis.scaling_curves import ScalingCurve


@dataclass(frozen=True)
class RoleUse:
    """The resources that the attempts of one role have used."""

    role: str
    attempts: int
    hours: float
    """Wall time of all its attempts together."""
    gpu_hours: float
    cpu_hours: float
    """Core hours."""
    by_use: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    """The same by use: hours, GPU-hours and core hours, which add up to those above."""


@dataclass(frozen=True)
class Happening:
    """A fault of a run, a resume, or a change of its recipe."""

    time: float
    """Seconds since the epoch."""
    kind: str
    """In words, as ``resumed``."""
    task: str
    """The job and the index of its task."""
    detail: str


@dataclass(frozen=True)
class PrefixCurves:
    """What a prover found at the prefixes of the traces of one weights version, or model, on one benchmark."""

    benchmark: str
    version: int
    problems: int
    progress: tuple[EpisodeProgress, ...] = ()
    """By episode; empty where not all prefixes have a value."""
    votes: tuple[ScalingCurve, ...] = ()
    """[maj@p]_j, a curve each p; empty where no answers were forced at some prefix."""


@dataclass(frozen=True)
class RunRecord:
    """One run on the page, or one model of an evaluation on its own."""

    name: str
    """No two runs or models of a page have the same."""
    summary: RunSummary
    roles: tuple[RoleUse, ...] = ()
    happenings: tuple[Happening, ...] = ()
    """By time."""
    recipe: str = ""
    """The resolved recipe as YAML."""
    traces: tuple[SampleTrace, ...] = ()
    """In the order in which they are taken until the page is full."""
    problems: Mapping[str, SampleProblem] = field(default_factory=dict)
    """By the names that the traces give."""
    choice: tuple[str, ...] = ()
    """How the traces were chosen, and what could not be read, a sentence each."""
    prefixes: tuple[PrefixCurves, ...] = ()
    """Of each benchmark those of the first and the last evaluated version, in this order; of a model its own."""
    unread: tuple[str, ...] = ()
    """The evaluations whose prefixes could not be read, a sentence each."""
    evaluation: str | None = None
    """The name of the evaluation on its own that has the model; None for a run. The first model of an evaluation has
    what all of them share: its cost, its events, its settings and what is missing.
    """

    @property
    def trained(self) -> bool:
        """Whether it is a run, whose weights versions are numbered by their training."""
        return self.evaluation is None


def by_directory(records: Sequence[RunRecord]) -> list[RunRecord]:
    """One record for each run and for each evaluation: that of its first model, with the name of the evaluation."""
    found: dict[str, RunRecord] = {}
    for record in records:
        found.setdefault(record.evaluation or record.name, record)
    return [replace(record, name=name) for name, record in found.items()]


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    numeric: bool = True


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    """A text for each column."""
    note: str = ""
    """What the reader has to know about its numbers."""
    folded: bool = False
    """Whether the page shows it only when the reader opens it."""


@dataclass(frozen=True)
class Plot:
    """A figure with its numbers."""

    title: str
    caption: str
    description: str
    """What a reader who does not see the figure is told."""
    view_box: str
    """Of the SVG."""
    drawing: str
    """The content of the SVG."""
    table: Table


@dataclass(frozen=True)
class Listing:
    """A long text that the page shows when the reader opens it."""

    title: str
    text: str


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading."""

    anchor: str
    title: str
    paragraphs: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    listings: tuple[Listing, ...] = ()
