"""The life of a task on a real cluster: what ends it, what its record says, and whether Slurm starts it again.

The work is trivial; signals, requeues, retries and the job script's last word are the real ones.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from slurm_cluster import Cluster, notes, wait_for_end
from slurm_lives import RETRIES, await_start, await_stop, run_directory, starts
from slurm_plans import job, plan

from mrt_hpc.attempt.ledger import record_submission
from mrt_hpc.backends.slurm.queue import QueueState
from mrt_hpc.backends.slurm.queued_as import differences, queued_fields
from mrt_hpc.run.task_state import TaskState, read_task
from mrt_hpc.run.waiting import wait_until

if TYPE_CHECKING:
    from mrt_hpc.plan.jobs import Plan
    from mrt_hpc.run.layout import RunLayout

LONGEST_PATH = 4090
"""Within a few characters, what Linux takes."""


def process_of(layout: RunLayout, name: str) -> int:
    """The Python process of a task: the one that has its job in its environment, and its pickle in its arguments."""
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if b"submitit.core._submit" in words and str(layout.logs / name).encode() in words and b"srun" not in words[0]:
            return int(entry.name)
    raise AssertionError(f"no process of {name}")


@pytest.mark.timeout(1500)
def test_how_tasks_end_and_which_come_back(cluster: Cluster) -> None:
    names = ("stopped", "cancelled", "crashes", "gives-back", "killed", "lost", "saves", "limited")
    the_plan = plan(
        *(job(name, minutes=3 if name == "limited" else 30) for name in names),  # signalled 90 s before the limit
        *(job(f"after-{name}", ok=(name,)) for name in names),
    )
    layout = run_directory(cluster, "life", the_plan)
    ids = cluster.submitted(the_plan, layout.root, "lives")
    await_start(layout, *names)

    assert cluster.as_user("scancel", "--signal=TERM", ids["stopped"]).returncode == 0
    assert cluster.as_user("scancel", "--signal=USR2", ids["saves"]).returncode == 0
    assert cluster.as_user("scancel", ids["cancelled"]).returncode == 0
    os.kill(process_of(layout, "killed"), signal.SIGKILL)
    others = {name: job_id for name, job_id in ids.items() if "lost" not in name}
    wait_for_end(others, seconds=300)  # they may share the node that is cut next
    (node,) = {str(note["node"]) for note in notes(layout.root) if note["job"] == "lost"}
    assert cluster.onehost("kill-node", node).returncode == 0
    try:
        states = wait_for_end(ids, seconds=300)
    finally:
        assert cluster.onehost("start-node", node).returncode == 0

    came_back = {"stopped", "gives-back", "killed", "lost", "saves", "limited"}
    completed = {name for name in names if states[ids[name]].state is QueueState.COMPLETED}
    assert completed == came_back, {name: read_task(layout, name, 0) for name in completed ^ came_back}
    assert {name for name in names if states[ids[f"after-{name}"]].state is QueueState.COMPLETED} == came_back
    assert states[ids["cancelled"]].state is QueueState.CANCELLED
    assert states[ids["crashes"]].state is QueueState.FAILED
    assert states[ids["after-crashes"]].state is QueueState.CANCELLED, "the tail of the plan"
    check_records(layout, came_back)


def check_records(layout: RunLayout, came_back: set[str]) -> None:
    records = {name: read_task(layout, name, 0) for name in (*came_back, "cancelled", "crashes")}
    assert {name for name, record in records.items() if record.state is TaskState.DONE} == came_back
    assert records["cancelled"].state is TaskState.STOPPED
    assert records["crashes"].state is TaskState.FAILED
    assert "every time" in records["crashes"].message
    assert {name: record.failures for name, record in records.items()} == {
        **dict.fromkeys(records, 0), "crashes": RETRIES + 1, "killed": 1, "limited": 1,
    }  # fmt: skip
    assert starts(layout)["crashes"] == RETRIES + 1
    assert starts(layout)["cancelled"] == 1
    assert [note["restarts"] for note in notes(layout.root) if note["what"] == "saved"] == [0]


def test_every_task_of_an_array_comes_back(cluster: Cluster) -> None:
    """One of them bears the array's own id in Slurm's books."""
    the_plan = plan(job("gives-back", tasks=3), job("after-gives-back", ok=("gives-back",)))
    layout = run_directory(cluster, "array", the_plan)
    ids = cluster.submitted(the_plan, layout.root, "lives")
    states = wait_for_end(ids)
    assert {state.state for state in states.values()} == {QueueState.COMPLETED}
    assert starts(layout) == {"gives-back": 6, "after-gives-back": 1}
    assert {read_task(layout, "gives-back", index).state for index in range(3)} == {TaskState.DONE}


@pytest.fixture
def full(cluster: Cluster) -> str:
    """A folder in which no file can be made, as its path is as long as a path may be. Slurm itself replaces a folder
    for temporary files to which a task may not write.
    """
    path = str(cluster.run_dir("full"))
    while (room := LONGEST_PATH - len(path) - 1) > 0:
        path += "/" + "d" * min(room, 200)
    Path(path).mkdir(parents=True)
    Path(path).chmod(0o777)
    return path


def test_the_next_attempt_leaves_out_a_node_that_is_at_fault(cluster: Cluster, full: str) -> None:
    """The first node on which the task comes takes no temporary file."""
    layout = run_directory(cluster, "node-fault", plan(job("done")))
    first = layout.root / "first-node"
    setup = [
        f"[ -e {first} ] || echo $SLURMD_NODENAME > {first}",
        f'case $SLURMD_NODENAME in "$(cat {first})") NODE_SCRATCH={full} ;; *) NODE_SCRATCH=/tmp ;; esac',
    ]
    site = cluster.site(setup=setup, scratch="$NODE_SCRATCH")
    ids = cluster.submitted(plan(job("done")), layout.root, "lives", site=site)
    assert wait_for_end(ids)[ids["done"]].state is QueueState.COMPLETED
    faulty = first.read_text().strip()
    (note,) = [note for note in notes(layout.root) if note["what"] == "start"]
    assert (note["node"] == faulty, note["restarts"]) == (False, 1)
    assert f"ExcNodeList={faulty}" in cluster.as_user("scontrol", "show", "job", ids["done"]).stdout


def test_where_slurm_may_not_start_a_task_again_it_ends_and_says_so(cluster: Cluster) -> None:
    one, site = job("gives-back"), cluster.site(requeue="forbidden")
    layout = run_directory(cluster, "forbidden", plan(one))
    ids = cluster.submitted(plan(one), layout.root, "lives", site=site)
    assert [d.field for d in differences(one, cluster.site(), queued_fields(ids["gives-back"]))] == ["requeue"]
    assert wait_for_end(ids, seconds=60)[ids["gives-back"]].state is QueueState.FAILED
    record = read_task(layout, "gives-back", 0)
    assert (record.state, "scontrol requeue" in record.message) == (TaskState.FAILED, True)


def test_variables_of_a_shell_do_not_decide_against_the_plan(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"SBATCH_TIMELIMIT": "1", "SBATCH_PARTITION": "preempt", "SBATCH_EXPORT": "NONE", "SBATCH_NO_REQUEUE": "1"}
    given |= {"SBATCH_MEM_PER_NODE": "100M", "SLURM_MEM_PER_CPU": "5", "SLURM_EXPORT_ENV": "NONE", "SBATCH_WAIT": "1"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    one = job("gives-back")
    layout = run_directory(cluster, "shell", plan(one))
    ids = cluster.submitted(plan(one), layout.root, "lives")
    assert list(differences(one, cluster.site(), queued_fields(ids["gives-back"]))) == []
    assert wait_for_end(ids)[ids["gives-back"]].state is QueueState.COMPLETED


def submitted(cluster: Cluster, the_plan: Plan, layout: RunLayout) -> dict[str, str]:
    """The ids of a submission, which is in the ledger as well."""
    ids = cluster.submitted(the_plan, layout.root, "lives")
    for name, job_id in ids.items():
        record_submission(layout, name, job_id, "onehost")
    return ids


def test_who_waits_for_others_stays_in_the_queue_until_one_of_them_starts(cluster: Cluster) -> None:
    the_plan = plan(job("blocker"), job("after-blocker", tasks=2, any=("blocker",)), job("awaits", tasks=2))
    layout = run_directory(cluster, "awaits", the_plan)
    ids = submitted(cluster, the_plan, layout)
    await_start(layout, "blocker", "awaits")
    waiting = ("squeue", "--noheader", "--array", f"--jobs={ids['awaits']}", "--format=%r")
    wait_until(
        lambda: cluster.as_user(*waiting).stdout.split() == ["Dependency"] * 2,
        reason="both tasks to wait in the queue",
        deadline_s=180,
    )
    assert cluster.as_user("scancel", ids["blocker"]).returncode == 0
    states = wait_for_end({name: job_id for name, job_id in ids.items() if name != "blocker"})
    assert {state.state for state in states.values()} == {QueueState.COMPLETED}
    assert starts(layout) == {"blocker": 1, "after-blocker": 2, "awaits": 4}
    came = {note["job"]: note["time"] for note in notes(layout.root) if note["what"] == "start"}
    assert came["awaits"] >= came["after-blocker"]


def test_who_waits_for_somebody_that_has_left_the_queue_ends(cluster: Cluster) -> None:
    the_plan = plan(job("blocker"), job("after-other", any=("blocker",)), job("abandoned"))
    layout = run_directory(cluster, "abandoned", the_plan)
    ids = submitted(cluster, the_plan, layout)
    await_start(layout, "blocker", "abandoned")
    assert cluster.as_user("scancel", ids["after-other"], ids["blocker"]).returncode == 0
    states = wait_for_end(ids)
    assert states[ids["abandoned"]].state is QueueState.FAILED
    assert starts(layout)["abandoned"] <= 2, "once more where it had begun to wait before"
    record = read_task(layout, "abandoned", 0)
    assert record.state is TaskState.FAILED
    assert "same submit command" in record.message


def test_what_a_process_ends_with_after_its_work_is_done_does_not_matter(cluster: Cluster) -> None:
    the_plan = plan(job("stumbles"), job("after-stumbles", ok=("stumbles",)))
    layout = run_directory(cluster, "stumbles", the_plan)
    ids = cluster.submitted(the_plan, layout.root, "lives")
    states = wait_for_end(ids)
    assert states[ids["after-stumbles"]].state is QueueState.COMPLETED
    assert starts(layout) == {"stumbles": 1, "after-stumbles": 1}


def test_cancelling_a_run_is_never_turned_into_a_requeue(cluster: Cluster) -> None:
    the_plan = plan(job("runs"), job("saves"), job("after-runs", ok=("runs",)))
    layout = run_directory(cluster, "cancel", the_plan)
    ids = cluster.submitted(the_plan, layout.root, "lives")
    await_start(layout, "runs", "saves")
    driver = str(cluster.tests / "slurm_submit_driver.py")
    assert cluster.as_user(cluster.python, driver, "cancel", *ids.values()).returncode == 0
    states = wait_for_end(ids)
    assert {state.state for state in states.values()} == {QueueState.CANCELLED}
    assert starts(layout) == {"runs": 1, "saves": 1}
    await_stop(layout, "runs", "saves")
    assert [note["what"] for note in notes(layout.root) if note["job"] == "saves"] == ["start", "saved"]
