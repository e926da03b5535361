"""Tasks for the tests of the Slurm backend: each does next to nothing and leaves a line that says what it was."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from mrt_hpc.launch.slurm_environment import SlurmTask
from mrt_hpc.launch.slurm_queue import requeue


def _note(run_dir: str, what: str, job_name: str) -> SlurmTask:
    task = SlurmTask.from_environment()
    assert task is not None
    line = {
        "what": what,
        "job": job_name,
        "index": task.array_index,
        "rank": task.rank,
        "world_size": task.world_size,
        "node": task.node,
        "restarts": task.restarts,
        "task": task.task_id,
        "time": time.time(),
        "uid": os.getuid(),
        "container": os.environ.get("APPTAINER_CONTAINER"),
    }
    with (Path(run_dir) / "notes.jsonl").open("a") as stream:
        stream.write(json.dumps(line) + "\n")
    return task


def brief(run_dir: str, job_name: str, index: int) -> None:
    """Start, take a second (long enough for tasks to overlap), end."""
    task = _note(run_dir, "start", job_name)
    assert task.array_index == index
    time.sleep(1)
    _note(run_dir, "end", job_name)


def fails_by_name(run_dir: str, job_name: str, _index: int) -> None:
    """A job whose name ends in ``broken`` exits with 2."""
    _note(run_dir, "start", job_name)
    if job_name.endswith("broken"):
        sys.exit(2)


def long(run_dir: str, job_name: str, _index: int) -> None:
    """Still running when the test cancels it."""
    _note(run_dir, "start", job_name)
    time.sleep(600)


def comes_back(run_dir: str, job_name: str, _index: int) -> None:
    """The first attempt waits for its end, or (named ``requeues``) gives its node back; later ones end well.

    Jobs whose name starts with ``after`` end well at once.
    """
    task = _note(run_dir, "start", job_name)
    if task.restarts == 0 and not job_name.startswith("after"):
        if job_name == "requeues":
            requeue(task)
        time.sleep(600)
    _note(run_dir, "end", job_name)


def greedy(run_dir: str, job_name: str, _index: int) -> None:
    """Touches more memory than any test's job asks for."""
    _note(run_dir, "start", job_name)
    held = bytearray(700 * 2**20)
    time.sleep(60)
    del held
