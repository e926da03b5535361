"""The turns of a trainer that shares its GPUs with the process that samples.

Before a wait its tensors leave the GPUs, and only then the turn is passed on; they come back after it has the turn
again. A trainer that has its GPUs for itself always has the turn, and nothing is moved.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mrt_hpc.run.waiting import wait_until
from mrt_hpc.training import rendezvous
from mrt_hpc.training.accelerator import Parked, device, park, unpark

if TYPE_CHECKING:
    from mrt_hpc.roles.task.context import Task

REGAIN_DEADLINE_S = 60.0
"""Seconds in which the process that samples has to end its server, when this one has to save its state and leave."""


@dataclass
class TurnTaking:
    """Passes the turn on and takes it back. All ranks call every method together, unless it says otherwise."""

    task: Task
    _parked: list[Parked] = field(default_factory=list, init=False)

    @property
    def may_pass_on(self) -> bool:
        """Whether another process may get the turn from this one; the first rank knows it."""
        return self.task.turn.is_shared and self.task.turn.is_mine

    def pass_on(self) -> None:
        """Free the memory of the GPUs on all ranks, and then give the turn to the process that samples."""
        if device().type != "cpu":
            self._parked += park(device().type)
        rendezvous.agree(None)
        self.task.turn.pass_on()

    def resume(self) -> None:
        """Bring everything back to the GPUs, after the first rank has taken the turn."""
        unpark(self._parked)

    def regain(self) -> None:
        """Ask the process that samples to end, take the turn, and bring everything back.

        Raises:
            UserError: it keeps the turn.
        """
        rendezvous.on_rank_zero(self._take)
        self.resume()

    def _take(self) -> None:
        if self.task.companion is not None:
            self.task.companion.interrupt()
        wait_until(
            self.task.turn.take,
            reason="the process that samples to leave the GPUs, so that what was trained can be saved",
            deadline_s=REGAIN_DEADLINE_S,
            where=self.task.turn.path if self.task.companion is None else self.task.companion.log,
            advice="nothing: the task runs again from its last checkpoint; "
            f"mrt-hpc status {self.task.layout.word} shows it",
        )
