"""Chooses and reads a run's sample traces. Its page shows those of the first and last version evaluated and of the
first, middle and last iteration, with the same problems in all sources of a kind. ``mrt-hpc traces`` asks for others.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.algorithms.base import RolloutAlgorithm
from mrt_hpc.algorithms.learnt_batch import learnt_batch
from mrt_hpc.analysis.evaluated_run import EvaluatedRun
from mrt_hpc.analysis.measures import RunSummary
from mrt_hpc.analysis.model_samples import ModelSamples
from mrt_hpc.analysis.report.content import Boundary, PrefixCurves, SampleProblem, SampleTrace, ShownAnswer
from mrt_hpc.errors import Advice, UserError, nearest
from mrt_hpc.inference.tokens import StoredTokens
from mrt_hpc.mrt.rewards import is_right
from mrt_hpc.recipe.base import require_kind
from mrt_hpc.recipe.choices import Boundaries
from mrt_hpc.recipe.schema import Experiment, Recipe
from mrt_hpc.run.archive import read_iteration, read_sampled, sampled_positions, unsampled_error
from mrt_hpc.run.evaluation_settings import versions_evaluated
from mrt_hpc.run.groups import Group, read_group
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.records import FinishReason, Problem, Rollout, gold_text
from mrt_hpc.run.retries import list_directory

Item = TypeVar("Item")


PROBLEMS = 8
"""Of each benchmark, and groups of each iteration, evenly spaced."""
SAMPLES = 4
"""The first traces of one problem in one source."""


@dataclass(frozen=True)
class TraceSamples:
    traces: tuple[SampleTrace, ...]
    """In turns from all sources and problems."""
    problems: Mapping[str, SampleProblem]
    """By the names that traces give."""
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class TraceSource:
    name: str
    where: str
    """``train``, or a benchmark."""
    groups: Sequence[Group]


def trace_samples(layout: RunLayout, recipe: Experiment, summary: RunSummary) -> TraceSamples:
    """Damage is named, and the rest shown."""
    troubles: list[str] = []
    sources = _last_valued_first([*_sources(layout, recipe, summary, troubles)])
    evaluated = {layout.weights_version(evaluation.version) for evaluation in summary.evaluations}
    tokenizers = list_directory(layout.weights, "v*") if recipe.trains else sorted(evaluated)  # one for each model
    tokens = first_tokenizer(tokenizers, troubles) if sources else None
    traces = [trace for source in sources for trace in _traces(source, tokens)]
    if unmarked := sum(not trace.marked for trace in traces):
        troubles.append(f"The episodes of {unmarked} traces cannot be marked: their tokens do not give their texts.")
    return TraceSamples(tuple(_interleave(traces)), _problems(layout, sources), (*_choice(sources), *troubles))


def _last_valued_first(sources: list[TraceSource]) -> list[TraceSource]:
    """The last source with values comes first."""
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


def _sources(layout: RunLayout, recipe: Experiment, summary: RunSummary, troubles: list[str]) -> Iterator[TraceSource]:
    """Evaluations, then iterations; the troubles name those that cannot be read."""
    readers: list[tuple[str, str, Callable[[], list[Group]]]] = []
    for benchmark, version in _shown_evaluations(summary):
        of_version = f" of version {version}" if recipe.trains else ""
        shards = partial(_shards, layout, recipe, version, benchmark)
        readers.append((f"evaluation{of_version} on {benchmark}", benchmark, shards))
    done = [m.iteration for m in summary.iterations if m.reward_mean is not None]
    for iteration in _space_evenly(done, 3):
        readers.append((f"rollouts of iteration {iteration}", "train", partial(_rollouts, layout, iteration)))
    for what, where, read in readers:
        try:
            yield TraceSource(what, where, read())
        except (UserError, OSError) as error:
            reason = error.what if isinstance(error, UserError) else str(error)
            troubles.append(f"Not shown, as they cannot be read: {what} ({reason}).")


def _shards(layout: RunLayout, recipe: Experiment, version: int, benchmark: str) -> list[Group]:
    problems = read_problems(layout.benchmark_data(benchmark))
    wanted: dict[int, set[str]] = defaultdict(set)
    for index in _space_evenly(range(len(problems)), PROBLEMS):
        wanted[index % recipe.evaluation.problem_shards].add(problems[index].id)
    places = layout.evaluation_shards(version, benchmark, recipe.evaluation.problem_shards)
    return [read_group(places[shard], ids) for shard, ids in sorted(wanted.items())]


def _rollouts(layout: RunLayout, iteration: int) -> list[Group]:
    positions = sorted(sampled_positions(layout, iteration))
    return [read_sampled(layout, iteration, position) for position in _space_evenly(positions, PROBLEMS)]


def _space_evenly(items: Sequence[Item], most: int) -> list[Item]:
    """At most ``most`` items, evenly spaced, with the first and last."""
    return [items[i] for i in sorted({round(x) for x in np.linspace(0, len(items) - 1, most)})] if items else []


def first_tokenizer(versions: Sequence[Path], troubles: list[str]) -> StoredTokens | None:
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
    return SampleProblem(problem.problem, gold_text(problem.answer))


def _interleave(traces: Iterable[SampleTrace]) -> Iterator[SampleTrace]:
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
    answers: dict[_Place, Counter[ShownAnswer]] = defaultdict(Counter)
    for b in group.branches:
        answers[b.problem_id, b.sample, b.boundary][ShownAnswer(b.answer, is_right(b.reward))] += 1
    known: dict[_Place, list[ShownAnswer]] = defaultdict(list)
    for a in group.answers:
        shown = ShownAnswer(a.answer, is_right(a.reward), 0, a.probability)
        known[a.problem_id, a.sample, a.boundary].append(shown)
    boundaries = {}
    for v in group.values:
        place = (v.problem_id, v.sample, v.boundary)
        counted = (ShownAnswer(a.answer, a.right, n) for a, n in answers[place].most_common())
        boundaries[place] = Boundary(v.value, tuple(chain(counted, known[place])))
    return boundaries


def shown_trace(
    source: TraceSource, rollout: Rollout, boundaries: Mapping[_Place, Boundary], tokens: StoredTokens | None
) -> SampleTrace:
    stopped = rollout.finish_reason is FinishReason.STOP
    sampled = rollout.token_ids[:-1] if stopped else rollout.token_ids
    text = None if tokens is None else tokens.cut(sampled, rollout.boundaries, rollout.text)
    places = [(rollout.problem_id, rollout.sample, j) for j in range(len(rollout.boundaries))]
    return SampleTrace(
        source=source.name,
        problem=f"{source.where}: {rollout.problem_id}",
        sample=rollout.sample // rollout.stages,
        right=rollout.right,
        reward=rollout.reward if rollout.judged else None,
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
    """Curves of the first and last version of each benchmark whose boundaries end episodes, none without a prover; and
    a sentence for each unreadable evaluation.
    """

    if recipe.evaluation.prover is None:
        return (), ()
    run = EvaluatedRun(layout, recipe, str(layout.root))
    curves: list[PrefixCurves] = []
    troubles: list[str] = []
    for benchmark, version in _shown_evaluations(summary):
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


def _shown_evaluations(summary: RunSummary) -> Iterator[tuple[str, int]]:
    for name in dict.fromkeys(evaluation.benchmark for evaluation in summary.evaluations):
        versions = [evaluation.version for evaluation in summary.evaluations if evaluation.benchmark == name]
        yield from ((name, version) for version in sorted({min(versions), max(versions)}))


def curves_of_samples(samples: ModelSamples, version: int) -> PrefixCurves:
    from mrt_hpc.analysis.episode_progress import progress_by_episode  # figures take seconds to import
    from mrt_hpc.analysis.scaling import prefix_curve, votes_of

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
"""[T] of each learnt rollout, by problem and number."""


@dataclass(frozen=True)
class AskedTrace:
    trace: SampleTrace
    problem: SampleProblem
    advantages: tuple[float, ...]
    """[k + 1] mean advantage of each episode, and after the thought; empty where not learnt. NaN for an episode without
    tokens.
    """


@dataclass(frozen=True)
class WantedTraces:
    problem: str | None
    """By id; None for all."""
    wrong: bool
    """Leave out right ones."""


def traces_of_iteration(
    layout: RunLayout, recipe: Experiment, iteration: int, asked: WantedTraces
) -> Iterator[AskedTrace]:
    groups = read_iteration(layout, iteration)
    if not groups:
        raise unsampled_error(layout, iteration)
    advantages = _advantages(recipe, groups) if isinstance(recipe, Recipe) else {}
    source = TraceSource(f"rollouts of iteration {iteration}", "train", groups)
    yield from _choose_traces(layout, source, layout.train_data, asked, advantages)


def traces_of_evaluation(
    layout: RunLayout, recipe: Experiment, version: int, benchmark: str, asked: WantedTraces
) -> Iterator[AskedTrace]:
    """A version's samples on a benchmark, from complete shards."""
    shards = layout.evaluation_shards(version, benchmark, recipe.evaluation.problem_shards)
    groups = [read_group(shard) for shard in shards if shard.exists()]
    if not groups:
        names, versions = [b.name for b in recipe.evaluation.benchmarks], versions_evaluated(layout)
        raise UserError(
            "this weights version has no samples of this benchmark",
            value=f"version {version}, {benchmark}",
            where=layout.root,
            expected=f"a benchmark of {', '.join(names)}; a version of {', '.join(map(str, versions)) or 'none yet'}",
            advice=Advice("mrt-hpc status {run}", run=layout.root),
        )
    source = TraceSource(f"evaluation of version {version} on {benchmark}", benchmark, groups)
    yield from _choose_traces(layout, source, layout.benchmark_data(benchmark), asked, {})


def _choose_traces(
    layout: RunLayout, source: TraceSource, data: Path, asked: WantedTraces, advantages: Advantages
) -> Iterator[AskedTrace]:
    sampled = list(dict.fromkeys(r.problem_id for group in source.groups for r in group.rollouts))
    if asked.problem is not None and asked.problem not in sampled:
        guess = nearest(asked.problem, sampled)
        raise UserError(
            f"{source.name}: there is no such problem",
            value=asked.problem,
            expected=f"{guess} is the nearest" if guess else f"one of {', '.join(sampled[:8])}",
            advice=Advice("the same command with --problem {guess}", guess=guess or sampled[0]),
        )
    problems = {problem.id: shown_problem(problem) for problem in read_problems(data)}
    tokens = first_tokenizer(list_directory(layout.weights, "v*"), [])
    for group in source.groups:
        boundaries = boundaries_of(group)
        for rollout in (r for r in group.rollouts if r.counts):
            if asked.problem in (None, rollout.problem_id) and not (asked.wrong and rollout.right):
                trace = shown_trace(source, rollout, boundaries, tokens)
                yield AskedTrace(trace, problems[rollout.problem_id], _episode_advantages(rollout, advantages))


def _advantages(recipe: Recipe, groups: Sequence[Group]) -> Advantages:
    """The algorithm's advantages of rollouts, without branches, whose sequences are their own."""
    algorithm = require_kind(recipe.algorithm, RolloutAlgorithm)
    batch = learnt_batch([replace(group, branches=[]) for group in groups], recipe)
    sequences: dict[tuple[str, tuple[int, ...]], deque[NDArray[np.float32]]] = defaultdict(deque)
    for sequence in algorithm.learnt(batch).sequences:
        sequences[sequence.group, tuple(sequence.token_ids)].append(sequence.advantages)
    of_rollouts: Advantages = {
        (r.problem_id, r.sample): mine.popleft()  # equal ones are in the order of the batch
        for r in batch.rollouts
        if (mine := sequences[r.problem_id, tuple(r.token_ids)])
    }
    return of_rollouts


def _episode_advantages(rollout: Rollout, advantages: Advantages) -> tuple[float, ...]:
    found = advantages.get((rollout.problem_id, rollout.sample))
    if found is None:
        return ()
    parts = [found[a:b] for a, b in pairwise([*rollout.credited, len(found)])]
    return tuple(float(part.mean()) if len(part) else float("nan") for part in parts)
