"""Preemption on real clusters: by partition and by QOS, with and without the site's ``preempt_send_user_signal``, and
on a site that cancels what it pushes out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_cluster import Cluster, notes, wait_for_end
from slurm_lives import await_start, run_directory, starts
from slurm_plans import job, plan

from mrt_hpc.attempt.ledger import record_submission
from mrt_hpc.backends.queued_jobs import live_jobs
from mrt_hpc.backends.slurm.queue import QueueState
from mrt_hpc.run.task_state import TaskState, read_task

if TYPE_CHECKING:
    from mrt_hpc.run.layout import RunLayout

THE_PLAN = plan(job("done"), job("pushed"), job("saves"), job("after-pushed", ok=("done", "pushed", "saves")))

THE_TAIL = {"pushed", "saves", "after-pushed"}


def pushed_out(cluster: Cluster, name: str, **site: object) -> tuple[RunLayout, dict[str, str]]:
    """A run, of which two tasks at work were pushed out; its directory, and all ids."""
    layout = run_directory(cluster, name, THE_PLAN)
    ids = cluster.submitted(THE_PLAN, layout.root, "lives", site=cluster.site(**site))
    await_start(layout, "pushed", "saves")
    wait_for_end({"done": ids["done"]})  # else it is pushed out as well, while it leaves
    nodes = {str(note["node"]) for note in notes(layout.root) if note["job"] in ("pushed", "saves")}
    return layout, ids | {f"important-{node}": cluster.push_out(node) for node in nodes}


def check_return(layout: RunLayout, ids: dict[str, str]) -> None:
    """Both left in the grace time, one saved something first, and both came back; neither counts as failed."""
    states = wait_for_end(ids, seconds=300)
    assert {state.state for state in states.values()} == {QueueState.COMPLETED}
    assert starts(layout) == {"done": 1, "pushed": 2, "saves": 2, "after-pushed": 1}
    assert [note["restarts"] for note in notes(layout.root) if note["what"] == "saved"] == [0]
    records = [read_task(layout, name, 0) for name in ("pushed", "saves")]
    assert {(record.state, record.failures) for record in records} == {(TaskState.DONE, 0)}


def test_preemption_by_partition(cluster: Cluster) -> None:
    check_return(*pushed_out(cluster, "partition", partitions={"cpu": "preempt"}))


def test_one_that_ends_well_after_its_grace_was_over_ends_no_other_task(cluster: Cluster) -> None:
    """Slurm calls it TIMEOUT, and would cancel what waits for it to end well."""
    the_plan = plan(job("outlasts"), job("after-outlasts", ok=("outlasts",)))
    layout = run_directory(cluster, "outlasts", the_plan)
    ids = cluster.submitted(the_plan, layout.root, "lives", site=cluster.site(partitions={"cpu": "preempt"}))
    await_start(layout, "outlasts")
    (note,) = notes(layout.root)
    states = wait_for_end(ids | {"important": cluster.push_out(str(note["node"]))}, seconds=300)
    assert {state.state for state in states.values()} == {QueueState.COMPLETED}
    assert starts(layout)["after-outlasts"] == 1


def test_preemption_by_qos_without_the_signal_that_was_asked_for(qos_cluster: Cluster) -> None:
    check_return(*pushed_out(qos_cluster, "qos", qos="lowly"))


def test_preemption_that_cancels_is_made_good_by_the_same_submission(cancelling_cluster: Cluster) -> None:
    cluster, site = cancelling_cluster, {"partitions": {"cpu": "preempt"}}
    layout, ids = pushed_out(cluster, "cancelling", **site)
    states = wait_for_end(ids, seconds=300)
    lost = {name: states[job_id].state for name, job_id in ids.items() if name in THE_TAIL}
    assert lost == dict.fromkeys(("pushed", "saves"), QueueState.PREEMPTED) | {"after-pushed": QueueState.CANCELLED}
    for name in ("done", *THE_TAIL):
        record_submission(layout, name, ids[name], "onehost")
    assert live_jobs(layout) == {}, "else the same submission would wait for them"
    done = {"done": ids["done"]}
    again = cluster.submitted(THE_PLAN, layout.root, "lives", site=cluster.site(**site), known_ids=done)
    assert {state.state for state in wait_for_end(again).values()} == {QueueState.COMPLETED}
    assert starts(layout) == {"done": 1, "pushed": 2, "saves": 2, "after-pushed": 1}
