"""A job script runs this module when srun has ended. It decides whether the task is queued again, and for which other
tasks it waits.

    python -m mrt_hpc.backends.slurm.after_srun RUN_DIR JOB INDEX EXIT_CODE [WORD]    ends with an AttemptOutcome

It prints Slurm tasks, one a line, of which one has to run before this task can continue; and ``node-fault`` where the
next attempts leave out this node. The word is ``abandoned`` if none of those tasks is queued any more, and
``forbidden`` if Slurm does not start the task again.
"""

import os
import sys
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from tempfile import TemporaryDirectory

from mrt_hpc.attempt.early_end import settle
from mrt_hpc.attempt.gpus import look, verdict
from mrt_hpc.attempt.ledger import current_submissions, task_ids
from mrt_hpc.attempt.next_state import Ending, EndKind, next_state
from mrt_hpc.attempt.sole_attempt import finished_claim
from mrt_hpc.backends.slurm.environment import slurm_task
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.plan.jobs import JobResources, read_plan
from mrt_hpc.recipe.lock import look_at_lock
from mrt_hpc.run.event_stream import has_progressed
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import retry_action
from mrt_hpc.run.task_state import RUNS_AGAIN, TaskRecord, TaskState, read_task, write_task

# Tries the node of an attempt that has failed: where the node is at fault, the next attempts leave it out.
#
# The trial is made where the job script runs: of a task of several nodes it sees the first one only.


TRIAL_BYTES = 2**20
"""What a task writes at the least into the folder for temporary files."""


def node_fault(resources: JobResources) -> str:
    """Why no task with these resources can work on this node; empty text for a sound node."""
    return _scratch_fault(Path(os.environ.get("TMPDIR") or "/tmp")) or _gpu_fault(resources)


def _scratch_fault(temporary: Path) -> str:
    try:
        with TemporaryDirectory(prefix=".mrt-hpc-trial-", dir=temporary, ignore_cleanup_errors=True) as folder:
            Path(folder, "trial").write_bytes(bytes(TRIAL_BYTES))
    except OSError as error:
        return f"{temporary} takes no file there ({error.strerror or error})"
    return ""


def _gpu_fault(resources: JobResources) -> str:
    """A driver that is there and fails; where Slurm gave out no GPUs, another node would not help."""
    if not resources.gpus_per_rank:
        return ""
    try:
        fault = verdict(look(), resources)
    except UserError as error:
        fault = error
    return fault.what if fault is not None and fault.exit_code == ExitCode.RETRYABLE else ""


class AttemptOutcome(IntEnum):
    """The exit code of this module, on which the job script acts; after any other code it asks again."""

    AGAIN = 0
    OVER = 4
    DONE = 3
    """The exit code of the task's process does not matter."""


ABANDONED = "abandoned"
"""The argument that means: no task that this one waits for is in the queue."""
FORBIDDEN = "forbidden"
"""The argument that means: the cluster does not let Slurm start a job again."""
NODE_FAULT = "node-fault"


def awaited_tasks(layout: RunLayout, job: str, index: int, attempt: str, record: TaskRecord) -> list[str]:
    """Slurm's names of the tasks that a task which gave its nodes back waits for, without those that are over. None for
    a task that has finished something in this attempt: its peers may follow soon, and it keeps its place in the queue.
    """
    mine = record.state is TaskState.GAVE_BACK and record.attempt == attempt
    if not mine or not record.awaited or has_progressed(layout.events, job, index, attempt):
        return []
    sent = current_submissions(layout)
    awaited = [
        other
        for other in read_plan(layout.plan).jobs
        if other.name in record.awaited and other.name in sent and job not in [wait.job for wait in other.after]
    ]  # a job that depends on this one cannot start before it ends
    return [
        name
        for other in awaited
        for number, name in enumerate(task_ids(other, sent[other.name]))
        if read_task(layout, other.name, number).state not in (TaskState.DONE, TaskState.FAILED)
    ]


def give_up(layout: RunLayout, job: str, index: int, attempt: str, record: TaskRecord, word: str) -> TaskRecord:
    """Record that a task which was to run again will not, and return its record: it has failed, unless another attempt
    has written a record in the meantime. ``word`` says why it does not run again.
    """
    if word == ABANDONED:
        why = f"cannot continue: {', '.join(record.awaited)}, which this task waits for, has left the queue"
    else:
        before = record.message.strip().partition("\n")[0]
        why = f"this cluster does not let Slurm start a job again (scontrol requeue); how the attempt ended: {before}"
    message = f"{why}\n  next:     {layout.again} continues the run"
    after = next_state(record, Ending(EndKind.NOT_QUEUED, attempt, message))
    if after != record:
        retry_action(lambda: write_task(layout, job, index, after), "the state of the task")
    return after


def main(arguments: list[str]) -> int:
    """Settle the attempt that the arguments name; returns an AttemptOutcome."""
    run_dir, name, number, exit_code, *word = arguments
    layout, index, attempt = RunLayout(Path(run_dir)), int(number), slurm_task().attempt
    try:
        resilience = look_at_lock(layout.recipe_lock).resilience
        if finished_claim(layout.heart(name, index), attempt, resilience.heartbeat_limit_s) is None:
            print(f"another job works on task {index} of {name}: this one is queued again", file=sys.stderr)
            return AttemptOutcome.AGAIN
        record = settle(layout, name, index, attempt, int(exit_code), resilience.retries)
        if word:
            record = give_up(layout, name, index, attempt, record, *word)
    except UserError as error:
        print(error.message(), file=sys.stderr)
        return AttemptOutcome.OVER
    if record.state is TaskState.RETRYING and record.attempt == attempt:
        record = _tried_node(layout, name, index, record)
    print(f"task {index} of {name}: {record.state}, {record.failures} failure(s)", file=sys.stderr)
    _print_awaited(layout, name, index, attempt, record)
    if record.state is TaskState.DONE:
        return AttemptOutcome.DONE
    return AttemptOutcome.AGAIN if record.state in RUNS_AGAIN else AttemptOutcome.OVER


def _tried_node(layout: RunLayout, job: str, index: int, record: TaskRecord) -> TaskRecord:
    """The record of an attempt that has failed, with the fault of its node, which is printed for the job script."""
    if fault := node_fault(read_plan(layout.plan).job(job).resources):
        print(NODE_FAULT)
        said = f"{slurm_task().node}: {fault}; the next attempts leave it out, where another can run the task"
        record = replace(record, message=f"{record.message}\n  node:     {said}")
        retry_action(lambda: write_task(layout, job, index, record), "the state of the task")
    return record


def _print_awaited(layout: RunLayout, job: str, index: int, attempt: str, record: TaskRecord) -> None:
    """Without the awaited tasks the task is still queued again, only earlier than necessary."""
    try:
        print(*awaited_tasks(layout, job, index, attempt, record), sep="\n")
    except (UserError, OSError, ValueError) as error:
        print(f"the tasks that task {index} of {job} waits for could not be read: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
