"""The traces of one iteration, or of one evaluation, that a user asks for: of some problems, or the wrong ones; with
the advantages that the run's algorithm gives them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.algorithms.base import RolloutAlgorithm
from mrt_hpc.algorithms.batch import batch_of
from mrt_hpc.analysis.report.content import SampleProblem, SampleTrace
from mrt_hpc.errors import UserError, nearest
from mrt_hpc.recipe.base import as_kind
from mrt_hpc.recipe.schema import Experiment, Recipe
from mrt_hpc.roles.run_samples import TraceSource, boundaries_of, first_tokenizer, shown_problem, shown_trace
from mrt_hpc.run.archive import read_iteration, sampled_iterations
from mrt_hpc.run.evaluation_settings import versions_evaluated
from mrt_hpc.run.groups import Group, read_group
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.records import Rollout
from mrt_hpc.run.retries import list_directory

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
