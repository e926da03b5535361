"""The processes of one task on this machine: a child of this process for each rank."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mrt_hpc.launch.placement import Placement
from mrt_hpc.run.access import cache_variables
from mrt_hpc.run.atomic import make_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mrt_hpc.plan.jobs import Job
    from mrt_hpc.run.layout import RunLayout

THREADS_THAT_WAIT = {"OMP_WAIT_POLICY": "passive"}
"""The environment of tasks that may share their cores with other processes. By default the threads of a computation
spin while they wait for each other: where another process has one of two cores, this takes 5 to 20 times as long.
"""
STOP_DEADLINE_S = 30.0
"""Seconds for a child to unwind after SIGTERM, before it is killed."""


@dataclass
class Running:
    """A running attempt at a task, with one child process for each rank."""

    job: Job
    index: int
    attempt: str
    children: list[subprocess.Popen[bytes]]
    gpus: list[str] = field(default_factory=list)

    def exit_codes(self) -> list[int | None]:
        """Of each rank; None while it runs."""
        return [child.poll() for child in self.children]


def start_ranks(
    layout: RunLayout, job: Job, index: int, environment: Mapping[str, str], gpus: Sequence[str] = ()
) -> Running:
    """Start all ranks of one task, each with a log of its own.

    Args:
        layout: of the run.
        job: of the plan.
        index: of the task within the job.
        environment: variables of every rank; the placement of each rank is added.
        gpus: names of the GPUs that the task has taken.
    """
    attempt, ranks = uuid.uuid4().hex[:8], job.resources.ranks
    places = [Placement(rank, ranks, rank, attempt) for rank in range(ranks)]
    return Running(job, index, attempt, [_start(layout, job, index, p, environment) for p in places], list(gpus))


def _start(
    layout: RunLayout, job: Job, index: int, placement: Placement, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    log = layout.logs / f"{job.name}.{index:05d}.{placement.attempt}.rank{placement.rank}.log"
    make_folder(log.parent)  # a user may have removed old logs together with their folder
    with log.open("ab") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", "mrt_hpc.launch.entry", str(layout.root), job.name, str(index)],
            env={**THREADS_THAT_WAIT, **cache_variables(), **environment, **placement.environment()},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )


def task_code(codes: Sequence[int]) -> int:
    """The exit code of a task, by those of its ranks; 128 and the number of the signal that killed one."""
    return max(128 - code if code < 0 else code for code in codes)  # a child killed by signal n ends with -n


def tell_to_stop(task: Running) -> None:
    """Send SIGTERM to the processes of a task that still run."""
    for child in task.children:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)


def stop(task: Running) -> None:
    """Ask a task's processes to end, and kill those that do not end within the deadline."""
    tell_to_stop(task)
    end = time.monotonic() + STOP_DEADLINE_S
    for child in task.children:
        try:
            child.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
