"""Chooses sample traces of a run for its page, and reads them: evaluated ones of the first and the last version, and
rollouts of the first, the middle and the last iteration. The same problems stand in all sources of a kind.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import TypeVar

import numpy as np

from mrt_hpc.analysis.episode_progress import progress_by_episode
from mrt_hpc.analysis.evaluated_run import EvaluatedRun
from mrt_hpc.analysis.measures import RunSummary
from mrt_hpc.analysis.model_samples import ModelSamples
from mrt_hpc.analysis.report.content import Boundary, PrefixCurves, SampleProblem, SampleTrace, ShownAnswer
from mrt_hpc.analysis.scaling import prefix_curve, votes_of
from mrt_hpc.errors import UserError
from mrt_hpc.inference.tokens import StoredTokens
from mrt_hpc.recipe.choices import Boundaries
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.run.archive import read_sampled, sampled_positions
from mrt_hpc.run.groups import Group, read_group
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.records import FinishReason, Problem, Rollout, gold_text
from mrt_hpc.run.retries import list_directory

Item = TypeVar("Item")


PROBLEMS = 8
"""Problems of each benchmark, and groups of each iteration, evenly spaced."""
SAMPLES = 4
"""Traces of one problem in one source, the first ones."""


@dataclass(frozen=True)
class TraceSamples:
    """The sample traces of one run."""

    traces: tuple[SampleTrace, ...]
    """The traces, in turns from all sources and problems."""
    problems: Mapping[str, SampleProblem]
    """The problems by the names that the traces give."""
    remarks: tuple[str, ...]
    """How they were chosen, and what could not be read."""


@dataclass(frozen=True)
class TraceSource:
    """Where some traces were sampled."""

    name: str
    where: str
    """The kind of its problems: ``train``, or a benchmark."""
    groups: Sequence[Group]


def trace_samples(layout: RunLayout, recipe: Experiment, summary: RunSummary) -> TraceSamples:
    """Read the sample traces of a run. What is damaged or missing is named, and the others are shown."""
    troubles: list[str] = []
    sources = _last_valued_first(
        [*_evaluated(layout, recipe, summary, troubles), *_rollouts(layout, summary, troubles)]
    )
    tokens = first_tokenizer(_tokenizers(layout, recipe, summary), troubles) if sources else None
    traces = [trace for source in sources for trace in _traces(source, tokens)]
    if unmarked := sum(not trace.marked for trace in traces):
        troubles.append(f"The episodes of {unmarked} traces cannot be marked: their tokens do not give their texts.")
    return TraceSamples(tuple(_in_turns(traces)), _problems(layout, sources), (*_choice(sources), *troubles))


def _last_valued_first(sources: list[TraceSource]) -> list[TraceSource]:
    """The sources in their order, but first the last one whose prefixes have values, where there is one."""
    valued = [source for source in sources if any(group.values for group in source.groups)]
    return [*valued[-1:], *(source for source in sources if source not in valued[-1:])]


def _choice(sources: Sequence[TraceSource]) -> list[str]:
    if not sources:
        return []
    return [
        f"Sources: {'; '.join(source.name for source in sources)}.",
        f"Of each source: {PROBLEMS} problems at most, evenly spaced in the order of the data or of the iteration, and "
        f"the first {SAMPLES} traces of each. No trace was chosen for its content.",
    ]


def _evaluated(
    layout: RunLayout, recipe: Experiment, summary: RunSummary, troubles: list[str]
) -> Iterator[TraceSource]:
    """The first and the last evaluated version of each benchmark."""
    for benchmark, version in _wanted(summary):
        of_version = f" of version {version}" if recipe.trains else ""
        what = f"evaluation{of_version} on {benchmark}"
        try:
            groups = _shards(layout, recipe, version, benchmark)
        except (UserError, OSError) as error:
            troubles.append(_unread(what, error))
            continue
        yield TraceSource(what, benchmark, groups)


def _shards(layout: RunLayout, recipe: Experiment, version: int, benchmark: str) -> list[Group]:
    """The chosen problems of one evaluation, from the shards that have them."""
    problems = read_problems(layout.benchmark_data(benchmark))
    wanted: dict[int, set[str]] = defaultdict(set)
    for index in _spaced(range(len(problems)), PROBLEMS):
        wanted[index % recipe.evaluation.problem_shards].add(problems[index].id)
    places = layout.evaluation_shards(version, benchmark, recipe.evaluation.problem_shards)
    return [read_group(places[shard], ids) for shard, ids in sorted(wanted.items())]


def _rollouts(layout: RunLayout, summary: RunSummary, troubles: list[str]) -> Iterator[TraceSource]:
    """The first, the middle and the last iteration that have groups."""
    done = [m.iteration for m in summary.iterations if m.reward_mean is not None]
    for iteration in _spaced(done, 3):
        try:
            positions = sorted(sampled_positions(layout, iteration))
            groups = [read_sampled(layout, iteration, p) for p in _spaced(positions, PROBLEMS)]
        except (UserError, OSError) as error:
            troubles.append(_unread(f"rollouts of iteration {iteration}", error))
            continue
        yield TraceSource(f"rollouts of iteration {iteration}", "train", groups)


def _unread(what: str, error: Exception) -> str:
    reason = error.what if isinstance(error, UserError) else str(error)
    return f"Not shown, as they cannot be read: {what} ({reason})."


def _spaced(items: Sequence[Item], most: int) -> list[Item]:
    """At most ``most`` items, evenly spaced, the first and the last among them."""
    return [items[i] for i in sorted({round(x) for x in np.linspace(0, len(items) - 1, most)})] if items else []


def _tokenizers(layout: RunLayout, recipe: Experiment, summary: RunSummary) -> list[Path]:
    """The weights versions whose tokenizers wrote the traces: all of a run have the same, each model of an evaluation
    its own.
    """
    if not recipe.trains:
        return sorted({layout.weights_version(evaluation.version) for evaluation in summary.evaluations})
    return list_directory(layout.weights, "v*")


def first_tokenizer(versions: Sequence[Path], troubles: list[str]) -> StoredTokens | None:
    """The tokenizer of the first version that has a readable one."""
    for version in versions:
        try:
            return StoredTokens.read(version / "tokenizer.json")
        except (OSError, ValueError):
            continue
    troubles.append("No weights version has a readable tokenizer.json.")
    return None


def _problems(layout: RunLayout, sources: Sequence[TraceSource]) -> dict[str, SampleProblem]:
    wanted = {(s.where, r.problem_id) for s in sources for group in s.groups for r in group.rollouts}
    problems: dict[str, SampleProblem] = {}
    for where in sorted({where for where, _ in wanted}):
        path = layout.train_data if where == "train" else layout.benchmark_data(where)
        problems |= {f"{where}: {p.id}": shown_problem(p) for p in read_problems(path) if (where, p.id) in wanted}
    return problems


def shown_problem(problem: Problem) -> SampleProblem:
    """A problem as it stands beside its traces."""
    return SampleProblem(problem.problem, gold_text(problem.answer))


def _in_turns(traces: Iterable[SampleTrace]) -> Iterator[SampleTrace]:
    """One trace of each problem of each source, then another one of each."""
    groups: dict[tuple[str, str], list[SampleTrace]] = defaultdict(list)
    for trace in traces:
        groups[trace.source, trace.problem].append(trace)
    return (trace for turn in zip_longest(*groups.values()) for trace in turn if trace is not None)


def _traces(source: TraceSource, tokens: StoredTokens | None) -> Iterator[SampleTrace]:
    for group in source.groups:
        boundaries = boundaries_of(group)
        taken: Counter[str] = Counter()
        for rollout in (rollout for rollout in group.rollouts if rollout.counts):
            taken[rollout.problem_id] += 1
            if taken[rollout.problem_id] <= SAMPLES:
                yield shown_trace(source, rollout, boundaries, tokens)


_Place = tuple[str, int, int]
"""Problem, sample, boundary."""


def boundaries_of(group: Group) -> dict[_Place, Boundary]:
    """What the prover found at each boundary that it was asked about."""
    answers: dict[_Place, Counter[ShownAnswer]] = defaultdict(Counter)
    for b in group.branches:
        answers[b.problem_id, b.sample, b.boundary][ShownAnswer(b.answer, b.reward >= 1)] += 1
    known: dict[_Place, list[ShownAnswer]] = defaultdict(list)
    for a in group.answers:
        known[a.problem_id, a.sample, a.boundary].append(ShownAnswer(a.answer, a.reward >= 1, 0, a.probability))
    boundaries = {}
    for v in group.values:
        place = (v.problem_id, v.sample, v.boundary)
        counted = (ShownAnswer(a.answer, a.right, n) for a, n in answers[place].most_common())
        boundaries[place] = Boundary(v.value, tuple(chain(counted, known[place])))
    return boundaries


def shown_trace(
    source: TraceSource, rollout: Rollout, boundaries: Mapping[_Place, Boundary], tokens: StoredTokens | None
) -> SampleTrace:
    """A trace with its episodes and what the prover found at their boundaries."""
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
        boundaries=tuple(boundaries.get(place, Boundary()) for place in places),
        rest=rollout.text if text is None else text.rest,
        marked=text is not None,
    )


# Reads for the page what the prover of an evaluation found at the prefixes of its traces.


def prefix_curves(
    layout: RunLayout, recipe: Experiment, summary: RunSummary
) -> tuple[tuple[PrefixCurves, ...], tuple[str, ...]]:
    """The curves of the first and the last evaluated version of each benchmark whose boundaries are the ends of
    episodes; nothing where no prover was asked.

    Args:
        layout: the run directory.
        recipe: of the run, or of the evaluation on its own.
        summary: whose evaluations are wanted.

    Returns:
        The curves, and a sentence for each evaluation that cannot be read.
    """
    if recipe.evaluation.prover is None:
        return (), ()
    run = EvaluatedRun(layout, recipe, str(layout.root))
    curves: list[PrefixCurves] = []
    troubles: list[str] = []
    for benchmark, version in _wanted(summary):
        try:
            samples = run.samples(version, benchmark, benchmark)
        except (UserError, OSError) as error:
            reason = error.what if isinstance(error, UserError) else str(error)
            whose = "" if run.models else f" of version {version}"
            troubles.append(f"Not shown, as it cannot be read: the evaluation{whose} on {benchmark} ({reason}).")
        else:
            if samples.boundaries is Boundaries.EPISODES:
                curves.append(curves_of_samples(samples, version))
    return tuple(curves), tuple(troubles)


def _wanted(summary: RunSummary) -> Iterator[tuple[str, int]]:
    """Benchmark and version of the first and the last evaluation of each benchmark."""
    for name in dict.fromkeys(evaluation.benchmark for evaluation in summary.evaluations):
        versions = [evaluation.version for evaluation in summary.evaluations if evaluation.benchmark == name]
        yield from ((name, version) for version in sorted({min(versions), max(versions)}))


def curves_of_samples(samples: ModelSamples, version: int) -> PrefixCurves:
    """The curves of one weights version on one benchmark."""
    return PrefixCurves(
        benchmark=samples.benchmark,
        version=version,
        problems=len(samples.problems),
        progress=progress_by_episode(samples.problems) if samples.is_valued else (),
        votes=tuple(prefix_curve(samples, voters) for voters in votes_of(samples)),
    )
