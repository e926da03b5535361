"""A run of thousands of tasks in the middle of its work, with a queue that lists them: its files and canned answers."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurm_texts import squeue_prints
from synthetic_run import Shape, SyntheticRun

from mrt_hpc.attempt.ledger import record_submission
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.events import EventKind, event_file
from mrt_hpc.run.task_state import task_file
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.plan.jobs import Job
    from mrt_hpc.run.layout import RunLayout

ITERATIONS, SHARDS, BENCHMARKS = 248, 20, 4


@dataclass(frozen=True)
class ManyTasks:
    """The directory of a run, and a folder with ``squeue`` and ``sacct``."""

    layout: RunLayout
    commands: Path
    tasks: int
    """The number of its tasks."""


def many_tasks(root: Path, recipe_path: Path) -> ManyTasks:
    """Write a run of about 5,000 tasks. Two thirds of its evaluations have ended, one of twenty runs, the others are
    queued.

    Args:
        root: of the run directory and of the folder of commands.
        recipe_path: of the quickstart.
    """
    recipe = load_recipe(recipe_path, _overrides())
    plan = compile_plan(recipe, LocalSite())
    layout = create_or_open(root / "run", recipe, plan)
    source = SyntheticRun(root / "measured", Shape(ITERATIONS, ITERATIONS, problems=1, paragraphs=1))
    for iteration in range(ITERATIONS // 2):
        source._metrics(iteration).write(layout.metrics(iteration))
    layout.weights_version(ITERATIONS // 2).mkdir(parents=True)
    queued: list[str] = []
    for number, job in enumerate(plan.jobs):
        record_submission(layout, job.name, str(1000 + number), "cluster")
        queued += _job(layout, job, 1000 + number, done=number < len(plan.jobs) * 2 // 3)
    return ManyTasks(layout, _commands(root / "bin", queued), plan.tasks)


def _overrides() -> tuple[str, ...]:
    source = "{type: small_world, split: held_out, problems: 20}"
    benchmarks = ", ".join(f"{{name: b{n}, samples: 1, problems: {source}}}" for n in range(BENCHMARKS))
    return (
        f"schedule.iterations={ITERATIONS}",
        "schedule.iterations_per_job=31",
        "evaluation.every=4",
        f"evaluation.problem_shards={SHARDS}",
        f"evaluation.benchmarks=[{benchmarks}]",
        "resources.inference.tasks=8",
    )


def _job(layout: RunLayout, job: Job, job_id: int, *, done: bool) -> list[str]:
    """Write the records and events of the tasks of a job; returns the lines of squeue for those that are left."""
    lines = []
    for index in range(job.tasks):
        name = f"{job_id}_{index}" if job.tasks > 1 else str(job_id)
        running = not done and index % 20 == 0
        if done or running:
            _attempt(layout, job, index, f"{name}.0", done=done)
        if not done:
            ends = int(time.time()) + 3600
            lines.append(f"{name}|RUNNING|{ends}|None|node{index}" if running else f"{name}|PENDING|N/A|Priority|")
    return lines


def _attempt(layout: RunLayout, job: Job, index: int, attempt: str, *, done: bool) -> None:
    path, where = task_file(layout, job.name, index), {"job": job.name, "task": index, "rank": 0}
    path.parent.mkdir(parents=True, exist_ok=True)
    state = "done" if done else "running"
    record = {"state": state, "attempt": attempt, "message": "", "failures": 0, "time": time.time(), "awaited": []}
    path.write_text(json.dumps(record))
    shard = {"what": "part", "version": 4, "benchmark": "b0", "shard": 1}
    events = [
        {"kind": EventKind.TASK_STARTED, **where, "attempt": attempt, "world_size": 1},
        {"kind": EventKind.SERVER_STARTED, "version": 4, "server_pid": 1},
        *({"kind": EventKind.PART_COMMITTED, "position": position, **shard} for position in range(20)),
        *([{"kind": EventKind.TASK_ENDED, **where, "outcome": "done"}] if done else []),
    ]
    begun = time.time() - 600
    log = event_file(layout.events, job.name, index, 0, attempt)
    log.parent.mkdir(exist_ok=True)
    lines = [{"time": begun + n, "host": f"node{index}", "pid": 7, **event} for n, event in enumerate(events)]
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def _commands(folder: Path, queued: list[str]) -> Path:
    """``squeue`` and ``sacct`` that print what is queued, and write a line for each call to the file ``calls``."""
    folder.mkdir()
    (folder / "queue").write_text(squeue_prints(*queued))
    for name, answer in (("squeue", f"cat {folder}/queue"), ("sacct", "exit 0")):
        (folder / name).write_text(f"#!/bin/sh\necho {name} >> {folder}/calls\n{answer}\n")
        (folder / name).chmod(0o755)
    return folder
