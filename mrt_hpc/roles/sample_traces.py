"""Chooses sample traces of a run for its page, and reads them: evaluated ones of the first and the last version, and
rollouts of the first, the middle and the last iteration. The same problems stand in all sources of a kind.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import chain, groupby, zip_longest
from typing import TYPE_CHECKING

import numpy as np

from mrt_hpc.analysis.page.traces import Boundary, ForcedAnswer, SampleProblem, SampleTrace
from mrt_hpc.errors import UserError
from mrt_hpc.inference.token_pieces import StoredTokens
from mrt_hpc.recipe.evaluation_recipe import EvaluationRecipe
from mrt_hpc.run.archive import read_sampled, sampled_positions
from mrt_hpc.run.data import read_problems
from mrt_hpc.run.groups import read_group
from mrt_hpc.run.records import FinishReason, gold_text
from mrt_hpc.run.retries import list_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import TypeVar

    from mrt_hpc.analysis.measures import EvaluationSummary, RunSummary
    from mrt_hpc.recipe.evaluation_recipe import Experiment
    from mrt_hpc.run.groups import Group
    from mrt_hpc.run.layout import RunLayout
    from mrt_hpc.run.records import Problem, Rollout

    Item = TypeVar("Item")

PROBLEMS = 8
"""Problems of each benchmark, and groups of each iteration, evenly spaced."""
SAMPLES = 4
"""Traces of one problem in one source, the first ones."""


@dataclass(frozen=True)
class TraceSamples:
    """The sample traces of one run."""

    traces: tuple[SampleTrace, ...]
    """In turns from all sources and problems."""
    problems: Mapping[str, SampleProblem]
    """By the names that the traces give."""
    told: tuple[str, ...]
    """How they were chosen, and what could not be read."""


@dataclass(frozen=True)
class _Source:
    """Where some traces were sampled."""

    name: str
    where: str
    """The kind of its problems: ``train``, or a benchmark."""
    groups: Sequence[Group]


def trace_samples(layout: RunLayout, recipe: Experiment, summary: RunSummary) -> TraceSamples:
    """Read the sample traces of a run. What is damaged or missing is told, and the others are shown."""
    troubles: list[str] = []
    sources = [*_evaluated(layout, recipe, summary, troubles), *_rollouts(layout, summary, troubles)]
    tokens = _tokens(_tokenizers(layout, recipe, summary), troubles) if sources else None
    traces = [trace for source in sources for trace in _traces(source, tokens)]
    if unmarked := sum(not trace.marked for trace in traces):
        troubles.append(f"The episodes of {unmarked} traces cannot be marked: their tokens do not give their texts.")
    return TraceSamples(tuple(_in_turns(traces)), _problems(layout, sources), (*_choice(sources), *troubles))


def _choice(sources: Sequence[_Source]) -> list[str]:
    if not sources:
        return []
    return [
        f"Sources: {'; '.join(source.name for source in sources)}.",
        f"Of each source: {PROBLEMS} problems at most, evenly spaced in the order of the data or of the iteration, and "
        f"the first {SAMPLES} traces of each. No trace was chosen for its content.",
    ]


def _evaluated(layout: RunLayout, recipe: Experiment, summary: RunSummary, troubles: list[str]) -> Iterator[_Source]:
    """The first and the last evaluated version of each benchmark."""
    for name, found in groupby(summary.evaluations, lambda one: one.benchmark):
        versions = list(found)
        for one in dict.fromkeys(e.version for e in (versions[0], versions[-1])):
            of_version = "" if isinstance(recipe, EvaluationRecipe) else f" of version {one}"
            what = f"evaluation{of_version} on {name}"
            try:
                groups = _shards(layout, recipe, next(e for e in versions if e.version == one))
            except (UserError, OSError) as error:
                troubles.append(_unread(what, error))
                continue
            yield _Source(what, name, groups)


def _shards(layout: RunLayout, recipe: Experiment, evaluation: EvaluationSummary) -> list[Group]:
    """The chosen problems of one evaluation, from the shards that have them."""
    problems = read_problems(layout.benchmark_data(evaluation.benchmark))
    wanted: dict[int, set[str]] = defaultdict(set)
    for index in _spaced(range(len(problems)), PROBLEMS):
        wanted[index % recipe.evaluation.problem_shards].add(problems[index].id)
    places = {shard: layout.evaluation_shard(evaluation.version, evaluation.benchmark, shard) for shard in wanted}
    return [read_group(places[shard], ids) for shard, ids in sorted(wanted.items())]


def _rollouts(layout: RunLayout, summary: RunSummary, troubles: list[str]) -> Iterator[_Source]:
    """The first, the middle and the last iteration that have groups."""
    done = [m.iteration for m in summary.iterations if m.reward_mean is not None]
    for iteration in _spaced(done, 3):
        try:
            positions = sorted(sampled_positions(layout, iteration))
            groups = [read_sampled(layout, iteration, p) for p in _spaced(positions, PROBLEMS)]
        except (UserError, OSError) as error:
            troubles.append(_unread(f"rollouts of iteration {iteration}", error))
            continue
        yield _Source(f"rollouts of iteration {iteration}", "train", groups)


def _unread(what: str, error: Exception) -> str:
    reason = error.what if isinstance(error, UserError) else str(error)
    return f"Not shown, as they cannot be read: {what} ({reason})."


def _spaced(items: Sequence[Item], most: int) -> list[Item]:
    """At most so many, evenly spaced, the first and the last among them."""
    return [items[i] for i in sorted({round(x) for x in np.linspace(0, len(items) - 1, most)})] if items else []


def _tokenizers(layout: RunLayout, recipe: Experiment, summary: RunSummary) -> list[Path]:
    """The weights versions whose tokenizers wrote the traces: all of a run have the same, each model of an evaluation
    its own.
    """
    if isinstance(recipe, EvaluationRecipe):
        return sorted({layout.weights_version(one.version) for one in summary.evaluations})
    return list_directory(layout.weights, "v*")


def _tokens(versions: Sequence[Path], troubles: list[str]) -> StoredTokens | None:
    """The tokenizer of the first version that has a readable one."""
    for version in versions:
        try:
            return StoredTokens.read(version / "tokenizer.json")
        except (OSError, ValueError):
            continue
    troubles.append("No weights version has a readable tokenizer.json.")
    return None


def _problems(layout: RunLayout, sources: Sequence[_Source]) -> dict[str, SampleProblem]:
    wanted = {(s.where, r.problem_id) for s in sources for group in s.groups for r in group.rollouts}
    found: dict[str, SampleProblem] = {}
    for where in sorted({where for where, _ in wanted}):
        path = layout.train_data if where == "train" else layout.benchmark_data(where)
        found |= {f"{where}: {p.id}": _problem(p) for p in read_problems(path) if (where, p.id) in wanted}
    return found


def _problem(problem: Problem) -> SampleProblem:
    return SampleProblem(problem.problem, gold_text(problem.answer))


def _in_turns(traces: Iterable[SampleTrace]) -> Iterator[SampleTrace]:
    """One trace of each problem of each source, then another one of each."""
    groups: dict[tuple[str, str], list[SampleTrace]] = defaultdict(list)
    for trace in traces:
        groups[trace.source, trace.problem].append(trace)
    return (trace for turn in zip_longest(*groups.values()) for trace in turn if trace is not None)


def _traces(source: _Source, tokens: StoredTokens | None) -> Iterator[SampleTrace]:
    for group in source.groups:
        boundaries = _boundaries(group)
        taken: Counter[str] = Counter()
        for rollout in (rollout for rollout in group.rollouts if rollout.counts):
            taken[rollout.problem_id] += 1
            if taken[rollout.problem_id] <= SAMPLES:
                yield _trace(source, rollout, boundaries, tokens)


_Place = tuple[str, int, int]
"""Problem, sample, boundary."""


def _boundaries(group: Group) -> dict[_Place, Boundary]:
    """What the prover found at each boundary that it was asked about."""
    answers: dict[_Place, Counter[ForcedAnswer]] = defaultdict(Counter)
    for b in group.branches:
        answers[b.problem_id, b.sample, b.boundary][ForcedAnswer(b.answer, b.reward >= 1)] += 1
    known: dict[_Place, list[ForcedAnswer]] = defaultdict(list)
    for a in group.answers:
        known[a.problem_id, a.sample, a.boundary].append(ForcedAnswer(a.answer, a.reward >= 1, 0, a.probability))
    found = {}
    for v in group.values:
        place = (v.problem_id, v.sample, v.boundary)
        counted = (ForcedAnswer(a.answer, a.right, n) for a, n in answers[place].most_common())
        found[place] = Boundary(v.value, tuple(chain(counted, known[place])))
    return found


def _trace(
    source: _Source, rollout: Rollout, found: Mapping[_Place, Boundary], tokens: StoredTokens | None
) -> SampleTrace:
    stopped = rollout.finish_reason is FinishReason.STOP
    sampled = rollout.token_ids[:-1] if stopped else rollout.token_ids
    text = None if tokens is None else tokens.cut(sampled, rollout.boundaries, rollout.text)
    places = [(rollout.problem_id, rollout.sample, j) for j in range(len(rollout.boundaries))]
    return SampleTrace(
        source=source.name,
        problem=f"{source.where}: {rollout.problem_id}",
        sample=rollout.sample // rollout.stages,
        right=rollout.reward >= 1,
        answer=rollout.answer,
        tokens=len(rollout.token_ids),
        cut=not stopped,
        before="" if text is None else text.before,
        episodes=("",) * (len(places) - 1) if text is None else text.episodes,
        boundaries=tuple(found.get(place, Boundary()) for place in places),
        rest=rollout.text if text is None else text.rest,
        marked=text is not None,
    )
