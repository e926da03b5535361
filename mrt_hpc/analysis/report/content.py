"""The model of a report, as plain data: what is shown of each run, and the sections, tables and figures that show it.

It also chooses the sample traces that fit on a page, and makes texts of any origin fit for it.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from mrt_hpc.analysis.measures import RunSummary
from mrt_hpc.plan.hours import UseHours
from mrt_hpc.plan.jobs import Role

if TYPE_CHECKING:
    from mrt_hpc.analysis.episode_progress import EpisodeProgress
    from mrt_hpc.analysis.figures import LineFigure
    from mrt_hpc.analysis.scaling import ScalingCurve


@dataclass(frozen=True)
class Happening:
    """A fault of a run, a resume, or a change of its recipe."""

    time: float
    """Seconds since the epoch."""
    kind: str
    """What happened, in words, as ``resumed``."""
    task: str
    """The job and the index of its task."""
    detail: str


@dataclass(frozen=True)
class PrefixCurves:
    """What a prover found at the prefixes of the traces of one weights version, or model, on one benchmark."""

    benchmark: str
    version: int
    problems: int
    progress: "tuple[EpisodeProgress, ...]" = ()
    """The progress by episode; empty where not all prefixes have a value."""
    votes: "tuple[ScalingCurve, ...]" = ()
    """[maj@p]_j, a curve each p; empty where no answers were forced at some prefix."""


@dataclass(frozen=True)
class RunRecord:
    """One run of a report, or one model of an evaluation on its own."""

    name: str
    """No two runs or models of a report have the same."""
    summary: RunSummary
    hours: tuple[UseHours, ...] = ()
    """The hours by role and use; those of a role stand together."""
    attempts: Mapping[Role, int] = field(default_factory=dict)
    """The number of attempts at the tasks of each role."""
    happenings: tuple[Happening, ...] = ()
    """The happenings, sorted by time."""
    recipe: str = ""
    """The resolved recipe as YAML."""
    traces: "tuple[SampleTrace, ...]" = ()
    """The traces in the order in which they are taken until the page is full."""
    problems: "Mapping[str, SampleProblem]" = field(default_factory=dict)
    """The problems by the names that the traces give."""
    choice: tuple[str, ...] = ()
    """How the traces were chosen, and what could not be read, a sentence each."""
    prefixes: tuple[PrefixCurves, ...] = ()
    """The curves of each benchmark: those of the first and the last evaluated version, in this order; of a model its
    own.
    """
    unread: tuple[str, ...] = ()
    """The evaluations whose prefixes could not be read, a sentence each."""
    evaluation: str | None = None
    """The name of the evaluation on its own that has the model; None for a run. The first model of an evaluation has
    what all of them share: its cost, its events, its settings and what is missing.
    """
    arm: str | None = None
    """The arm that it is a run of: curves show the mean of an arm's runs. None where it has curves of its own."""
    last: int | None = None
    """The weights version that stands for it beside others: the last one that its recipe evaluates, whether or not it
    was evaluated; of a model its number. None where the recipe evaluates none.
    """
    notes: tuple[str, ...] = ()
    """What a reader has to know of the comparison with the others of the report; it stands with the first of them."""

    @property
    def curve_name(self) -> str:
        """The name of its curves where those of an arm are drawn as one."""
        return self.arm or self.name

    @property
    def trained(self) -> bool:
        """Whether it is a run, whose weights versions are numbered by their training."""
        return self.evaluation is None


def by_directory(records: Sequence[RunRecord]) -> list[RunRecord]:
    """One record for each run and for each evaluation: that of its first model, with the name of the evaluation."""
    records_by_path: dict[str, RunRecord] = {}
    for record in records:
        records_by_path.setdefault(record.evaluation or record.name, record)
    return [replace(record, name=name) for name, record in records_by_path.items()]


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
    page_only: bool = False
    """Whether ``report.md`` leaves it out."""


@dataclass(frozen=True)
class Plot:
    """A figure with its numbers. ``report.md`` shows it if it has the name of a file."""

    caption: str
    figure: "LineFigure"
    table: Table
    """All its points."""

    @property
    def title(self) -> str:
        """The title of its panel."""
        return self.figure.panels[0].title


@dataclass(frozen=True)
class Listing:
    """A text that is shown letter by letter; the page shows it when the reader opens it."""

    title: str
    text: str
    page_only: bool = False
    """Whether ``report.md`` leaves it out."""


@dataclass(frozen=True)
class ReportSection:
    """A part of a report under a heading."""

    anchor: str
    title: str
    paragraphs: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    listings: tuple[Listing, ...] = ()


# -- texts of any origin: every character can be seen, and none has an effect of its own


CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
UNSEEN = re.compile(
    "[\x80-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Characters that change the order of others or cannot be seen: control characters, and those that Unicode calls
default ignorable. The variation selectors U+FE00 to U+FE0F stay, as they give many usual signs their colour.
"""
SURROGATE = re.compile("[\ud800-\udfff]")
IN_SCRIPTS = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""The characters with which a text could end the element that holds it, or a line of a script."""


def visible(text: str) -> str:
    """Return a text in which control characters have pictures, unseen ones their numbers, and lone surrogates are
    U+FFFD; line breaks and tabs stay.
    """
    text = SURROGATE.sub("\ufffd", text.replace("\r\n", "\n"))
    text = CONTROL.sub(lambda match: "\u2421" if match[0] == "\x7f" else chr(0x2400 + ord(match[0])), text)
    return UNSEEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)


def script_json(value: Any) -> str:
    """Return JSON that may stand in a script element, whatever its texts contain."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&\u2028\u2029]", lambda match: IN_SCRIPTS[match[0]], text)


# -- sample traces: which of them fit, and what of their texts is shown


TRACE_BYTES = 1_300_000
"""The bytes that the sample traces of a page may have together."""
TEXT_LIMIT = 8_000
"""The characters that are shown of one trace."""
PROBLEM_LIMIT = 2_000
"""The characters that are shown of a problem, and of the text before a trace."""
ANSWER_LIMIT = 120
"""The characters that are shown of an answer."""
LEAST = 160
"""The characters that an episode keeps at least, where it has them."""


@dataclass(frozen=True)
class ShownAnswer:
    """An answer that the prover gave at a boundary."""

    answer: str | None
    """None where it gave none."""
    right: bool
    count: int = 1
    """The number of branches that gave it; 0 where its probability was looked up."""
    probability: float | None = None
    """The probability of an answer for which it was looked up."""


@dataclass(frozen=True)
class Boundary:
    """What the prover found at a boundary of a trace."""

    value: float | None = None
    """V; None where it was not asked for."""
    answers: tuple[ShownAnswer, ...] = ()


@dataclass(frozen=True)
class SampleProblem:
    """A problem of sample traces."""

    text: str
    gold: str


@dataclass(frozen=True)
class SampleTrace:
    """A trace as the page shows it, k episodes."""

    source: str
    """Who sampled it for what, in words."""
    problem: str
    """The name of its problem among those of the run: its benchmark, or ``train``, and its id."""
    sample: int
    right: bool
    answer: str | None
    tokens: int
    """The number of sampled tokens."""
    cut: bool
    """Whether the token limit ended it."""
    before: str
    """What the model was given to go on from; empty for a whole trace."""
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
    """The sample traces that fit on a page."""

    data: str
    """JSON for a script element: of each run or model its traces and problems, and whether all of them are models."""
    shown: tuple[int, ...]
    """The number of traces that fit, of each run or model."""


def progress_of(boundaries: Sequence[Boundary]) -> list[float | None]:
    """Return [k] the progress of each episode; None where one of its two boundaries has no value."""
    values = [b.value for b in boundaries]
    return [None if a is None or b is None else round(b - a, 4) for a, b in pairwise(values)]


def choose(records: Sequence[RunRecord], budget: int = TRACE_BYTES) -> Chosen:
    """Take traces of each run, in their order, until its equal share of the budget is used.

    Args:
        records: of the runs.
        budget: bytes of all traces and problems together, as they stand in the page.
    """
    runs = [_run_data(record, budget // len(records)) for record in records]
    models = not any(record.trained for record in records)
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
    """Its name, and where its file has it, its text and the right answer."""
    texts = {"name": name} if problem is None else {"name": name, "text": problem.text, "gold": problem.gold}
    return {what: excerpt(text, PROBLEM_LIMIT) for what, text in texts.items()}


def _trace_data(trace: SampleTrace) -> dict[str, Any]:
    *episodes, rest = excerpts([*trace.episodes, trace.rest], TEXT_LIMIT)
    data = {
        "source": visible(trace.source),
        "problem": trace.problem,
        "sample": trace.sample,
        "right": trace.right,
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
    """Return excerpts of texts, ``limit`` characters together; short ones stay whole, long ones share the rest equally,
    and none gets fewer than ``LEAST``.
    """
    share = fair_share([len(text) for text in texts], limit)
    return [excerpt(text, share) for text in texts]


def fair_share(lengths: Sequence[int], limit: int) -> int:
    """Return the length to which texts are cut, so that all together have ``limit`` characters."""
    left, open_texts = limit, len(lengths)
    for length in sorted(lengths):
        if length * open_texts > left:
            return max(LEAST, left // open_texts)
        left, open_texts = left - length, open_texts - 1
    return max(LEAST, max(lengths, default=0))


def excerpt(text: str, limit: int) -> Excerpt:
    """Return a text without its middle where it has more than ``limit`` characters."""
    if len(text) <= limit:
        return visible(text)
    head = (limit + 1) // 2
    tail = limit - head
    return [visible(text[:head]), len(text) - limit, visible(text[len(text) - tail :])]
