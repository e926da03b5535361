"""A report as plain data. It also chooses the sample traces that fit on a page."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from mrt_hpc.analysis.measures import RunSummary
from mrt_hpc.errors import visible
from mrt_hpc.plan.hours import UseHours
from mrt_hpc.plan.jobs import Role

if TYPE_CHECKING:
    from mrt_hpc.analysis.figures import LineFigure
    from mrt_hpc.analysis.findings import Point
    from mrt_hpc.analysis.scaling import ScalingCurve


@dataclass(frozen=True)
class Happening:
    time: float
    """Seconds since the epoch."""
    kind: str
    """In words, as ``resumed``."""
    job: str
    """The job of its task, or another name."""
    index: int | None
    """None where it is of no task."""
    detail: str

    @property
    def task(self) -> str:
        return self.job if self.index is None else f"{self.job} task {self.index}"


@dataclass(frozen=True)
class PrefixCurves:
    """The prefixes of one weights version, or model, on one benchmark."""

    benchmark: str
    version: int
    problems: int
    progress: "tuple[Point, ...]" = ()
    """Empty where not all prefixes have a value."""
    votes: "tuple[ScalingCurve, ...]" = ()
    """[maj@p]_j, a curve each p; empty where some prefix has no forced answers."""


@dataclass(frozen=True)
class RunRecord:
    """One run, or one model of an evaluation on its own."""

    name: str
    """Unique in a report."""
    summary: RunSummary
    hours: tuple[UseHours, ...] = ()
    """Those of a role stand together."""
    attempts: Mapping[Role, int] = field(default_factory=dict)
    """At the tasks of each role."""
    happenings: tuple[Happening, ...] = ()
    """Sorted by time."""
    recipe: str = ""
    """The resolved recipe as YAML."""
    traces: "tuple[SampleTrace, ...]" = ()
    """In the order in which they are taken until the page is full."""
    problems: "Mapping[str, SampleProblem]" = field(default_factory=dict)
    """By the names that the traces give."""
    choice: tuple[str, ...] = ()
    """On how the traces were chosen, and which could not be read."""
    prefixes: tuple[PrefixCurves, ...] = ()
    """Of each benchmark: the first and the last evaluated version; of a model its own."""
    unread: tuple[str, ...] = ()
    """Evaluations whose prefixes could not be read, a sentence each."""
    evaluation: str | None = None
    """The evaluation on its own that has the model; None for a run. Its first model has what all of them share: cost,
    events, settings and what is missing.
    """
    arm: str | None = None
    """Curves show the mean of an arm's runs. None where it has its own curves."""
    last: int | None = None
    """The weights version that stands for it beside others: the last one that its recipe evaluates, evaluated or not;
    of a model its number.
    """
    notes: tuple[str, ...] = ()
    """On the comparison with the others of the report; they stand with the first of them."""

    @property
    def curve_name(self) -> str:
        """Runs of an arm share one name."""
        return self.arm or self.name

    @property
    def is_run(self) -> bool:
        return self.evaluation is None


def directory_records(records: Sequence[RunRecord]) -> list[RunRecord]:
    """One record for each run and evaluation: that of its first model, with the evaluation's name."""
    records_by_path: dict[str, RunRecord] = {}
    for record in records:
        records_by_path.setdefault(record.evaluation or record.name, record)
    return [replace(record, name=name) for name, record in records_by_path.items()]


@dataclass(frozen=True)
class Column:
    name: str
    numeric: bool = True


@dataclass(frozen=True)
class Table:
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    """A text for each column."""
    note: str = ""
    folded: bool = False
    """Whether the page shows it only when the reader opens it."""
    page_only: bool = False
    """Whether ``report.md`` leaves it out."""


@dataclass(frozen=True)
class Plot:
    """A figure with its numbers. ``report.md`` shows it if it has the name of a file."""

    caption: str
    figure: "LineFigure"
    table: Table

    @property
    def title(self) -> str:
        return self.figure.panels[0].title


@dataclass(frozen=True)
class Listing:
    """A text that is shown letter by letter, when the reader opens it."""

    title: str
    text: str
    page_only: bool = False


@dataclass(frozen=True)
class ReportSection:
    anchor: str
    title: str
    paragraphs: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    listings: tuple[Listing, ...] = ()


# -- texts of any origin: every character can be seen, and none has an effect of its own


IN_SCRIPTS = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""Characters with which a text could end its element, or a line of a script."""


def script_json(value: Any) -> str:
    """JSON that may stand in a script element, whatever its texts contain."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&\u2028\u2029]", lambda match: IN_SCRIPTS[match[0]], text)


# -- sample traces: which of them fit, and what of their texts is shown


TRACE_BYTES = 1_300_000
"""The sample traces of a page together."""
TEXT_LIMIT = 8_000
"""Characters shown of one trace."""
PROBLEM_LIMIT = 2_000
"""Characters shown of a problem, and of the text before a trace."""
ANSWER_LIMIT = 120
"""Characters shown of an answer."""
LEAST = 160
"""Characters that an episode keeps at least."""


@dataclass(frozen=True)
class ShownAnswer:
    answer: str | None
    right: bool
    count: int = 1
    """Branches that gave it; 0 where its probability was looked up."""
    probability: float | None = None


@dataclass(frozen=True)
class Boundary:
    value: float | None = None
    """V; None where it was not asked for."""
    answers: tuple[ShownAnswer, ...] = ()


@dataclass(frozen=True)
class SampleProblem:
    text: str
    gold: str


@dataclass(frozen=True)
class SampleTrace:
    """A trace of k episodes, as the page shows it."""

    source: str
    """Its sampler and purpose, in words."""
    problem: str
    """Its benchmark, or ``train``, and its id."""
    sample: int
    right: bool
    reward: float | None
    """None where it could not be judged."""
    answer: str | None
    tokens: int
    """Sampled."""
    cut: bool
    before: str
    """The text that the model went on from; empty for a whole trace."""
    episodes: tuple[str, ...]
    """[k] texts."""
    boundaries: tuple[Boundary, ...]
    """[k + 1]"""
    rest: str
    """The text after the thought."""
    marked: bool = True
    """Whether the texts of the episodes are known; otherwise all text is in ``rest``."""


@dataclass(frozen=True)
class Chosen:
    data: str
    """JSON for a script element: traces and problems of each run or model, and whether all are models."""
    shown: tuple[int, ...]


def verdict_of(trace: SampleTrace) -> str:
    if trace.reward is None:
        return "not judged"
    return "right" if trace.right else "wrong" if trace.reward == 0.0 else f"reward {trace.reward:.3g}"


def progress_of(boundaries: Sequence[Boundary]) -> list[float | None]:
    """[k] progress by episode; None where a boundary has no value."""
    values = [b.value for b in boundaries]
    return [None if a is None or b is None else round(b - a, 4) for a, b in pairwise(values)]


def choose(records: Sequence[RunRecord], budget: int = TRACE_BYTES) -> Chosen:
    """It takes traces of each run, in order, until its equal share of ``budget`` bytes of the page is used."""
    runs = [_run_data(record, budget // len(records)) for record in records]
    models = not any(record.is_run for record in records)
    return Chosen(script_json({"runs": runs, "models": models}), tuple(len(run["traces"]) for run in runs))


def _run_data(record: RunRecord, budget: int) -> dict[str, Any]:
    traces: list[dict[str, Any]] = []
    problems: dict[str, dict[str, Any]] = {}
    for trace in record.traces:
        added, problem = _trace_data(trace), {}
        if trace.problem not in problems:
            problem = {trace.problem: _problem_data(trace.problem, record.problems.get(trace.problem))}
        budget -= len(script_json([added, problem]).encode())
        if budget < 0:
            break
        traces.append(added)
        problems |= problem
    return {"name": visible(record.name), "traces": traces, "problems": problems}


def _problem_data(name: str, problem: SampleProblem | None) -> dict[str, Any]:
    texts = {"name": name} if problem is None else {"name": name, "text": problem.text, "gold": problem.gold}
    return {what: excerpt(text, PROBLEM_LIMIT) for what, text in texts.items()}


def _trace_data(trace: SampleTrace) -> dict[str, Any]:
    *episodes, rest = excerpts([*trace.episodes, trace.rest], TEXT_LIMIT)
    data = {
        "source": visible(trace.source),
        "problem": trace.problem,
        "sample": trace.sample,
        "right": trace.right,
        "verdict": verdict_of(trace),
        "answer": _answer_text(trace.answer),
        "tokens": trace.tokens,
        "cut": trace.cut,
        "episodes": episodes,
        "values": [_finite(b.value) for b in trace.boundaries],
        "progress": progress_of(trace.boundaries),
        "answers": [[_answer_data(a) for a in b.answers] for b in trace.boundaries],
        "rest": rest,
        "marked": trace.marked,
    }
    return {**data, "before": excerpt(trace.before, PROBLEM_LIMIT)} if trace.before else data


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 4)


def _answer_data(answer: ShownAnswer) -> list[Any]:
    return [_answer_text(answer.answer), answer.right, answer.count, _finite(answer.probability)]


def _answer_text(answer: str | None) -> str | None:
    if answer is None:
        return None
    return visible(answer if len(answer) <= ANSWER_LIMIT else f"{answer[:ANSWER_LIMIT]} […]")


Excerpt = str | list[str | int]
"""A whole text, or its beginning, the number of characters left out, and its end."""


def excerpts(texts: Sequence[str], limit: int) -> list[Excerpt]:
    """Excerpts with ``limit`` characters together; short ones stay whole, long ones share the rest equally, and none
    gets fewer than ``LEAST``.
    """
    share = fair_share([len(text) for text in texts], limit)
    return [excerpt(text, share) for text in texts]


def fair_share(lengths: Sequence[int], limit: int) -> int:
    left, open_texts = limit, len(lengths)
    for length in sorted(lengths):
        if length * open_texts > left:
            return max(LEAST, left // open_texts)
        left, open_texts = left - length, open_texts - 1
    return max(LEAST, max(lengths, default=0))


def excerpt(text: str, limit: int) -> Excerpt:
    """A text longer than ``limit`` characters without its middle."""
    if len(text) <= limit:
        return visible(text)
    head = (limit + 1) // 2
    tail = limit - head
    return [visible(text[:head]), len(text) - limit, visible(text[len(text) - tail :])]
