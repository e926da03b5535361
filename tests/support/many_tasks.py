"""A run of thousands of tasks in the middle of its work, with a queue that lists them."""

import time
from pathlib import Path

import numpy as np
import pytest
from canned_queue import CannedRun, canned_run
from submitted import age
from synthetic_run import made_up_metrics

from mrt_hpc.attempt.ledger import record_submission
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.task_state import TaskState

ITERATIONS, SHARDS, BENCHMARKS = 248, 20, 4
SHARD = {"kind": EventKind.PART_COMMITTED, "what": "part", "version": 4, "benchmark": "b0", "shard": 1}


def many_tasks(root: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    """A run of about 5,000 tasks: two thirds of its jobs have ended, one task of twenty runs, the others are queued."""
    problems = "{type: small_world, split: held_out, problems: 20}"
    benchmarks = ", ".join(f"{{name: b{n}, samples: 1, problems: {problems}}}" for n in range(BENCHMARKS))
    trained = (f"schedule.iterations={ITERATIONS}", "schedule.iterations_per_job=31", "resources.inference.tasks=8")
    shards = (f"evaluation.problem_shards={SHARDS}", f"evaluation.benchmarks=[{benchmarks}]")
    run = canned_run(root, monkeypatch, *trained, "evaluation.every=4", *shards)
    random = np.random.default_rng(0)
    for iteration in range(ITERATIONS // 2):
        made_up_metrics(iteration, ITERATIONS, random).write(run.layout.metrics(iteration))
    run.layout.weights_version(ITERATIONS // 2).mkdir(parents=True)
    queued, jobs = [], run.plan.jobs
    for number, job in enumerate(jobs):
        record_submission(run.layout, job.name, str(1000 + number), "cluster")
        done = number < len(jobs) * 2 // 3
        for index in range(job.tasks):
            name = f"{1000 + number}_{index}" if job.tasks > 1 else str(1000 + number)
            if done or index % 20 == 0:
                _attempt(run, job.name, index, f"{name}.0", done=done)
            if not done:
                ends = int(time.time()) + 3600
                runs = f"{name}|RUNNING|{ends}|None|node{index}"
                queued.append(f"{name}|PENDING|N/A|Priority|" if index % 20 else runs)
    age(run.layout)
    run.queue(*queued)
    return run


def _attempt(run: CannedRun, job: str, index: int, attempt: str, *, done: bool) -> None:
    where = {"job": job, "task": index, "rank": 0}
    run.task(job, TaskState.DONE if done else TaskState.RUNNING, index, attempt=attempt)
    events = [
        {"kind": EventKind.TASK_STARTED, **where, "attempt": attempt, "world_size": 1},
        {"kind": EventKind.SERVER_STARTED, "version": 4, "server_pid": 1},
        *({**SHARD, "position": position} for position in range(20)),
        *([{"kind": EventKind.TASK_ENDED, **where, "outcome": "done"}] if done else []),
    ]
    run.events(job, attempt, *events, index=index, begun=time.time() - 600)
