"""Judges recorded samples again with the grader of today, without any server."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from mrt_hpc.inference.client import Completion
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.protocol import Request
from mrt_hpc.provers.prover_session import ProverFactory, ProverModel, ProverSession
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.recipe.sections import Benchmark, Prompt
from mrt_hpc.roles.sampling.grading import TraceGrader, grader_pool
from mrt_hpc.run.groups import Sampled, merge_samples
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.records import Problem, Rollout


class NoServer:
    """Stands for the server of estimators that only use recorded answers."""

    async def stream(self, requests: Sequence[Request]) -> AsyncIterator[Completion]:
        """Always refuses."""
        raise RuntimeError(f"{len(requests)} requests while recorded answers are judged again")
        yield  # makes this a generator


@dataclass(frozen=True)
class Regrader:
    layout: RunLayout
    """Holds the problems."""
    experiment: Experiment
    benchmark: Benchmark
    tokenizer: Path
    """A model directory with the samples' tokenizer."""

    @cached_property
    def problems(self) -> dict[str, Problem]:
        return {p.id: p for p in read_problems(self.layout.benchmark_data(self.benchmark.name))}

    @cached_property
    def _prompt(self) -> Prompt:
        return self.experiment.sampling_of(self.benchmark).prompt

    async def all(self, parts: Sequence[Sampled]) -> list[Sampled]:
        """The parts with today's verdicts, answers and values."""
        with grader_pool(self.experiment, self.benchmark.problems) as pool:
            grader = TraceGrader(pool, self._prompt.thought_end, self._session())
            return [await self._part(grader, part) for part in parts]

    def _session(self) -> ProverSession | None:
        """None where no prefix was valued."""
        if (prover := self.experiment.evaluation.prover) is None:
            return None
        model = ProverModel.of(Prompter.of(self.tokenizer, self._prompt))
        return ProverFactory.of(prover, model, 0).session(NoServer())

    async def _part(self, grader: TraceGrader, part: Sampled) -> Sampled:
        traces = [await grader.regrade(trace, self.problems[trace.rollouts[0].problem_id]) for trace in traces_of(part)]
        return replace(merge_samples(traces), statistics=part.statistics)


def changed_verdicts(before: Sequence[Sampled], now: Sequence[Sampled]) -> list[tuple[Rollout, Rollout]]:
    """Traces whose verdict changed: earlier and present record."""
    there = {(r.problem_id, r.sample): r for part in now for r in part.rollouts}
    pairs = [(old, there[old.problem_id, old.sample]) for part in before for old in part.rollouts]
    return [(old, new) for old, new in pairs if old.reward != new.reward]


def traces_of(part: Sampled) -> list[Sampled]:
    sampled = {(r.problem_id, r.sample): Sampled(rollouts=[r], statistics=part.statistics) for r in part.rollouts}
    for branch in part.branches:
        sampled[branch.problem_id, branch.sample].branches.append(branch)
    for answer in part.answers:
        sampled[answer.problem_id, answer.sample].answers.append(answer)
    for value in part.values:
        sampled[value.problem_id, value.sample].values.append(value)
    return list(sampled.values())
