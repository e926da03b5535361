"""Chooses sample traces of a run for its page, and reads them: evaluated ones of the first and the last version, and
rollouts of the first, the middle and the last iteration. The same problems stand in all sources of a kind. And those
that a user asks for (``mrt-hpc traces``).
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.algorithms.base import RolloutAlgorithm
from mrt_hpc.algorithms.batch import batch_of
from mrt_hpc.analysis.episode_progress import progress_by_episode
from mrt_hpc.analysis.evaluated_run import EvaluatedRun
from mrt_hpc.analysis.measures import RunSummary
from mrt_hpc.analysis.model_samples import ModelSamples
from mrt_hpc.analysis.report.content import Boundary, PrefixCurves, SampleProblem, SampleTrace, ShownAnswer
from mrt_hpc.analysis.scaling import prefix_curve, votes_of
from mrt_hpc.errors import UserError, nearest
from mrt_hpc.inference.tokens import StoredTokens
from mrt_hpc.recipe.base import as_kind
from mrt_hpc.recipe.choices import Boundaries
from mrt_hpc.recipe.schema import Experiment, Recipe
from mrt_hpc.run.archive import read_iteration, read_sampled, sampled_iterations, sampled_positions
from mrt_hpc.run.evaluation_settings import versions_evaluated
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


# The traces of one iteration, or of one evaluation, that a user asks for: of some problems, or the wrong ones; with
# the advantages that the run's algorithm gives them.


Advantages = Mapping[tuple[str, int], NDArray[np.float32]]
"""[T] of each rollout that is learnt, by its problem and its number."""


@dataclass(frozen=True)
class AskedTrace:
    """One trace."""

    trace: SampleTrace
    problem: SampleProblem
    advantages: tuple[float, ...]
    """[k + 1] the mean advantage of the tokens of each episode, and of those after the thought; empty where the trace
    is not learnt. NaN for an episode without tokens.
    """


@dataclass(frozen=True)
class WantedTraces:
    """Which traces are wanted."""

    problem: str | None
    """The id of their problem; None for all."""
    wrong: bool
    """Whether right ones are left out."""


def traces_of_iteration(
    layout: RunLayout, recipe: Experiment, iteration: int, asked: WantedTraces
) -> Iterator[AskedTrace]:
    """The rollouts of an iteration.

    Raises:
        UserError: the iteration has none, a group is damaged, or it has no such problem.
    """
    groups = read_iteration(layout, iteration)
    if not groups:
        there = sorted(sampled_iterations(layout))
        raise UserError(
            "this iteration has no complete groups of rollouts",
            value=iteration,
            where=layout.root,
            expected=f"one of {', '.join(map(str, there))}" if there else "a run that has sampled",
            advice=f"mrt-hpc traces {layout.word} --iteration {there[-1]}"
            if there
            else f"mrt-hpc status {layout.word}",
        )
    advantages = _advantages(recipe, groups) if isinstance(recipe, Recipe) else {}
    source = TraceSource(f"rollouts of iteration {iteration}", "train", groups)
    yield from _chosen(layout, source, layout.train_data, asked, advantages)


def traces_of_evaluation(
    layout: RunLayout, recipe: Experiment, version: int, benchmark: str, asked: WantedTraces
) -> Iterator[AskedTrace]:
    """The samples of a weights version on a benchmark, of the shards that are complete.

    Raises:
        UserError: there are none, a shard is damaged, or the benchmark has no such problem.
    """
    shards = layout.evaluation_shards(version, benchmark, recipe.evaluation.problem_shards)
    groups = [read_group(shard) for shard in shards if shard.exists()]
    if not groups:
        names, versions = [b.name for b in recipe.evaluation.benchmarks], versions_evaluated(layout)
        raise UserError(
            "this weights version has no samples of this benchmark",
            value=f"version {version}, {benchmark}",
            where=layout.root,
            expected=f"a benchmark of {', '.join(names)}; a version of {', '.join(map(str, versions)) or 'none yet'}",
            advice=f"mrt-hpc status {layout.word}",
        )
    source = TraceSource(f"evaluation of version {version} on {benchmark}", benchmark, groups)
    yield from _chosen(layout, source, layout.benchmark_data(benchmark), asked, {})


def _chosen(
    layout: RunLayout, source: TraceSource, data: Path, asked: WantedTraces, advantages: Advantages
) -> Iterator[AskedTrace]:
    sampled = list(dict.fromkeys(r.problem_id for group in source.groups for r in group.rollouts))
    if asked.problem is not None and asked.problem not in sampled:
        guess = nearest(asked.problem, sampled)
        raise UserError(
            f"{source.name}: there is no such problem",
            value=asked.problem,
            expected=f"{guess} is the nearest" if guess else f"one of {', '.join(sampled[:8])}",
            advice=f"the same command with --problem {guess or sampled[0]}",
        )
    problems = {problem.id: shown_problem(problem) for problem in read_problems(data)}
    tokens = first_tokenizer(list_directory(layout.weights, "v*"), [])
    for group in source.groups:
        boundaries = boundaries_of(group)
        for rollout in (r for r in group.rollouts if r.counts):
            if asked.problem in (None, rollout.problem_id) and not (asked.wrong and rollout.reward >= 1):
                trace = shown_trace(source, rollout, boundaries, tokens)
                yield AskedTrace(trace, problems[rollout.problem_id], _by_episode(rollout, advantages))


def _advantages(recipe: Recipe, groups: Sequence[Group]) -> Advantages:
    """What the run's algorithm gives the tokens of the rollouts. Branches are left out: their own sequences are none of
    the traces'.
    """
    algorithm = as_kind(recipe.algorithm, RolloutAlgorithm)
    batch = batch_of([replace(group, branches=[]) for group in groups])
    sequences: dict[tuple[str, tuple[int, ...]], deque[NDArray[np.float32]]] = defaultdict(deque)
    for sequence in algorithm.learnt(batch).sequences:
        sequences[sequence.group, tuple(sequence.token_ids)].append(sequence.advantages)
    of_rollouts: Advantages = {
        (r.problem_id, r.sample): mine.popleft()  # equal ones are in the order of the batch
        for r in batch.rollouts
        if (mine := sequences[r.problem_id, tuple(r.token_ids)])
    }
    return of_rollouts


def _by_episode(rollout: Rollout, advantages: Advantages) -> tuple[float, ...]:
    found = advantages.get((rollout.problem_id, rollout.sample))
    if found is None:
        return ()
    parts = [found[a:b] for a, b in pairwise([*rollout.boundaries, len(found)])]
    return tuple(float(part.mean()) if len(part) else float("nan") for part in parts)
