"""A cluster with room for one role at a time: those who wait give their nodes back, and the run still finishes."""

from __future__ import annotations

import pytest
from slurm_cluster import Cluster, wait_for_end
from slurm_recipes import SHRUNK, accounting, options, site_file

from mrt_hpc.launch.ledger import latest_ids
from mrt_hpc.launch.slurm_queue import QueueState
from mrt_hpc.run.events import EventKind, read_events
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.tasks import TaskState

WHOLE_NODE = 8
"""Processors that a node of the tests' cluster claims."""
CHANGES = {
    **SHRUNK,
    "evaluation.benchmarks": "[]",
    "resources.inference.tasks": 1,
    "resources.trainer.ranks": 1,
    "resources.inference.cpus": WHOLE_NODE,
    "resources.trainer.cpus": WHOLE_NODE,
    "resilience.wait_limit_minutes": 0.15,
    "resilience.heartbeat_limit_s": 5.0,
}


@pytest.mark.timeout(1200)
def test_a_run_finishes_with_room_for_one_role_at_a_time(cluster: Cluster) -> None:
    run = cluster.run_dir("one") / "run"
    node = cluster.as_user("sinfo", "-h", "-N", "-p", "cpu", "-o", "%N").stdout.split()[0]
    site = site_file(cluster, run, sbatch={"nodelist": node}, environment=threads(cluster))
    recipe = str(cluster.checkout / "recipes/quickstart.yaml")
    submitted = cluster.mrt_hpc("submit", recipe, "--site", str(site), "--run", str(run), *options(CHANGES))
    assert submitted.returncode == 0, submitted.stderr
    layout = RunLayout(run)
    ids = latest_ids(layout)
    states = wait_for_end(ids, seconds=1100)
    print(accounting(ids.values()))
    assert {state.state for state in states.values()} == {QueueState.COMPLETED}
    assert layout.report.is_file()
    check_turns(layout)


def threads(cluster: Cluster) -> dict[str, str]:
    """The machine has fewer cores than the node claims."""
    return {**cluster.site().environment, "OMP_NUM_THREADS": "2"}


def check_turns(layout: RunLayout) -> None:
    """Both roles gave their node back at least once, and said so; nothing was sampled or computed twice."""
    events = read_events(layout.events)
    gave_back = {e["job"] for e in events if e["kind"] == EventKind.TASK_ENDED and e["outcome"] == TaskState.GAVE_BACK}
    assert gave_back == {"segment-000.inference", "segment-000.trainer"}
    steps = [e["iteration"] for e in events if e["kind"] == EventKind.STEP]
    assert steps == [0, 1]
    assert not [e for e in events if e["kind"] == EventKind.SHARD_DISCARDED]
