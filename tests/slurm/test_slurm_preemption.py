"""Preemption on real clusters: by partition and by QOS, with and without the site's ``preempt_send_user_signal``, and
in a partition that cancels what it pushes out.
"""

import subprocess

from slurm_cluster import Cluster, notes, wait_for_end
from slurm_submissions import await_start, begun, job, node_of, plan, started

from mrt_hpc.backends.queued_jobs import live_jobs
from mrt_hpc.backends.slurm.queue import QueueState
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.plan.jobs import Plan
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskState, read_task


def tasks(*names: str) -> Plan:
    return plan(job("done"), *map(job, names), job("after-pushed", ok=("done", *names)))


def pushed_out(cluster: Cluster, site: SlurmSite, *names: str) -> tuple[RunLayout, dict[str, str]]:
    """A run, of which the tasks with these names were pushed out at work; its directory, and all ids."""
    layout, ids = begun(cluster, tasks(*names), site=site)
    await_start(layout, *names)
    wait_for_end({"done": ids["done"]})  # else it is pushed out as well, while it leaves
    nodes = {node_of(layout, name) for name in names}
    return layout, ids | {f"important-{node}": cluster.push_out(node) for node in nodes}


def check_return(layout: RunLayout, ids: dict[str, str]) -> None:
    """Both left in the grace time, one saved something first, and both came back; neither counts as failed."""
    assert {state.state for state in wait_for_end(ids).values()} == {QueueState.COMPLETED}
    wanted = {"done": 1, "pushed": 2, "saves": 2, "after-pushed": 1}
    assert {name: started(layout)[name] for name in wanted} == wanted
    assert [note["restarts"] for note in notes(layout.root) if note["what"] == "saved"] == [0]
    records = [read_task(layout, name, 0) for name in ("pushed", "saves")]
    assert {(record.state, record.failures) for record in records} == {(TaskState.DONE, 0)}


def test_preemption_by_partition(cluster: Cluster) -> None:
    """One task ends well when its grace is over: Slurm calls it TIMEOUT, and would cancel what waits for it.

    Slurm looks every 30 s which times are over, and ends the task itself where that moment comes first; it then starts
    once more.
    """
    layout, ids = pushed_out(cluster, cluster.site(partitions={"cpu": "preempt"}), "pushed", "saves", "outlasts")
    check_return(layout, ids)
    *starts, end = [note["what"] for note in notes(layout.root) if note["job"] == "outlasts"]
    assert end == "end" and starts in (["start"], ["start", "start"])


def test_preemption_that_cancels_is_made_good_by_the_same_submission(cluster: Cluster) -> None:
    site, update = cluster.site(partitions={"cpu": "preempt"}), ["scontrol", "update", "PartitionName=preempt"]
    subprocess.run([*update, "PreemptMode=CANCEL", "GraceTime=0"], check=True)
    try:
        layout, ids = pushed_out(cluster, site, "pushed", "saves")
        states = wait_for_end(ids)
    finally:
        subprocess.run([*update, "PreemptMode=REQUEUE", "GraceTime=15"], check=True)
    lost = {name: states[ids[name]].state for name in ("pushed", "saves", "after-pushed")}
    gone = QueueState.PREEMPTED
    assert lost == {"pushed": gone, "saves": gone, "after-pushed": QueueState.CANCELLED}
    assert live_jobs(layout) == {}, "else the same submission would wait for them"
    done = {"done": ids["done"]}
    again = cluster.submitted(tasks("pushed", "saves"), layout.root, "lives", site=site, known_ids=done)
    assert {state.state for state in wait_for_end(again).values()} == {QueueState.COMPLETED}
    assert started(layout) == {"done": 1, "pushed": 2, "saves": 2, "after-pushed": 1}


# The last test: from here on, Slurm's commands of this process speak to the other cluster.
def test_preemption_by_qos_without_the_signal_that_was_asked_for(qos_cluster: Cluster) -> None:
    check_return(*pushed_out(qos_cluster, qos_cluster.site(qos="lowly"), "pushed", "saves"))
