"""The rest of a task's servers while the trainer has the turn on the GPUs that they share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mrt_hpc.inference.server_control import Server
    from mrt_hpc.run.turns import Turn


@dataclass
class Rest:
    """Lets the servers sleep, and wakes them. A task that has its GPUs for itself never rests."""

    turn: Turn
    servers: Sequence[Server]
    _asleep: bool = field(default=False, init=False)

    def begin(self) -> None:
        """Free the memory of the GPUs, and then give the turn to the trainer; does nothing without the turn.

        Raises:
            UserError: a server does not answer.
        """
        if self.turn.is_shared and self.turn.is_mine:
            for server in self.servers:
                server.sleep()
            self._asleep = True
            self.turn.pass_on()

    def end(self) -> None:
        """Wake the servers, after the turn was taken.

        Raises:
            UserError: a server does not answer.
        """
        if self._asleep:
            for server in self.servers:
                server.wake_up()
            self._asleep = False
