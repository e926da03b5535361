"""The entry point of every array task on every back end: it runs the role for (run directory, job, index).

`run_task` does one attempt, in this order: it ends at once where the task is done; it makes the `Task` from the files
of the run, installs the handlers of signals and claims the task with a heartbeat; `attempt` records that the task runs,
imports the role and calls it; `record_after` makes of its end the new record of the task, which decides whether the
task is queued again: done, failed, asked to stop, nodes given back, or waiting for a job that does not run.
"""

import argparse
import importlib
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from mrt_hpc.attempt.end import STOPPED
from mrt_hpc.attempt.gpus import require_gpus
from mrt_hpc.attempt.notify import fruitless_waits, notify_after, notify_end, patience_of, sign_for
from mrt_hpc.attempt.placement import PARENT, Placement, local_placement
from mrt_hpc.attempt.python_look import no_sampling
from mrt_hpc.attempt.sole_attempt import sole_attempt
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.plan.jobs import Role, read_plan
from mrt_hpc.roles.task.context import Task, turn_of
from mrt_hpc.roles.task.peers import Gone, PeersAwayError, PeersFailedError, never_gone
from mrt_hpc.roles.task.shutdown import Interrupted, RequeueRequested
from mrt_hpc.run.access import follow_access
from mrt_hpc.run.events import EventKind, EventLog, event_file
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.leases import Observer, last_beat
from mrt_hpc.run.process import loading, signal_at_parent_end
from mrt_hpc.run.prompt_files import read_experiment
from mrt_hpc.run.task_state import MOST_RETURNS, TaskRecord, TaskState, read_task, write_task

# -- signals -----------------------------------------------------------------------------------------------------------
# The signal handlers of a task: SIGTERM stops it, SIGUSR2 makes it return its nodes before the time limit.
#
# Slurm sends SIGTERM before it preempts or cancels, and SIGUSR2 some time before the time limit (and, on some sites,
# before a preemption). Both unwind the task, so that servers end and leases are free at once; a role may ask for a safe
# point first (see :mod:`mrt_hpc.roles.task.shutdown`).


UNWIND_DEADLINE_S = 30
"""The seconds that a task has to stop its server and end; then the kernel ends it, in case a library has caught the
exception.
"""
LAST_MOMENT_S = 40.0
"""The seconds before the time limit at which a task that has not reached its safe point must end: a job that Slurm ends
at its limit is not queued again.
"""


def heed_signals(task: Task) -> None:
    """Install the handlers, for the rest of this process."""
    signal.signal(signal.SIGTERM, lambda number, _: _stop(task, number))
    signal.signal(signal.SIGUSR2, lambda _number, _frame: _give_back(task))


def _stop(task: Task, number: int) -> None:
    if task.shutdown.leaving:
        return
    _unwind_in_time()
    if task.shutdown.interrupt(Interrupted(128 + number)):
        signal.alarm(0)  # the sender of the signal ends what takes too long


def _give_back(task: Task) -> None:
    if task.shutdown.leaving:
        return
    _unwind_in_time()
    if task.shutdown.interrupt(
        RequeueRequested("gave the nodes back: the time limit is near, or Slurm needs them for another job")
    ):
        signal.signal(signal.SIGALRM, lambda _number, _frame: _force(task))
        signal.alarm(max(1, int(min(task.seconds_left - LAST_MOMENT_S, 24 * 3600))))


def _force(task: Task) -> None:
    _unwind_in_time()
    task.shutdown.force()


def _unwind_in_time() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(UNWIND_DEADLINE_S)


log = logging.getLogger(__name__)

NEAR_LIMIT_S = 150.0
"""Seconds: a requeue signal that arrives this close to the time limit was sent because of the limit."""


RoleFunction = Callable[["Task"], None]


def run_task(
    run_dir: str,
    job_name: str,
    index: int,
    placement: Placement,
    role: Role | RoleFunction | None,
    gone: Gone = never_gone,
) -> None:
    """Run one process of one array task to its end.

    Args:
        run_dir: the run directory.
        job_name: the job's name in the plan.
        index: the task's index within the job.
        placement: which rank this process is, of which attempt.
        role: the role or the function to run; None for the role that the plan names.
        gone: returns whether jobs have left the queue and will not start again.

    Raises:
        UserError: the role failed in a way that it can explain, or gives its nodes back.
    """
    layout = RunLayout(Path(run_dir))
    follow_access(layout.root)
    if read_task(layout, job_name, index).state is TaskState.DONE:
        return
    task = replace(load_task(layout, job_name, index, placement), gone=gone)
    if task.rank == task.world_size:
        task = replace(task, turn=turn_of(task))
    _set_up_logging(task)
    heed_signals(task)
    sign_for(task)
    earlier = last_beat(layout.heart(job_name, index))
    try:
        with sole_attempt(task) if task.rank == 0 else nullcontext():
            attempt(task, role or task.job.role, placement.began, earlier)
    finally:
        notify_after(task)
        if task.job.role is Role.REPORT:
            notify_end(layout, job_name, index)
        task.turn.remove()


def attempt(
    task: Task, role: Role | RoleFunction, began: float | None = None, earlier: tuple[str, float] | None = None
) -> None:
    """Run the role, and record its outcome. An attempt of a library to end the process counts as a failure, whatever
    its exit code.

    Args:
        task: the attempt.
        role: the role or the function to run.
        began: when the job that the attempt runs in started, seconds since the epoch; None where that is not known.
        earlier: the attempt before this one that was lost, and the time of its last heartbeat.

    Raises:
        BaseException: what the role raised.
    """
    _say_started(task, began, earlier)
    task.shutdown.record = lambda ending: _record(task, ending)
    try:
        function = role_function(task, role) if isinstance(role, Role) else role
        function(task)
    except BaseException as error:
        if isinstance(error, SystemExit) and not isinstance(error, Interrupted):
            failure = UserError(f"a library ended the process: {error!r}", exit_code=ExitCode.RETRYABLE)
            _say_ended(task, failure)
            raise failure from error
        _say_ended(task, error)
        raise
    _say_ended(task, None)


def load_task(layout: RunLayout, job_name: str, index: int, placement: Placement) -> Task:
    """Read from the run directory what the role needs."""
    plan = read_plan(layout.plan)
    job = plan.job(job_name)
    recipe = read_experiment(layout)
    patience = patience_of(layout, job_name, recipe.resilience.full_disk_minutes)
    return Task(
        layout=layout,
        experiment=recipe,
        plan=plan,
        job=job,
        index=index,
        rank=placement.rank,
        world_size=placement.world_size,
        local_rank=placement.local_rank,
        attempt=placement.attempt,
        events=EventLog(event_file(layout.events, job_name, index, placement.rank, placement.attempt), patience),
        observer=Observer(recipe.resilience.heartbeat_limit_s),
        time_left_s=placement.time_left_s,
    )


def record_after(task: Task, error: BaseException | None, running: TaskRecord) -> TaskRecord:
    """Return the record of a task whose attempt has ended."""
    progressed = task.has_progressed
    unfailed = replace(running, failures=0, returns=0) if progressed else running
    if error is None:
        return replace(unfailed, state=TaskState.DONE, message="")
    if isinstance(error, RequeueRequested) and not _fruitless(task, progressed):
        most = MOST_RETURNS if _waited(task) else _most_in_vain(task)
        return running.returned(TaskState.GAVE_BACK, error.why, most, progressed=progressed)
    if isinstance(error, PeersAwayError):
        waits, finished = fruitless_waits(task, running)
        left = replace(unfailed, state=TaskState.GAVE_BACK, message=error.message(), awaited=error.awaited)
        left = replace(left, waits=waits, finished=finished)
        return left if waits <= MOST_RETURNS else left.too_often(waits)
    if isinstance(error, UserError) and error.exit_code is ExitCode.GIVE_BACK:
        return running.returned(TaskState.GAVE_BACK, error.message(), MOST_RETURNS, progressed=progressed)
    if isinstance(error, Interrupted | KeyboardInterrupt) and not isinstance(error, RequeueRequested):
        return replace(unfailed, state=TaskState.STOPPED, message=STOPPED)
    message, exit_code = _explained(task, error)
    awaited = error.awaited if isinstance(error, PeersFailedError) else ()
    failed = running.failed(message, exit_code, task.experiment.resilience.retries, progressed=progressed)
    return replace(failed, awaited=awaited)


def _fruitless(task: Task, progressed: bool) -> bool:
    """Whether the time limit came before the task finished anything, although it worked all the time: a second attempt
    would end in the same way.
    """
    return task.rank == 0 and not progressed and not _waited(task) and task.seconds_left < NEAR_LIMIT_S


def _waited(task: Task) -> bool:
    """Whether the task waited for others when it was asked to end, by its first rank; a colocated one waits for its own
    samples.
    """
    return task.rank != 0 or (task.shutdown.found_waiting and task.job.role is not Role.COLOCATED)


def _most_in_vain(task: Task) -> int:
    """How many attempts in a row may be asked to return their nodes while they work, and finish nothing: with what is
    known of the time limit these were no failures, but that may be wrong.
    """
    return 2 * max(1, task.experiment.resilience.retries)


def _explained(task: Task, error: BaseException) -> tuple[str, ExitCode]:
    if isinstance(error, RequeueRequested):
        limit = f"resources.{task.job.role.section}.time_limit_minutes"
        return f"the time limit came before anything was finished\n  next:     raise {limit}", ExitCode.RETRYABLE
    if isinstance(error, UserError):
        return error.message(), error.exit_code
    return _unexpected(task, error).message(), ExitCode.RETRYABLE


def _unexpected(task: Task, error: BaseException) -> UserError:
    """Describe an error that the package does not expect: its type, its message and where it was raised. The log has
    the whole traceback.
    """
    what = "".join(traceback.format_exception_only(error)).strip()
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name}" if frames else None
    advice = f"mrt-hpc logs {task.layout.word} {task.job.role} shows the log with the whole traceback"
    return UserError(what, where=where, advice=advice)


def _say_started(task: Task, began: float | None, earlier: tuple[str, float] | None) -> None:
    if task.rank == 0:
        before = read_task(task.layout, task.job.name, task.index)
        running = replace(before, state=TaskState.RUNNING, attempt=task.attempt, message="", awaited=())
        task.retrying(lambda: write_task(task.layout, task.job.name, task.index, running), "the state of the task")
    where = {"job": task.job.name, "task": task.index, "rank": task.rank}
    # the other ranks may see the heart of the first one already
    lost = None if earlier is None or task.rank else {"attempt": earlier[0], "until": earlier[1]}
    started = {"attempt": task.attempt, "world_size": task.world_size, "began": began, "earlier": lost}
    task.events.emit(EventKind.TASK_STARTED, **where, **started)


def _say_ended(task: Task, error: BaseException | None) -> None:
    where = {"job": task.job.name, "task": task.index, "rank": task.rank}
    task.events.emit(EventKind.TASK_ENDED, **where, outcome=_record(task, error).state.value)


def _record(task: Task, error: BaseException | None) -> TaskRecord:
    """Record how an attempt ends, and return the record. The first record of an attempt is kept: a rank that fails
    because another rank has failed does not replace it.
    """
    before = read_task(task.layout, task.job.name, task.index)
    after = record_after(task, error, before)
    mine = before.attempt == task.attempt and before.state is TaskState.RUNNING
    failed = after.state in (TaskState.FAILED, TaskState.RETRYING)
    if mine and (task.rank == 0 or failed):
        task.retrying(lambda: write_task(task.layout, task.job.name, task.index, after), "the state of the task")
    return after


def role_function(task: Task, role: Role) -> RoleFunction:
    """The function of a role. Its module is imported here, within the attempt, so that a task loads only the libraries
    of its own role, and a failing import is recorded like any other failure. The task's GPUs, and whether its vLLM
    needs some, are checked before.
    """
    require_gpus(task.job)
    serves = any(task.job.does(role) for role in (Role.PREPARE, Role.INFERENCE, Role.EVALUATION))
    if serves and (error := no_sampling(task.experiment)) is not None:
        raise error
    return _imported(role)


def _imported(role: Role) -> RoleFunction:
    """The function of a role, from its module.

    Raises:
        UserError: a package that it imports is not installed, or this node cannot see it.
    """
    try:
        room = "attempt" if role is Role.COLOCATED else "roles"  # a colocated task starts another by this module
        with loading():
            run: RoleFunction = importlib.import_module(f"mrt_hpc.{room}.{role.value}").run
        return run
    except ModuleNotFoundError as error:
        raise UserError(
            f"the Python of this task has no package {error.name}",
            value=sys.executable,
            where=f"{socket.gethostname()}, imported by role {role.value}",
            expected="the Python of an environment that env/setup made, or an image",
            advice="name such a Python as python in the site profile, or an image of `mrt-hpc container build` as "
            "container.image; mrt-hpc doctor --site SITE --on-node checks it. Then mrt-hpc submit RUN",
            exit_code=ExitCode.RETRYABLE,  # another node may see it
        ) from error


def _set_up_logging(task: Task) -> None:
    process = f"{socket.gethostname()} {task.job.name}[{task.index}].{task.rank}"
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {process} %(levelname)s %(message)s", force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every look at a server's health
    for silenced in ("HF_HUB_DISABLE_PROGRESS_BARS", "TQDM_DISABLE"):  # bars of libraries hide the lines of the role
        os.environ.setdefault(silenced, "1")


def stop_with_parent() -> None:
    """Have the kernel send SIGTERM when the process that started this one ends, for any reason."""
    signal_at_parent_end(signal.SIGTERM)
    if os.getppid() != int(os.environ[PARENT]):  # it died before the call above
        raise Interrupted(128 + signal.SIGTERM)


def main() -> int:
    """Run one process of a task as a child of the local backend, or the companion of a colocated task as a child of
    the first rank; the exit code says whether running again may help.
    """
    parser = argparse.ArgumentParser(prog="mrt_hpc.attempt.entry", description=main.__doc__)
    parser.add_argument("run_dir")
    parser.add_argument("job")
    parser.add_argument("index", type=int)
    parser.add_argument("role", nargs="?", help="of the companion of a colocated task; else the plan says it")
    arguments = parser.parse_args()
    # Ctrl-C reaches the whole terminal group; the parent decides and sends SIGTERM
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop_with_parent()
    try:
        role = None if arguments.role is None else Role(arguments.role)
        run_task(arguments.run_dir, arguments.job, arguments.index, local_placement(), role)
    except UserError as error:
        print(error.message(), file=sys.stderr)
        return int(error.exit_code)
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
