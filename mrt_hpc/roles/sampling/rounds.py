"""Which groups a task of the inference role samples next, with which weights version."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from mrt_hpc.plan.jobs import Role
from mrt_hpc.roles.task.peers import PeerStatus
from mrt_hpc.roles.task.sampled_groups import positions_there
from mrt_hpc.roles.task.segment_end import is_trained
from mrt_hpc.run.layout import collecting_version, is_collection
from mrt_hpc.run.leases import group_leases
from mrt_hpc.run.weights import published_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from mrt_hpc.recipe.schema import Recipe
    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.leases import Leases

LOOK_WHILE_STARTING_S = 5.0
"""Seconds between two checks whether a server that is starting is still needed."""


class NotNeededError(Exception):
    """The segment ended before the server had started."""


class Place(NamedTuple):
    """Where a group belongs."""

    iteration: int
    position: int


@dataclass(frozen=True)
class Round:
    """Some groups of one iteration, for one task to sample."""

    iteration: int
    version: int
    """The weights version to begin with. Newer ones may be loaded during the round, where the server is not drained."""
    positions: list[int]
    """The groups that had no lease at the last look; the task claims each when there is room for it."""
    leases: Leases
    waited_s: float


@dataclass
class Rounds:
    """Finds the next round of work for a task."""

    task: Task
    problems: int
    """The number of all training problems."""
    rest: Callable[[], None] = lambda: None
    """Called while there is nothing to sample: leaves the GPUs to the trainer, where it shares them."""
    _began: float = field(default_factory=time.monotonic, init=False)
    _leases: dict[int, Leases] = field(default_factory=dict, init=False)
    """The leases of each iteration that is not trained on yet, with what is known of them."""

    def awaited(self) -> Round | None:
        """The next round, once there is one and this process has the turn on the task's GPUs; None when the segment
        needs no more rollouts.

        Raises:
            UserError: the trainer has failed, or does not run.
        """
        producers = self.task.peers(Role.INFERENCE if self._collects else Role.TRAINER)
        wait = self.task.peer_wait("weights or groups to work on", producers)
        wait.check()  # groups that will not be trained on need not be sampled
        found = self.task.wait_for_peers(wait, self._look)
        return found[0]

    @property
    def _collects(self) -> bool:
        """Whether this task collects the traces that training starts from: with one weights version, even where later
        ones have been published.
        """
        return is_collection(self.task.iterations[0])

    def following(self, held: int, sampling: Collection[Place]) -> Round | None:
        """The next round that can be sampled with the weights version that the server holds, without waiting; None
        where there is none at this moment.

        Args:
            held: the weights version. It may be older than the newest one published.
            sampling: the groups that this task is sampling. It could take their leases once more, as a task may after
                it was interrupted.
        """
        missing = self._missing(self._newest)
        others = {i: [p for p in positions if Place(i, p) not in sampling] for i, positions in missing.items()}
        return self._free_work(held, others)

    def are_over(self) -> bool:
        """Whether the segment needs no more rollouts."""
        return self._over(newest := self._newest, self._missing(newest))

    @property
    def _newest(self) -> int:
        """The weights version to sample with, or -1 without one. Version v means that iterations 0 to v - 1 have been
        trained on.
        """
        if self._collects:
            return collecting_version(self.task.iterations[0])
        return max(published_versions(self.task.layout), default=-1)

    def _look(self) -> tuple[Round | None] | None:
        """The next round, (None,) if there will be none, or None to continue waiting."""
        turn, newest = self.task.turn, self._newest
        had_turn, missing = turn.is_mine, self._missing(newest)
        work = self._free_work(newest, missing)
        if work is not None and (had_turn or turn.take()):
            return (work,) if had_turn else self._look()  # while another process had the turn, weights have changed
        if self._over(newest, missing):
            return (None,)
        if work is None:
            self.rest()
        return None

    def _missing(self, newest: int) -> dict[int, list[int]]:
        """The positions of the groups that are missing, by iteration, of the iterations that are not trained on yet."""
        wanted = [i for i in self.task.iterations if self._collects or i >= newest]
        every = set(range(groups_of(self.task.recipe, wanted[0], self.problems) if wanted else 0))
        missing = {i: sorted(every - positions_there(self.task, i)) for i in wanted}
        return {iteration: positions for iteration, positions in missing.items() if positions}

    def _free_work(self, version: int, missing: dict[int, list[int]]) -> Round | None:
        """The oldest groups without a lease for which a weights version is new enough."""
        ahead = version + self.task.recipe.schedule.max_staleness
        self._leases = {iteration: self._leases_of(iteration) for iteration in missing}
        for iteration, positions in missing.items():
            leases = self._leases[iteration]
            if iteration <= ahead and (free := leases.free(positions)):
                return Round(iteration, version, self._share(free), leases, time.monotonic() - self._began)
        return None

    def _over(self, newest: int, missing: dict[int, list[int]]) -> bool:
        """Whether the trainer has finished the segment, or is not running and has all groups that it needs.

        A trainer at work may still find a group damaged and want it sampled again. That of a colocated task may also go
        back to an earlier state after the last weights version, and no other task could sample for it.
        """
        if self.task.job.role is Role.COLOCATED:
            return is_trained(self.task)
        if not self._collects and newest >= self.task.job.end_iteration:
            return True
        return not missing and PeerStatus.RUNNING not in self.task.peers(Role.TRAINER).lives().values()

    def _leases_of(self, iteration: int) -> Leases:
        if iteration in self._leases:
            return self._leases[iteration]
        return group_leases(self.task.layout, iteration, self.task.holder, self.task.observer)

    def _share(self, free: list[int]) -> list[int]:
        """An equal part of the free groups for each task at work. The task that finishes first takes from those that
        are left.
        """
        lives = self.task.peers(Role.INFERENCE).lives()
        me = (self.task.job.name, self.task.index)
        at_work = sorted({me, *(peer for peer, life in lives.items() if life is PeerStatus.RUNNING)})
        return free[at_work.index(me) :: len(at_work)] or free[:1]


@dataclass
class NeedWatch:
    """Checks at intervals whether a server that is starting is still needed: a start may hang for a long time."""

    rounds: Rounds
    _next: float = field(default=0.0, init=False)

    def look(self) -> None:
        """Check, unless the last check was less than ``LOOK_WHILE_STARTING_S`` ago.

        Raises:
            NotNeededError: the segment is over.
        """
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LOOK_WHILE_STARTING_S
        if self.rounds.are_over():
            raise NotNeededError


def groups_of(recipe: Recipe, iteration: int, problems: int) -> int:
    """The number of groups of an iteration; a collection has one group for each problem.

    Args:
        recipe: the run's.
        iteration: which.
        problems: all training problems.
    """
    return problems if is_collection(iteration) else recipe.sampling.problems_per_iteration or 0
