"""One version's summary on one benchmark. It follows from the samples alone, so two writers write the same."""

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

import numpy as np

from mrt_hpc.analysis.measures import EvaluationSummary
from mrt_hpc.analysis.problem_measures import valued_traces
from mrt_hpc.analysis.rows import summarise_evaluation
from mrt_hpc.domains.domain import domain_of
from mrt_hpc.mrt.regret import regret_by_problem
from mrt_hpc.recipe.choices import Boundaries
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.recipe.sections import Benchmark, Evaluation
from mrt_hpc.run.evaluation_settings import settings_of
from mrt_hpc.run.groups import Sampled
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.records import FinishReason, Rollout

T = TypeVar("T")


def summary_of(
    layout: RunLayout,
    experiment: Experiment,
    benchmark: Benchmark,
    version: int,
    parts: Sequence[Sampled],
    graders: Collection[str] = (),
) -> EvaluationSummary:
    """The summary of a version on a benchmark. ``parts`` are all shards; ``graders`` are digests of those that judged
    them.
    """
    every_stage = [rollout for part in parts for rollout in part.rollouts]
    rollouts = [rollout for rollout in every_stage if rollout.counts]
    statements = {p.id: p.problem for p in read_problems(layout.benchmark_data(benchmark.name))}
    traces = [(statements[r.problem_id], r.text) for r in rollouts]
    with_regret = parts if benchmark.boundaries is Boundaries.EPISODES else ()
    return summarise_evaluation(
        version,
        benchmark.name,
        list_by_problem(rollouts, lambda rollout: rollout.reward),
        answers=list_by_problem(rollouts, lambda rollout: rollout.answer),
        tokens_per_rollout=sum(len(r.token_ids) for r in (every_stage if benchmark.adds_stages else rollouts))
        / len(rollouts),
        truncated_share=sum(r.finish_reason is FinishReason.LENGTH for r in rollouts) / len(rollouts),
        answered_share=sum(r.answer is not None for r in rollouts) / len(rollouts),
        unjudged=sum(not r.judged for r in rollouts),
        quality=domain_of(benchmark.problems).quality(traces),
        regret=_regret(with_regret, experiment.evaluation, experiment.sampling_of(benchmark).max_tokens),
        regret_tokens=experiment.evaluation.regret_tokens,
        stages={} if benchmark.mode is None else stage_rewards(every_stage, benchmark.mode.stages),
        graders=tuple(sorted(graders)),
        settings=settings_of(layout, experiment, benchmark).summarised,
    )


def _regret(parts: Sequence[Sampled], how: Evaluation, limit: int) -> dict[int, dict[str, float]]:
    """Regret up to the trace limit; empty where no prefix was valued."""
    traces = valued_traces(parts, how.regret_tokens)
    return {budget: regret_by_problem(traces, budget) for budget in how.budgets if traces and budget <= limit}


def stage_rewards(rollouts: Sequence[Rollout], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Mean rewards by stage name and problem; empty for a single stage."""
    if len(names) == 1:
        return {}
    by_stage = {
        name: list_by_problem([r for r in rollouts if r.stage == stage], lambda rollout: rollout.reward)
        for stage, name in enumerate(names)
    }
    return {name: {p: float(np.mean(mine)) for p, mine in rewards.items()} for name, rewards in by_stage.items()}


def list_by_problem(rollouts: Sequence[Rollout], value: Callable[[Rollout], T]) -> dict[str, list[T]]:
    values: dict[str, list[T]] = {}
    for rollout in rollouts:
        values.setdefault(rollout.problem_id, []).append(value(rollout))
    return values
