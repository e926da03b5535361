"""The situations of a run on a cluster that are explained: its queue, its trainer, and what the accounts say."""

from collections.abc import Sequence
from typing import NamedTuple

from basics import TRAINER
from canned_queue import CannedRun
from tables import tables

from mrt_hpc.attempt.next_state import stop_message
from mrt_hpc.run.task_state import TaskState


class Situated(NamedTuple):
    task: str = ""
    queue: tuple[str, ...] = ()
    trainer: tuple[TaskState, str] | None = None
    accounts: str = ""

    @property
    def words(self) -> list[str]:
        return [self.task] if self.task else []

    def make(self, run: CannedRun) -> None:
        run.queue(*self.queue)
        run.accounts(*filter(None, [self.accounts]))
        state, message = self.trainer or (TaskState.WAITING, "")
        run.task(TRAINER, state, attempt="13.0", message=message)


LATER = "13|PENDING|N/A|BeginTime|"
EACH = tuple(f"12_{n}|PENDING|N/A|Priority|" for n in range(4))
FAILED = (TaskState.FAILED, "ValueError: loss is not finite\n  next:     lower the learning rate")


def situated(task: str = "", queue: Sequence[str] = (), trainer: Sequence[str] = (), accounts: str = "") -> Situated:
    lines = [line for one in queue for line in (EACH if one == "EACH" else (one,))]
    said = [part.replace("STOP_MESSAGE", stop_message("13.0")) for part in trainer]
    return Situated(task, tuple(lines), (TaskState(said[0]), said[1]) if said else None, accounts)


SITUATIONS = {name: situated(**fields) for name, fields in tables("situations")["situations"].items()}
