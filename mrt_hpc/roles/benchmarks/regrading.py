"""Judges recorded samples again with the grader of today, without any server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mrt_hpc.domains.grader_queue import GraderPool
from mrt_hpc.domains.verifiers import verifier_of
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.provers.prover_session import ProverFactory, ProverModel
from mrt_hpc.roles.sampling.grading import TraceGrader
from mrt_hpc.run.groups import Sampled, merged

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from mrt_hpc.inference.client import Completion
    from mrt_hpc.inference.protocol import Request
    from mrt_hpc.provers.prover_session import ProverSession
    from mrt_hpc.recipe.kinds import ProverSettings
    from mrt_hpc.recipe.schema import Experiment
    from mrt_hpc.recipe.sections import Benchmark, Grading, ProblemSource, Prompt
    from mrt_hpc.run.records import Gold


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

    problems: ProblemSource
    grading: Grading
    prompt: Prompt
    prover: ProverSettings | None
    tokenizer: Path
    """A model directory with the tokenizer of the samples."""

    @staticmethod
    def of(experiment: Experiment, benchmark: Benchmark, tokenizer: Path) -> Regrader:
        """The regrader of a benchmark of a recipe."""
        prompt = experiment.sampling_of(benchmark).prompt
        return Regrader(benchmark.problems, experiment.grading, prompt, experiment.evaluation.prover, tokenizer)

    async def all(self, parts: Sequence[Sampled], golds: Mapping[str, Gold]) -> list[Sampled]:
        """Return the parts with the verdicts, answers and values of the grader of today.

        Args:
            parts: samples of several problems.
            golds: the gold answer of each problem, by its id.

        Raises:
            UserError: the grader processes cannot be started.
        """
        grading = self.grading
        verifier = verifier_of(self.problems, grading)
        pool = GraderPool(verifier, grading.processes, grading.time_limit_s, memory_limit_gib=grading.memory_limit_gib)
        with pool:
            grader = TraceGrader(pool, self.prompt.thought_end, self._session())
            return [await self._part(grader, part, golds) for part in parts]

    def _session(self) -> ProverSession | None:
        """The estimator of the recorded values; None where no prefix was valued."""
        if self.prover is None:
            return None
        model = ProverModel.of(Prompter.of(self.tokenizer, self.prompt))
        return ProverFactory.of(self.prover, model, 0).session(NoServer())

    async def _part(self, grader: TraceGrader, part: Sampled, golds: Mapping[str, Gold]) -> Sampled:
        traces = [await grader.regrade(trace, golds[trace.rollouts[0].problem_id]) for trace in traces_of(part)]
        return replace(merged(traces), statistics=part.statistics)


def traces_of(part: Sampled) -> list[Sampled]:
    """The records of each trace."""
    found = {(r.problem_id, r.sample): Sampled(rollouts=[r], statistics=part.statistics) for r in part.rollouts}
    for branch in part.branches:
        found[branch.problem_id, branch.sample].branches.append(branch)
    for answer in part.answers:
        found[answer.problem_id, answer.sample].answers.append(answer)
    for value in part.values:
        found[value.problem_id, value.sample].values.append(value)
    return list(found.values())
