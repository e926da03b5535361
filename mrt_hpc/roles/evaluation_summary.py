"""The summary of one weights version on one benchmark. It follows from the samples alone, so two tasks that write it
write the same; where the grader is another by then, their answers are judged again.
"""

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from mrt_hpc.analysis.measures import EvaluationSummary
from mrt_hpc.analysis.problem_measures import valued_traces
from mrt_hpc.analysis.rows import summarise_evaluation
from mrt_hpc.domains.grader_queue import GraderPool
from mrt_hpc.domains.small_world.equations import trace_quality
from mrt_hpc.domains.verifiers import verifier_of
from mrt_hpc.inference.client import Completion
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.protocol import Request
from mrt_hpc.mrt.regret import regret_by_problem
from mrt_hpc.provers.prover_session import ProverFactory, ProverModel, ProverSession
from mrt_hpc.recipe.choices import Boundaries
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.recipe.sections import Benchmark, Evaluation, Prompt
from mrt_hpc.roles.sampling.grading import TraceGrader
from mrt_hpc.run.evaluation_settings import settings_of
from mrt_hpc.run.groups import Sampled, merged
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.records import FinishReason, Gold, Rollout


def summary_of(
    layout: RunLayout,
    experiment: Experiment,
    benchmark: Benchmark,
    version: int,
    parts: Sequence[Sampled],
    graders: Collection[str] = (),
) -> EvaluationSummary:
    """Return the summary of a weights version on a benchmark.

    Args:
        layout: the run directory, which holds the problems.
        experiment: the recipe.
        benchmark: of the recipe.
        version: the weights version.
        parts: all shards of its samples.
        graders: the digests of the graders that have judged them.
    """
    every_stage = [rollout for part in parts for rollout in part.rollouts]
    rollouts = [rollout for rollout in every_stage if rollout.counts]
    statements = {p.id: p.problem for p in read_problems(layout.benchmark_data(benchmark.name))}
    traces = [(statements[r.problem_id], r.text) for r in rollouts]
    with_regret = parts if benchmark.boundaries is Boundaries.EPISODES else ()
    return summarise_evaluation(
        version,
        benchmark.name,
        rewards_by_problem(rollouts),
        answers=answers_by_problem(rollouts),
        tokens_per_rollout=sum(len(r.token_ids) for r in (every_stage if benchmark.adds_stages else rollouts))
        / len(rollouts),
        truncated_share=sum(r.finish_reason is FinishReason.LENGTH for r in rollouts) / len(rollouts),
        answered_share=sum(r.answer is not None for r in rollouts) / len(rollouts),
        quality=trace_quality(benchmark.problems, traces),
        regret=_regret(with_regret, experiment.evaluation, experiment.sampling_of(benchmark).max_tokens),
        regret_tokens=experiment.evaluation.regret_tokens,
        stages={} if benchmark.mode is None else stage_rewards(every_stage, benchmark.mode.stages),
        graders=tuple(sorted(graders)),
        settings=settings_of(layout, experiment, benchmark).summarised,
    )


def _regret(parts: Sequence[Sampled], how: Evaluation, limit: int) -> dict[int, dict[str, float]]:
    """Regret by budget and problem, up to the limit of a trace; empty where no prefix was valued."""
    traces = valued_traces(parts, how.regret_tokens)
    return {budget: regret_by_problem(traces, budget) for budget in how.budgets if traces and budget <= limit}


def stage_rewards(rollouts: Sequence[Rollout], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the mean reward of each problem in each stage, by its name; nothing where there is one stage."""
    if len(names) == 1:
        return {}
    by_stage = {name: rewards_by_problem([r for r in rollouts if r.stage == stage]) for stage, name in enumerate(names)}
    return {name: {p: float(np.mean(mine)) for p, mine in rewards.items()} for name, rewards in by_stage.items()}


def answers_by_problem(rollouts: Sequence[Rollout]) -> dict[str, list[str | None]]:
    """The answers of each problem's samples, by problem id."""
    answers: dict[str, list[str | None]] = {}
    for rollout in rollouts:
        answers.setdefault(rollout.problem_id, []).append(rollout.answer)
    return answers


def rewards_by_problem(rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
    """The rewards of each problem's samples, by problem id."""
    rewards: dict[str, list[float]] = {}
    for rollout in rollouts:
        rewards.setdefault(rollout.problem_id, []).append(rollout.reward)
    return rewards


# Judges recorded samples again with the grader of today, without any server: those of a results folder, where an
# evaluation takes them, and those of a run, at ``mrt-hpc regrade``.


class NoServer:
    """A source of samples for estimators that are asked for values of recorded answers only."""

    async def stream(self, requests: Sequence[Request]) -> AsyncIterator[Completion]:
        """Refuse.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(f"{len(requests)} requests while recorded answers are judged again")
        yield  # makes this a generator


@dataclass(frozen=True)
class Regrader:
    """Judges the samples of one benchmark again."""

    layout: RunLayout
    """The run directory, which holds the problems."""
    experiment: Experiment
    benchmark: Benchmark
    tokenizer: Path
    """A model directory with the tokenizer of the samples."""

    @cached_property
    def golds(self) -> dict[str, Gold]:
        """The gold answer of each problem, by its id."""
        return {p.id: p.answer for p in read_problems(self.layout.benchmark_data(self.benchmark.name))}

    @cached_property
    def _prompt(self) -> Prompt:
        return self.experiment.sampling_of(self.benchmark).prompt

    async def all(self, parts: Sequence[Sampled]) -> list[Sampled]:
        """Return the parts with the verdicts, answers and values of the grader of today.

        Raises:
            UserError: the grader processes cannot be started.
        """
        grading = self.experiment.grading
        verifier = verifier_of(self.benchmark.problems, grading)
        pool = GraderPool(verifier, grading.processes, grading.time_limit_s, memory_limit_gib=grading.memory_limit_gib)
        with pool:
            grader = TraceGrader(pool, self._prompt.thought_end, self._session())
            return [await self._part(grader, part) for part in parts]

    def _session(self) -> ProverSession | None:
        """The estimator of the recorded values; None where no prefix was valued."""
        if (prover := self.experiment.evaluation.prover) is None:
            return None
        model = ProverModel.of(Prompter.of(self.tokenizer, self._prompt))
        return ProverFactory.of(prover, model, 0).session(NoServer())

    async def _part(self, grader: TraceGrader, part: Sampled) -> Sampled:
        traces = [await grader.regrade(trace, self.golds[trace.rollouts[0].problem_id]) for trace in traces_of(part)]
        return replace(merged(traces), statistics=part.statistics)


def changed_verdicts(before: Sequence[Sampled], now: Sequence[Sampled]) -> list[tuple[Rollout, Rollout]]:
    """The traces whose verdict is another one than before, each with its earlier and its present record."""
    there = {(r.problem_id, r.sample): r for part in now for r in part.rollouts}
    pairs = [(old, there[old.problem_id, old.sample]) for part in before for old in part.rollouts]
    return [(old, new) for old, new in pairs if old.reward != new.reward]


def traces_of(part: Sampled) -> list[Sampled]:
    """The records of each trace."""
    sampled = {(r.problem_id, r.sample): Sampled(rollouts=[r], statistics=part.statistics) for r in part.rollouts}
    for branch in part.branches:
        sampled[branch.problem_id, branch.sample].branches.append(branch)
    for answer in part.answers:
        sampled[answer.problem_id, answer.sample].answers.append(answer)
    for value in part.values:
        sampled[value.problem_id, value.sample].values.append(value)
    return list(sampled.values())
