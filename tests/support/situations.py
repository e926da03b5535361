"""The situations of a run on a cluster that are explained: its queue, its trainer, and what the accounts say."""

from typing import NamedTuple

from basics import EVALUATION, INFERENCE, TRAINER
from canned_queue import PREPARE, CannedRun

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


RUNS, LATER, HALF = "13|RUNNING|1|None|node1", "13|PENDING|N/A|BeginTime|", "14_0|PENDING|N/A|Dependency|"
EACH = tuple(f"12_{n}|PENDING|N/A|Priority|" for n in range(4))
FAILED = (TaskState.FAILED, "ValueError: loss is not finite\n  next:     lower the learning rate")
BACK = f"gave the nodes back: {INFERENCE} has not run for 10.0 minutes\n  next:     nothing"
RUNNING = (TaskState.RUNNING, "")
SITUATIONS = {
    "all is queued, and the trainer can never start": Situated(queue=("13|PENDING|N/A|PartitionTimeLimit|", *EACH)),
    "a job waits for its turn": Situated(TRAINER, ("13|PENDING|N/A|Priority|",)),
    "a job is held": Situated(queue=("13|PENDING|N/A|JobHeldUser|",)),
    "a reason of a later Slurm": Situated(TRAINER, ("13|PENDING|N/A|SomethingNew|",)),
    "a job waits for one that runs": Situated(f"{EVALUATION}[0]", (RUNS, HALF), RUNNING),
    "a job waits for one that has failed": Situated(f"{EVALUATION}[0]", (HALF,), FAILED),
    "a job waits for jobs of another run": Situated(TRAINER, ("13|PENDING|N/A|Dependency|",)),
    "a trainer runs, and no inference": Situated(TRAINER, (RUNS, *EACH), RUNNING),
    "both run": Situated("", (RUNS, "12_0|RUNNING|1|None|node2"), RUNNING),
    "a task was lost": Situated(TRAINER, (), RUNNING, "13|OUT_OF_MEMORY|0:125|node1|60"),
    "a task has failed": Situated(trainer=FAILED),
    "a task has failed without advice": Situated(trainer=(TaskState.FAILED, "no")),
    "a task has failed and is queued again": Situated(TRAINER, (LATER,), (TaskState.RETRYING, "no memory")),
    "a task gave its nodes back": Situated(TRAINER, (LATER,), (TaskState.GAVE_BACK, BACK)),
    "a task was stopped": Situated(TRAINER, (LATER,), (TaskState.STOPPED, stop_message("13.0"))),
    "a task was lost and is queued again": Situated(TRAINER, (LATER,), RUNNING),
    "a task is done": Situated(PREPARE),
    "nothing is queued any more": Situated(),
    "a job ended before its Python began": Situated(TRAINER, accounts="13|FAILED|127:0|node1|60"),
    "a node does not see the run": Situated(TRAINER, accounts="13|FAILED|0:53|node1|1"),
    "a job is killed before its Python began": Situated(TRAINER, accounts="13|FAILED|0:9|node1|60"),
}
