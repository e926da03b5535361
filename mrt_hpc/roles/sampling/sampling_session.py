"""The one way of sampling for inference, evaluation and benchmarks: traces are sampled, valued by the prover and graded
side by side.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from mrt_hpc.domains.grader_queue import GraderPool
from mrt_hpc.inference.sampler import RolloutSampler
from mrt_hpc.inference.traces import PromptedGroup, SampledTrace
from mrt_hpc.provers.prover_session import ProverSession
from mrt_hpc.roles.sampling.grading import TraceGrader
from mrt_hpc.run.groups import Sampled

GradedGroup = list[asyncio.Task["Sampled"]]
"""Each trace graded in the background."""
Commit = Callable[[GradedGroup], Coroutine[None, None, None]]


@dataclass(frozen=True)
class SamplingSession:
    """Asks the prover about each trace at once, and grades it in the background."""

    sampler: RolloutSampler
    """The session gives it the prover."""
    pool: GraderPool
    prover: ProverSession | None = None
    """None asks for no values."""

    async def traces(self, groups: Iterable[PromptedGroup]) -> AsyncGenerator[tuple[str, asyncio.Task[Sampled]]]:
        """Each sampled trace with its problem's id; grading goes on in the background.

        Args:
            groups: asked for the next only when there is room.
        """
        valuer = None if self.prover is None else self.prover.estimator
        async with aclosing(replace(self.sampler, valuer=valuer).sample(groups)) as sampled:
            async for trace in sampled:
                yield trace.group.problem.id, asyncio.create_task(self._grader.grade(trace))

    async def sample(self, groups: Iterable[PromptedGroup], finish: Commit) -> None:
        """Sample all groups; each goes to ``finish`` after its last trace, while others continue. The first failure
        cancels all.
        """
        waiting: dict[str, GradedGroup] = defaultdict(list)
        try:
            async with aclosing(self.traces(groups)) as traces, asyncio.TaskGroup() as finishing:
                async for problem_id, trace in traces:
                    waiting[problem_id].append(trace)
                    if len(waiting[problem_id]) == self.sampler.plan.group_size:
                        finishing.create_task(finish(waiting.pop(problem_id)))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures

    async def value(self, trace: SampledTrace) -> Sampled:
        """Ask the prover about an earlier trace, and grade it."""
        if self.prover is not None:
            trace = replace(trace, valuation=await self.prover.estimator.value(trace))
        return await self._grader.grade(trace)

    @property
    def _grader(self) -> TraceGrader:
        return TraceGrader(self.pool, self.sampler.plan.thought_end.decode(), self.prover)


async def gather_in_order(group: Sequence[asyncio.Task[Sampled]]) -> list[Sampled]:
    return sorted(await asyncio.gather(*group), key=lambda t: t.rollouts[0].sample)
