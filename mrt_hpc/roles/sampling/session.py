"""The one way of sampling for inference, evaluation and benchmarks: traces are sampled, valued by the prover and graded
side by side.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from mrt_hpc.domains.grader_queue import GraderPool, Lane, LaneMaker
from mrt_hpc.domains.verifiers import verifier_of
from mrt_hpc.inference.sampler import Generator, RolloutPlan, RolloutSampler, TraceSampler
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.inference.traces import PromptedGroup, SampledTrace
from mrt_hpc.provers.prover_session import ProverSession
from mrt_hpc.recipe.sections import ProblemSource
from mrt_hpc.roles.sampling.grading import TraceGrader
from mrt_hpc.roles.task.context import Task
from mrt_hpc.run.groups import Sampled

GradedGroup = list[asyncio.Task["Sampled"]]
"""The traces of a group, each graded in the background."""


@dataclass(frozen=True)
class SamplingSession:
    """Samples groups through one server, asks the prover about each trace at once, and grades in the background."""

    generator: Generator
    """The client of the server that serves the policy."""
    tokens: TokenBytes
    """The tokens of the policy's tokenizer."""
    pool: GraderPool
    plan: RolloutPlan
    """How traces are seeded and cut, and how many a group has."""
    prover: ProverSession | None = None
    """The prover's session; None asks for no values."""
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(256))
    """One place for each trace that is sampled at a time; several sessions may share it."""
    tracer: TraceSampler | None = None
    """Samples each trace by requests of its own; None samples it in one request, as training does."""

    async def traces(self, groups: Iterable[PromptedGroup]) -> AsyncGenerator[tuple[str, asyncio.Task[Sampled]]]:
        """Every trace when it is sampled, with the id of its problem; its grading continues in the background.

        Args:
            groups: asked for the next one only when there is room for a trace of it.

        Raises:
            UserError: the server refused a request, or stayed unreachable.
        """
        valuer = None if self.prover is None else self.prover.estimator
        sampler = RolloutSampler(self.generator, self.tokens, self.plan, valuer, self.room, self.tracer)
        async with aclosing(sampler.sample(groups)) as sampled:
            async for trace in sampled:
                yield trace.group.problem.id, asyncio.create_task(self._grader.grade(trace))

    async def sample(
        self, groups: Iterable[PromptedGroup], finish: Callable[[GradedGroup], Coroutine[None, None, None]]
    ) -> None:
        """Sample all groups. Each is handed to ``finish`` when its last trace is sampled, while others continue.

        Raises:
            UserError: see ``traces``; or whatever ``finish`` raises. The first failure cancels all else.
        """
        waiting: dict[str, GradedGroup] = defaultdict(list)
        try:
            async with aclosing(self.traces(groups)) as traces, asyncio.TaskGroup() as finishing:
                async for problem_id, trace in traces:
                    waiting[problem_id].append(trace)
                    if len(waiting[problem_id]) == self.plan.group_size:
                        finishing.create_task(finish(waiting.pop(problem_id)))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures

    async def value(self, trace: SampledTrace) -> Sampled:
        """Ask the prover about a trace that was sampled before, and grade it.

        Raises:
            UserError: the server refused a request, or stayed unreachable.
        """
        if self.prover is not None:
            trace = replace(trace, valuation=await self.prover.estimator.value(trace))
        return await self._grader.grade(trace)

    @property
    def _grader(self) -> TraceGrader:
        return TraceGrader(self.pool, self.plan.thought_end.decode(), self.prover)


# The grader processes of a task, on one node or on several.


@contextmanager
def grader_pool(task: Task, problems: ProblemSource, nodes: tuple[str, ...] = ()) -> Iterator[GraderPool]:
    """The grader processes of this task.

    Args:
        task: whose.
        problems: the section of the recipe that the problems are from: it names their verifier.
        nodes: the ids of the nodes of the task's Ray cluster, on each of which answers are graded; none where it has no
            cluster.
    """
    grading = task.experiment.grading
    with GraderPool(
        verifier_of(problems, grading),
        grading.processes,
        grading.time_limit_s,
        memory_limit_gib=grading.memory_limit_gib,
        lane=lane_over(nodes) if nodes else Lane,
    ) as pool:
        yield pool


def lane_over(nodes: tuple[str, ...]) -> LaneMaker:
    """What makes lanes of graders on these nodes of a Ray cluster."""
    from mrt_hpc.domains.spread_lane import SpreadLane  # Ray is loaded by tasks of several nodes only

    return partial(SpreadLane, nodes=nodes)
