"""A colocated run on a real cluster: a segment is one job, which is preempted while it samples, and comes back."""

from __future__ import annotations

from collections import Counter

import pytest
from slurm_cluster import Cluster, wait_for_end
from slurm_recipes import SHRUNK, accounting, options, site_file
from submitted import latest_ids

from mrt_hpc.launch.slurm.queue import QueueState
from mrt_hpc.run.events import EventKind, read_events
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskState, read_task
from mrt_hpc.run.waiting import wait_until

JOB = "segment-000.colocated"
CHANGES = {
    **{field: value for field, value in SHRUNK.items() if not field.startswith("evaluation.")},
    "schedule.coupling": "colocated",
    "evaluation.benchmarks": "[]",
    "resources.inference.tasks": 1,
    "resources.inference.cpus": 2,
    "resources.trainer.ranks": 1,
    "resources.trainer.cpus": 2,
}


@pytest.mark.timeout(900)
def test_a_segment_is_one_job_and_comes_back_after_a_preemption(cluster: Cluster) -> None:
    run = cluster.run_dir("colocated") / "quickstart"
    site = site_file(cluster, run, partitions={"cpu": "preempt"})
    recipe = str(cluster.checkout / "recipes/quickstart.yaml")
    submitted = cluster.mrt_hpc("submit", recipe, "--site", str(site), "--run", str(run), *options(CHANGES))
    assert submitted.returncode == 0, submitted.stderr
    layout = RunLayout(run)
    ids = latest_ids(layout)
    assert set(ids) == {"prepare", JOB, "report"}

    wait_until(lambda: bool(read_events(layout.events, EventKind.SERVER_STARTED)), reason="a server", deadline_s=300)
    node = cluster.as_user("squeue", "--noheader", f"--jobs={ids[JOB]}", "--format=%N").stdout.strip()
    important = cluster.push_out(node)
    states = wait_for_end({**ids, "important": important}, seconds=700)
    print(accounting(ids.values()))
    logs = cluster.mrt_hpc("logs", str(run), "--all").stdout
    assert {state.state for state in states.values()} == {QueueState.COMPLETED}, logs
    record = read_task(layout, JOB, 0)
    assert (record.state, record.failures) == (TaskState.DONE, 0), logs
    check_events(layout)


def check_events(layout: RunLayout) -> None:
    """The first attempt of both processes was stopped; nothing was sampled or trained twice."""
    events = read_events(layout.events)
    ends = Counter(e["outcome"] for e in events if e["kind"] == EventKind.TASK_ENDED and e.get("job") == JOB)
    assert ends[TaskState.DONE] == 2
    assert set(ends) <= {TaskState.DONE, TaskState.STOPPED, TaskState.GAVE_BACK}
    began = [e for e in events if e["kind"] == EventKind.TASK_STARTED and e["job"] == JOB]
    assert Counter(e["rank"] for e in began) == {0: 2, 1: 2}
    assert [e["iteration"] for e in events if e["kind"] == EventKind.STEP] == [0, 1]
    committed = Counter((e["iteration"], e["position"]) for e in events if e["kind"] == EventKind.SHARD_COMMITTED)
    assert max(committed.values()) == 1
