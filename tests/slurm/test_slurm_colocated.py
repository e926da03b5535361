"""A colocated run on a real cluster: one job a segment, whose trainer has two ranks, pushed out once while it works."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from chaos_auditor import audit
from chaos_target import Target
from slurm_cluster import Cluster, wait_for_end
from slurm_recipes import SHRUNK, accounting, options, site_file
from slurm_verifier import HELD_FROM, HELD_S, HELD_UNTIL
from submitted import latest_ids

from mrt_hpc.backends.slurm.queue import QueueState
from mrt_hpc.plan.jobs import read_plan
from mrt_hpc.run.events import EventKind, read_events
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskState
from mrt_hpc.run.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

RANKS = 2
JOB = "segment-000.colocated"
CHANGES = {
    **SHRUNK,
    "schedule.coupling": "colocated",
    "data.verifier": "slurm_verifier:HeldVerifier",
    "evaluation.benchmarks": "[]",
    "grading.time_limit_s": HELD_S,
    "resources.inference.tasks": 1,
    "resources.trainer.ranks": RANKS,
    "resources.trainer.memory_gib": 3,
    "resilience.heartbeat_limit_s": 5.0,
    "sampling.max_tokens": 64,
    "serving.kv_cache_gib": 0.25,
}


@pytest.fixture(scope="module")
def preempted(cluster: Cluster) -> RunLayout:
    """A run that has ended, and was pushed out of its node when it had trained one iteration.

    The answers of the second iteration are judged only after the push, so the run cannot end before it.
    """
    layout = RunLayout(cluster.run_dir("colocated") / "run")
    release = layout.root.parent / "judge"
    submit(cluster, layout, release)
    ids = latest_ids(layout)
    wait_until(lambda: layout.weights_version(1).exists(), reason="weights version 1", deadline_s=300)
    (node,) = {p.environ()["SLURMD_NODENAME"] for p in Target(layout, None, cluster, None).tasks("trainer")}
    wait_for_end({"important": cluster.push_out(node)}, seconds=200)
    release.touch()
    states = wait_for_end(ids, seconds=400)
    print(accounting(ids.values()))
    log = cluster.mrt_hpc("logs", str(layout.root), "--all").stdout
    assert {state.state for state in states.values()} == {QueueState.COMPLETED}, log
    return layout


def submit(cluster: Cluster, layout: RunLayout, release: Path) -> None:
    """Submit the run to the partition that may be preempted."""
    held = {HELD_FROM: str(layout.weights_version(1)), HELD_UNTIL: str(release)}
    environment = {**cluster.site().environment, **held}
    site = site_file(cluster, layout.root, partitions={"cpu": "preempt"}, environment=environment)
    recipe = str(cluster.checkout / "recipes/quickstart.yaml")
    sent = cluster.mrt_hpc("submit", recipe, "--site", str(site), "--run", str(layout.root), *options(CHANGES))
    assert sent.returncode == 0, sent.stderr


def attempts(layout: RunLayout, kind: EventKind) -> list[dict[str, Any]]:
    return [e for e in read_events(layout.events, kind) if e["job"] == JOB]


@pytest.mark.timeout(900)
def test_a_segment_is_one_job_that_comes_back(preempted: RunLayout) -> None:
    assert [job.name for job in read_plan(preempted.plan).jobs] == ["prepare", JOB, "report"]
    started = attempts(preempted, EventKind.TASK_STARTED)
    assert sorted((e["attempt"][-1], e["rank"]) for e in started) == [(n, r) for n in "01" for r in range(RANKS + 1)]
    pushed_out, last = [e["outcome"] for e in attempts(preempted, EventKind.TASK_ENDED) if e["rank"] == 0]
    assert pushed_out in (TaskState.GAVE_BACK, TaskState.STOPPED)
    assert last == TaskState.DONE


def test_nothing_of_it_is_lost_and_nothing_trained_twice(preempted: RunLayout) -> None:
    found = audit(preempted.root)
    assert found.violations == []
    assert (found.steps_redone, found.groups_discarded, found.set_aside) == (0, 0, 0)
