"""Judges recorded samples again with the grader of today, without any server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrt_hpc.domains.pool import GraderPool
from mrt_hpc.domains.verifiers import verifier_of
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.provers.prover_session import ProverFactory, ProverModel
from mrt_hpc.recipe.benchmark_sampling import benchmark_sampling
from mrt_hpc.roles.sampling.grading import TraceGrader, TraceRecords
from mrt_hpc.run.groups import Sampled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from mrt_hpc.inference.client import Completion
    from mrt_hpc.inference.protocol import Request
    from mrt_hpc.provers.prover_session import ProverSession
    from mrt_hpc.recipe.evaluation_recipe import Experiment
    from mrt_hpc.recipe.prover import ProverSettings
    from mrt_hpc.recipe.sections.data import ProblemSource
    from mrt_hpc.recipe.sections.evaluation import Benchmark
    from mrt_hpc.recipe.sections.grading import Grading
    from mrt_hpc.recipe.sections.prompt import Prompt
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
        prompt = benchmark_sampling(experiment, benchmark).prompt
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
        traces = [await grader.regrade(records, golds[records.rollout.problem_id]) for records in traces_of(part)]
        return Sampled(
            rollouts=[t.rollout for t in traces],
            branches=[b for t in traces for b in t.branches],
            answers=[a for t in traces for a in t.answers],
            values=[v for t in traces for v in t.values],
            statistics=part.statistics,
        )


def traces_of(part: Sampled) -> list[TraceRecords]:
    """The records of each trace."""
    found: dict[tuple[str, int], TraceRecords] = {
        (r.problem_id, r.sample): TraceRecords(r, [], [], []) for r in part.rollouts
    }
    for branch in part.branches:
        found[branch.problem_id, branch.sample].branches.append(branch)
    for answer in part.answers:
        found[answer.problem_id, answer.sample].answers.append(answer)
    for value in part.values:
        found[value.problem_id, value.sample].values.append(value)
    return list(found.values())
