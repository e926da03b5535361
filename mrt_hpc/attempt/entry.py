"""The entry point of every array task on every back end: it runs the role for (run directory, job, index). `run_task`
does one attempt under a claim with a heartbeat; `next_state` decides whether the task is queued again.
"""

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

from mrt_hpc.attempt.gpus import require_gpus
from mrt_hpc.attempt.next_state import Ending, EndKind, next_state
from mrt_hpc.attempt.placement import PARENT, Placement, local_placement
from mrt_hpc.attempt.python_look import no_sampling
from mrt_hpc.attempt.signals import heed_signals
from mrt_hpc.attempt.sole_attempt import sole_attempt
from mrt_hpc.errors import Advice, ExitCode, UserError
from mrt_hpc.plan.jobs import Role, read_plan
from mrt_hpc.roles.task.context import Task, turn_of
from mrt_hpc.roles.task.peers import Gone, PeersAwayError, PeersFailedError, never_gone
from mrt_hpc.roles.task.shutdown import Interrupted, RequeueRequested
from mrt_hpc.run.access import follow_access
from mrt_hpc.run.event_stream import finished_parts, has_progressed
from mrt_hpc.run.events import EventKind, EventLog, event_file
from mrt_hpc.run.layout import AGAIN, RunLayout
from mrt_hpc.run.leases import Observer, last_beat
from mrt_hpc.run.manifest import is_of_the_filesystem
from mrt_hpc.run.process import pause_collector, signal_at_parent_end
from mrt_hpc.run.prompt_files import read_experiment
from mrt_hpc.run.retries import RetryPolicy, filesystem_advice
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task, write_task

log = logging.getLogger(__name__)

RoleFunction = Callable[["Task"], None]
NO_BARS = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1"}  # bars of libraries hide the lines of the role
NEAR_LIMIT_S = 150.0
"""A requeue signal that arrives within so many seconds of the time limit was sent because of the limit."""


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
        role: None for the role that the plan names.
        gone: returns whether jobs have left the queue for good.

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
    earlier = last_beat(layout.heart(job_name, index))
    try:
        with sole_attempt(task) if task.rank == 0 else nullcontext():
            attempt(task, role or task.job.role, placement.began, earlier)
    finally:
        task.turn.remove()


def attempt(
    task: Task, role: Role | RoleFunction, began: float | None = None, earlier: tuple[str, float] | None = None
) -> None:
    """Run the role, record its outcome, and raise its error. An attempt of a library to end the process counts as a
    failure, whatever its exit code. ``began`` is when the attempt's job started, seconds since the epoch; ``earlier``
    the attempt before this one that was lost, and the time of its last heartbeat.
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
    plan = read_plan(layout.plan)
    job = plan.job(job_name)
    recipe = read_experiment(layout)
    patience = RetryPolicy(full_limit_s=recipe.resilience.full_disk_minutes * 60)
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


def ending_of(task: Task, error: BaseException | None) -> Ending:
    """An attempt's end, as the process of its role sees it."""
    progressed = has_progressed(task.layout.events, task.job.name, task.index, task.attempt)
    end = Ending(EndKind.DONE, task.attempt, progressed=progressed, retries=task.experiment.resilience.retries)
    match error:
        case None:
            return end
        case RequeueRequested():
            # the first rank knows whether the task waits for others; a colocated one waits for its own samples
            waited = task.rank != 0 or (task.shutdown.found_waiting and task.job.role is not Role.COLOCATED)
            limit = f"resources.{task.job.role.section}.time_limit_minutes" if task.seconds_left < NEAR_LIMIT_S else ""
            return replace(end, kind=EndKind.RETURNED, message=error.why, worked=not waited, near_limit=limit)
        case Interrupted() | KeyboardInterrupt():
            return replace(end, kind=EndKind.STOPPED)
    failure = error if isinstance(error, UserError) else _unexpected_error(task, error)
    kind = {ExitCode.GIVE_BACK: EndKind.RETURNED, ExitCode.FATAL: EndKind.FATAL}.get(failure.exit_code, EndKind.FAILED)
    awaited = error.awaited if isinstance(error, PeersAwayError | PeersFailedError) else ()
    finished = _finished_parts(task) if isinstance(error, PeersAwayError) else 0
    return replace(end, kind=kind, message=failure.message(), awaited=awaited, finished=finished)


def _finished_parts(task: Task) -> int:
    peers = (Role.INFERENCE, Role.TRAINER)
    jobs = [job.name for job in task.plan.jobs if job.segment == task.job.segment and any(map(job.does, peers))]
    return finished_parts(task.layout.events, jobs)


def _unexpected_error(task: Task, error: BaseException) -> UserError:
    """Describe an error that the package does not expect; the log has the whole traceback."""
    what = "".join(traceback.format_exception_only(error)).strip()
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name}" if frames else None
    advice: str = Advice(
        "mrt-hpc logs {run} {role} shows the log with the whole traceback", run=task.layout.root, role=task.job.role
    )
    if isinstance(error, OSError) and error.filename is not None and is_of_the_filesystem(error):
        advice = filesystem_advice(error, AGAIN)
    return UserError(what, where=where, advice=advice, exit_code=ExitCode.RETRYABLE)


def _say_started(task: Task, began: float | None, earlier: tuple[str, float] | None) -> None:
    if task.rank == 0:
        before = read_task(task.layout, task.job.name, task.index)
        why = before.message if before.failures else ""  # until this attempt ends, it says why it is one more
        running = replace(before, state=TaskState.RUNNING, attempt=task.attempt, message=why, awaited=())
        task.retry(lambda: write_task(task.layout, task.job.name, task.index, running), "the state of the task")
    where = {"job": task.job.name, "task": task.index, "rank": task.rank}
    # the other ranks may see the heart of the first one already
    lost = None if earlier is None or task.rank else {"attempt": earlier[0], "until": earlier[1]}
    started = {"attempt": task.attempt, "world_size": task.world_size, "began": began, "earlier": lost}
    task.events.emit(EventKind.TASK_STARTED, **where, **started)


def _say_ended(task: Task, error: BaseException | None) -> None:
    where = {"job": task.job.name, "task": task.index, "rank": task.rank}
    task.events.emit(EventKind.TASK_ENDED, **where, outcome=_record(task, error).state.value)


def _record(task: Task, error: BaseException | None) -> TaskRecord:
    """Record how an attempt ends. Its first record is kept: a rank that fails because another rank has failed does not
    replace it.
    """
    before = read_task(task.layout, task.job.name, task.index)
    running = replace(before, state=TaskState.RUNNING, attempt=task.attempt)
    after = next_state(running, ending_of(task, error))
    if before == running and (task.rank == 0 or after.state in (TaskState.FAILED, TaskState.RETRYING)):
        task.retry(lambda: write_task(task.layout, task.job.name, task.index, after), "the state of the task")
    return after


def role_function(task: Task, role: Role) -> RoleFunction:
    """A role's module is imported within the attempt, so that a task loads only the libraries of its own role, and a
    failing import is recorded like any other failure.
    """
    require_gpus(task.job)
    serves = any(task.job.does(role) for role in (Role.PREPARE, Role.INFERENCE, Role.EVALUATION))
    if serves and (error := no_sampling(task.experiment)) is not None:
        raise error
    return _import_role(role)


def _import_role(role: Role) -> RoleFunction:
    try:
        room = "attempt" if role is Role.COLOCATED else "roles"  # a colocated task starts another by this module
        with pause_collector():
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
    for name, value in NO_BARS.items():
        os.environ.setdefault(name, value)


def stop_with_parent() -> None:
    """Have the kernel send SIGTERM to this process when its parent ends, for any reason."""
    signal_at_parent_end(signal.SIGTERM)
    if os.getppid() != int(os.environ[PARENT]):  # it died before the call above
        raise Interrupted(128 + signal.SIGTERM)


def main() -> int:
    """Run one process of a task, as a child of the local backend or of the first rank of a colocated task. Its exit
    code says whether running again may help.
    """
    run_dir, job, index, *role = sys.argv[1:]  # the role of the companion of a colocated task; else the plan says it
    # Ctrl-C reaches the whole terminal group; the parent decides and sends SIGTERM
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop_with_parent()
    try:
        run_task(run_dir, job, int(index), local_placement(), Role(role[0]) if role else None)
    except UserError as error:
        print(error.message(), file=sys.stderr)
        return int(error.exit_code)
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
