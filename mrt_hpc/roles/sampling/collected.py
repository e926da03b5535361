"""Traces collected for training to start from: read, and requested again where damaged."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from mrt_hpc.algorithms.base import StartContext
from mrt_hpc.errors import retryable_error
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.roles.task.context import Task, positions_there, set_group_aside
from mrt_hpc.run.archive import read_sampled
from mrt_hpc.run.groups import Group, refuse_other_samples
from mrt_hpc.run.layout import collection_of
from mrt_hpc.run.manifest import DamagedError
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.records import Problem


@dataclass(frozen=True)
class Collection:
    task: Task
    version: int

    def groups(self) -> Iterator[Group]:
        """All groups, by problem. All damaged ones are found before the error: they are sampled again at once."""
        layout, problems = self.task.layout, self._ids
        missing = set(range(len(problems))) - positions_there(self.task, collection_of(self.version))
        if missing:
            self._reopen(f"{len(missing)} of its groups are not there")
            raise retryable_error(
                f"{len(missing)} of {len(problems)} collected groups are missing",
                where=layout.groups(collection_of(self.version)),
                advice="mrt-hpc submit RUN: they are sampled again",
            )
        return self._each(range(len(problems)))

    def _each(self, positions: range) -> Iterator[Group]:
        for position in positions:
            try:
                yield self.group(position)
            except DamagedError:
                for later in positions[position + 1 :]:
                    with suppress(DamagedError):
                        self.group(later)
                raise

    def group(self, position: int) -> Group:
        """One problem's group; a damaged one is set aside, and the collecting job runs again."""
        layout, recipe, collection = self.task.layout, self.task.recipe, collection_of(self.version)
        samples = range(recipe.algorithm.group_size(recipe, collection))

        def read() -> Group:
            group = read_sampled(layout, collection, position)
            return refuse_other_samples(group, self._ids[position], samples, layout.group(collection, position))

        try:
            return self.task.retry(read, f"reading group {position} of the collection of version {self.version}")
        except DamagedError as damage:
            self._reopen(f"its group {position} was found damaged: {damage.what}")
            set_group_aside(self.task, collection, position, damage)
            raise

    def stale_group(self, position: int) -> Group:
        try:
            return self.group(position)
        except DamagedError as damage:
            raise retryable_error(
                f"a stale trace was damaged: {damage.what}",
                where=damage.where,
                advice="mrt-hpc submit RUN: the trace is sampled again",
            ) from damage

    @cached_property
    def _ids(self) -> list[str]:
        return [problem.id for problem in read_problems(self.task.layout.train_data)]

    def _reopen(self, why: str) -> None:
        jobs = [job for job in self.task.plan.jobs if collection_of(self.version) in job.iterations]
        self.task.reopen([(job.name, index) for job in jobs for index in range(job.tasks)], why)


def start_context(
    task: Task, prompter: Prompter, tokens: TokenBytes, problems: Sequence[Problem], iteration: int
) -> StartContext:
    """The sources of an iteration's (or collection's) starts. ``prompter`` is of the policy, ``problems`` are all
    training problems, by position.
    """
    positions = {problem.id: position for position, problem in enumerate(problems)}
    version = 0 if iteration < 0 else task.recipe.algorithm.traces_version(iteration)
    collection = Collection(task, version)
    return StartContext(task.recipe, iteration, prompter, tokens, lambda p: collection.stale_group(positions[p.id]))
