"""The quickstart recipe, shrunk, on a real cluster to its report, with room for one role at a time: those who wait give
their nodes back. (Two inference tasks, a trainer of two ranks and faults besides: ``tests/chaos``.)
"""

from __future__ import annotations

import json

import pytest
from slurm_cluster import Cluster, wait_for_end
from slurm_recipes import SHRUNK, accounting, options, site_file
from submitted import latest_ids

from mrt_hpc.attempt.ledger import submissions
from mrt_hpc.backends.slurm.parameters import queue_name
from mrt_hpc.backends.slurm.queue import QueueState
from mrt_hpc.run.events import EventKind, read_events
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskState

WHOLE_NODE = 8
"""Processors that a node of the tests' cluster claims."""
CHANGES = {
    **SHRUNK,
    "resources.inference.tasks": 1,
    "resources.trainer.ranks": 1,
    "resources.inference.cpus": WHOLE_NODE,
    "resources.trainer.cpus": WHOLE_NODE,
    "resources.evaluation.cpus": WHOLE_NODE,
    "resilience.wait_limit_minutes": 0.15,
    "resilience.heartbeat_limit_s": 5.0,
}


@pytest.mark.timeout(1500)
def test_a_run_finishes_with_room_for_one_role_at_a_time(cluster: Cluster) -> None:
    run = cluster.run_dir("whole") / "quickstart"
    node = cluster.as_user("sinfo", "-h", "-N", "-p", "cpu", "-o", "%N").stdout.split()[0]
    site = site_file(cluster, run, sbatch={"nodelist": node}, environment=threads(cluster))
    recipe = str(cluster.checkout / "recipes/quickstart.yaml")
    arguments = [recipe, "--site", str(site), "--run", str(run), *options(CHANGES)]

    planned = cluster.mrt_hpc("plan", *arguments, "--sbatch")
    assert planned.returncode == 0, planned.stderr
    submitted = cluster.mrt_hpc("submit", *arguments)
    assert submitted.returncode == 0, submitted.stderr
    layout = RunLayout(run)
    ids = latest_ids(layout)
    assert len(submissions(layout)) == len(ids) == 5
    check_planned_texts(planned.stdout, layout, ids)
    again = cluster.mrt_hpc("submit", *arguments)
    assert "0 job(s) submitted" in again.stdout, again.stderr

    states = wait_for_end(ids, seconds=1300)
    print(accounting(ids.values()))
    assert {state.state for state in states.values()} == {QueueState.COMPLETED}, logs(cluster, run)
    check_result(cluster, layout)
    check_turns(layout)


def logs(cluster: Cluster, run: object) -> str:
    return cluster.mrt_hpc("logs", str(run), "--all").stdout


def threads(cluster: Cluster) -> dict[str, str]:
    """The machine has fewer cores than the node claims."""
    return {**cluster.site().environment, "OMP_NUM_THREADS": "2"}


def check_planned_texts(planned: str, layout: RunLayout, ids: dict[str, str]) -> None:
    """What `plan --sbatch` printed is what was submitted, placeholders apart."""
    texts = dict(part.split("\n", 1) for part in planned.split("# ---- ")[1:])
    unmade = RunLayout(layout.root / "unmade" / layout.root.name)
    assert set(texts) == set(ids)
    for name, text in texts.items():
        for other, job_id in ids.items():
            text = text.replace(f"{{{other}}}", job_id)
        text = text.replace(f"{queue_name(name, unmade)}\n", f"{queue_name(name, layout)}\n", 1)
        submitted = layout.logs / name / f"{ids[name]}_submission.sh"
        assert text.rstrip("\n") == submitted.read_text().rstrip("\n")


def check_result(cluster: Cluster, layout: RunLayout) -> None:
    assert layout.report.is_file()
    assert layout.report.owner() == cluster.user
    for iteration in range(2):
        assert json.loads(layout.metrics(iteration).read_text())["reward_mean"] >= 0
    status = cluster.mrt_hpc("status", str(layout.root))
    assert status.returncode == 0, status.stderr
    assert "2 done" in status.stdout, "the two evaluations"
    assert str(layout.report) in status.stdout


def check_turns(layout: RunLayout) -> None:
    """Both roles gave their node back at least once, and said so; nothing was sampled or computed twice."""
    events = read_events(layout.events)
    gave_back = {e["job"] for e in events if e["kind"] == EventKind.TASK_ENDED and e["outcome"] == TaskState.GAVE_BACK}
    assert gave_back == {"segment-000.inference", "segment-000.trainer"}
    steps = [e["iteration"] for e in events if e["kind"] == EventKind.STEP]
    assert steps == [0, 1]
    assert not [e for e in events if e["kind"] == EventKind.SHARD_DISCARDED]
