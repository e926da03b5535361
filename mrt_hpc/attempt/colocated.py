"""A colocated task: the ranks of the trainer and one process that samples, on the same GPUs.

The first rank starts that process. It has the rank after the trainer's last one, and so its own file of events; its
leases and its failure are the task's.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace

from mrt_hpc.attempt.entry import role_function
from mrt_hpc.attempt.placement import Placement, task_command
from mrt_hpc.plan.jobs import JobResources, Role
from mrt_hpc.roles.task.context import Companion, Task, remove_earlier_turns, turn_of
from mrt_hpc.roles.task.shutdown import Interrupted
from mrt_hpc.run.layout import COMPANION_LOG
from mrt_hpc.run.process import import_path, start_process


def run(task: Task) -> None:
    """Train and sample the iterations of the segment; every rank of the trainer calls this."""
    with nullcontext(task) if task.rank else run_companion(task) as with_companion:
        role_function(task, Role.TRAINER)(with_companion)


@contextmanager
def run_companion(task: Task) -> Iterator[Task]:
    """The task with its companion. The trainer has the first turn, as what it resumes from decides what is sampled. A
    task that was asked to leave records that before it waits for its companion: Slurm may kill it meanwhile, as its
    other ranks have ended.
    """
    turn = turn_of(task)
    with ExitStack() as stack:
        stack.callback(remove_earlier_turns, task)  # once more: the companion of a killed trainer lives a little longer
        stack.callback(turn.remove)
        remove_earlier_turns(task)
        turn.take()
        companion = start_companion(task)
        stack.callback(companion.end)
        task.shutdown.forward = companion.interrupt
        try:
            yield replace(task, turn=turn, companion=companion)
        except Interrupted:
            task.shutdown.announce()
            raise
        with task.shutdown.defer_to_safe_points():  # the segment is trained, and no request makes its task run again
            turn.pass_on()
            companion.wait_for_end()


def start_companion(task: Task) -> Companion:
    """Start the process that samples. It blocks the signal of the time limit, which Slurm sends to all processes of a
    task: the first rank says when it ends.
    """
    log, words = task.log(COMPANION_LOG), task_command(task.layout, task.job.name, task.index)
    place = Placement(task.world_size, task.world_size, 0, task.attempt)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        environment = {**os.environ, **import_path(), **_threads(task.job.resources), **place.environment()}
        process = start_process([*words, Role.INFERENCE.value], log, environment)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
    return Companion(process, log)


def _threads(resources: JobResources) -> dict[str, str]:
    """The companion gets all cores of the task, unless the site has set a number of threads."""
    of_a_rank = os.environ.get("OMP_NUM_THREADS") == str(resources.cpus_per_rank)
    return {"OMP_NUM_THREADS": str(resources.cpus)} if of_a_rank else {}
