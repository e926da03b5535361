"""A job script runs this module when srun has ended. It decides whether the task is queued again, and for which other
tasks it waits.

    python -m mrt_hpc.backends.slurm.after_srun RUN_DIR JOB INDEX EXIT_CODE [WORD]    ends with an AttemptOutcome

It prints Slurm tasks, one a line: one of them has to run before this task can continue. It prints nothing if this task
can continue alone, and ``node-fault`` where the next attempts have to leave out this node. The job script calls it
again with the word ``abandoned`` if none of those tasks is in the queue any more, and with ``forbidden`` if Slurm does
not start the task again.
"""

import os
import sys
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from tempfile import TemporaryDirectory

from mrt_hpc.attempt.end import RUNS_AGAIN, settled
from mrt_hpc.attempt.gpus import look, verdict
from mrt_hpc.attempt.ledger import current_submissions, task_ids
from mrt_hpc.attempt.notify import notify_failure
from mrt_hpc.attempt.run_progress import reason
from mrt_hpc.attempt.sole_attempt import finished_claim
from mrt_hpc.backends.slurm.environment import slurm_task
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.plan.jobs import JobResources, read_plan
from mrt_hpc.recipe.lock import look_at_lock
from mrt_hpc.run.events import has_progressed
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import retrying
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task, write_task

# -- node fault --------------------------------------------------------------------------------------------------------
# Tries the node of an attempt that has failed: where the node is at fault, the next attempts leave it out.
#
# The trial is made where the job script runs: of a task of several nodes it sees the first one only.


TRIAL_BYTES = 2**20
"""What a task writes at the least into the folder for temporary files."""


def node_fault(resources: JobResources) -> str:
    """Why no task with these resources can work on this node; empty text where nothing speaks against the node."""
    return _scratch_fault(Path(os.environ.get("TMPDIR") or "/tmp")) or _gpu_fault(resources)


def _scratch_fault(temporary: Path) -> str:
    try:
        with TemporaryDirectory(prefix=".mrt-hpc-trial-", dir=temporary, ignore_cleanup_errors=True) as folder:
            Path(folder, "trial").write_bytes(bytes(TRIAL_BYTES))
    except OSError as error:
        return f"{temporary} takes no file there ({error.strerror or error})"
    return ""


def _gpu_fault(resources: JobResources) -> str:
    """What a driver says that is there and fails; where GPUs were not given out, another node would not help."""
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
    """The task must run again."""
    OVER = 4
    """The task must not run again."""
    DONE = 3
    """The task is done; the exit code of its process does not matter."""


ABANDONED = "abandoned"
"""The argument that means: no task that this one waits for is in the queue."""
FORBIDDEN = "forbidden"
"""The argument that means: the cluster does not let Slurm start a job again."""
NODE_FAULT = "node-fault"
"""The line that means: this node is at fault."""


def awaited_tasks(layout: RunLayout, job: str, index: int, attempt: str, record: TaskRecord) -> list[str]:
    """Slurm's names of the tasks that a task which gave its nodes back waits for, without those that are over.

    None for a task that has finished something in this attempt: its peers may follow soon, and it keeps its place in
    the queue.

    Raises:
        UserError: the plan, or the state of a task, cannot be read.
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


def ended(layout: RunLayout, job: str, index: int, attempt: str, record: TaskRecord, word: str) -> TaskRecord:
    """The record of a task that was to run again and will not: it has failed, unless another attempt has written a
    record in the meantime.

    Args:
        layout: the run directory.
        job: its name.
        index: of the task.
        attempt: that has ended.
        record: of the task.
        word: why it does not run again.
    """
    if record.state not in RUNS_AGAIN or record.attempt != attempt:
        return record
    if word == ABANDONED:
        why = f"cannot continue: {', '.join(record.awaited)}, which this task waits for, has left the queue"
    else:
        before = reason(record).partition("\n")[0]
        why = f"this cluster does not let Slurm start a job again (scontrol requeue); how the attempt ended: {before}"
    message = f"{why}\n  next:     {layout.again} continues the run"
    record = replace(record, state=TaskState.FAILED, message=message, awaited=())
    retrying(lambda: write_task(layout, job, index, record), "the state of the task")
    return record


def main(arguments: list[str]) -> int:
    """Settle the attempt that the arguments name; returns an AttemptOutcome."""
    run_dir, name, number, exit_code, *word = arguments
    layout, index, attempt = RunLayout(Path(run_dir)), int(number), slurm_task().attempt
    try:
        resilience = look_at_lock(layout.recipe_lock).resilience
        if finished_claim(layout.heart(name, index), attempt, resilience.heartbeat_limit_s) is None:
            print(f"another job works on task {index} of {name}: this one is queued again", file=sys.stderr)
            return AttemptOutcome.AGAIN
        record = settled(layout, name, index, attempt, int(exit_code), resilience.retries)
        if word:
            record = ended(layout, name, index, attempt, record, *word)
    except UserError as error:
        print(error.message(), file=sys.stderr)
        return AttemptOutcome.OVER
    if record.state is TaskState.RETRYING and record.attempt == attempt:
        record = _tried_node(layout, name, index, record)
    print(f"task {index} of {name}: {record.state}, {record.failures} failure(s)", file=sys.stderr)
    _notify_awaited(layout, name, index, attempt, record)
    notify_failure(layout, name, index, record)
    if record.state is TaskState.DONE:
        return AttemptOutcome.DONE
    return AttemptOutcome.AGAIN if record.state in RUNS_AGAIN else AttemptOutcome.OVER


def _tried_node(layout: RunLayout, job: str, index: int, record: TaskRecord) -> TaskRecord:
    """The record of an attempt that has failed, with the fault of its node, which is printed for the job script."""
    resources = next(other.resources for other in read_plan(layout.plan).jobs if other.name == job)
    if fault := node_fault(resources):
        print(NODE_FAULT)
        node, then = slurm_task().node, "the next attempts leave it out, where another can run the task"
        said = f"  node:     {node}: {fault}; {then}"
        record = replace(record, message=f"{record.message}\n{said}")
        retrying(lambda: write_task(layout, job, index, record), "the state of the task")
    return record


def _notify_awaited(layout: RunLayout, job: str, index: int, attempt: str, record: TaskRecord) -> None:
    """Print the awaited tasks. Without them the task is still queued again, only earlier than necessary."""
    try:
        print(*awaited_tasks(layout, job, index, attempt, record), sep="\n")
    except (UserError, OSError, ValueError) as error:
        print(f"the tasks that task {index} of {job} waits for could not be read: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
