"""The entry point of every array task, whoever started it: from (run directory, job, index) to the role that does the
work.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import logging
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrt_hpc.launch.placement import PARENT, Placement, local_placement
from mrt_hpc.plan.model import Plan, Role
from mrt_hpc.recipe.errors import ExitCode, UserError
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.roles.task import Task
from mrt_hpc.run.events import EventKind, EventLog
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.tasks import TaskState, read_task, write_task

if TYPE_CHECKING:
    from types import FrameType

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
UNWIND_DEADLINE_S = 30
"""For a task to stop its server and leave, after it was told to."""


class Stopped(SystemExit):
    """The task was told to stop; it unwinds, and running it again goes on."""


def run_task(run_dir: str, job_name: str, index: int, placement: Placement) -> None:
    """Run one process of one array task to its end.

    Args:
        run_dir: the run directory.
        job_name: the job's name in the plan.
        index: the task's index within the job.
        placement: which rank this process is, of which attempt.

    Raises:
        UserError: the role failed in a way that it can explain.
    """
    layout = RunLayout(Path(run_dir))
    if read_task(layout, job_name, index).state is TaskState.DONE:
        return
    task = load_task(layout, job_name, index, placement)
    _set_up_logging(task)
    first = placement.rank == 0
    if first:
        write_task(layout, job_name, index, TaskState.RUNNING, attempt=placement.attempt)
    task.events.emit(EventKind.TASK_STARTED, job=job_name, task=index, rank=placement.rank, attempt=placement.attempt)
    state, message = TaskState.FAILED, ""
    try:
        _role(task.job.role).run(task)
        state = TaskState.DONE
    except (SystemExit, KeyboardInterrupt):
        state = TaskState.STOPPED
        raise
    except UserError as error:
        message = error.message()
        raise
    except BaseException:
        message = traceback.format_exc(limit=-3)
        raise
    finally:
        task.events.emit(EventKind.TASK_ENDED, job=job_name, task=index, rank=placement.rank, outcome=state.value)
        if first or state is TaskState.FAILED:
            write_task(layout, job_name, index, state, attempt=placement.attempt, message=message)


def load_task(layout: RunLayout, job_name: str, index: int, placement: Placement) -> Task:
    """What the role is given, read from the run directory."""
    plan = Plan.model_validate(json.loads(layout.plan.read_text()))
    job = plan.job(job_name)
    name = f"{job_name}.{index:05d}.{placement.rank}.{placement.attempt}.jsonl"
    return Task(
        layout=layout,
        recipe=read_recipe_lock(layout.recipe_lock),
        plan=plan,
        job=job,
        index=index,
        rank=placement.rank,
        world_size=placement.world_size,
        local_rank=placement.local_rank,
        attempt=placement.attempt,
        events=EventLog(layout.events / name),
    )


def _role(role: Role) -> Any:
    """The module of a role; imported here only, so that nobody pays for another role's libraries."""
    return importlib.import_module(f"mrt_hpc.roles.{role.value}")


def _set_up_logging(task: Task) -> None:
    process = f"{socket.gethostname()} {task.job.name}[{task.index}].{task.rank}"
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {process} %(levelname)s %(message)s", force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every look at a server's health


def _stop(signal_number: int, _frame: FrameType | None) -> None:
    """Unwind; and should some library swallow the exception, let the kernel end the process after the deadline."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(UNWIND_DEADLINE_S)
    raise Stopped(128 + signal_number)


def stop_with_parent() -> None:
    """Have the kernel send SIGTERM when the process that started this one dies, by whatever death."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(os.environ[PARENT]):  # it died before the call above
        raise Stopped(128 + signal.SIGTERM)


def main() -> int:
    """Run one task as a child of the local backend; the exit code tells whether running again may help."""
    parser = argparse.ArgumentParser(prog="mrt_hpc.launch.task", description=main.__doc__)
    parser.add_argument("run_dir")
    parser.add_argument("job")
    parser.add_argument("index", type=int)
    arguments = parser.parse_args()
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole terminal group; the parent decides and sends SIGTERM
    signal.signal(signal.SIGTERM, _stop)
    stop_with_parent()
    try:
        run_task(arguments.run_dir, arguments.job, arguments.index, local_placement())
    except UserError as error:
        print(error.message(), file=sys.stderr)
        return int(error.exit_code)
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
