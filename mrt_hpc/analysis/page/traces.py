"""The sample traces of the page: which of them fit, and what of their texts is shown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from mrt_hpc.analysis.page.text import script_json, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mrt_hpc.analysis.page.content import RunRecord

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
class ForcedAnswer:
    """An answer that the prover gave at a boundary."""

    answer: str | None
    """None where it gave none."""
    right: bool
    count: int = 1
    """The number of branches that gave it; 0 where its probability was looked up."""
    probability: float | None = None
    """Of an answer whose probability was looked up."""


@dataclass(frozen=True)
class Boundary:
    """What the prover found at a boundary of a trace."""

    value: float | None = None
    """V; None where it was not asked for."""
    answers: tuple[ForcedAnswer, ...] = ()


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
    """Of each run or model, the number of its traces that fit."""


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
        added, told = _trace_data(trace), {}
        if trace.problem not in problems:
            told = {trace.problem: _problem_data(trace.problem, record.problems.get(trace.problem))}
        budget -= len(script_json([added, told]).encode())
        if budget < 0:
            break
        traces.append(added)
        problems |= told
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


def _answer_data(answer: ForcedAnswer) -> list[Any]:
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
