"""A cluster configured with little: no accounting, no requeue by itself, small limits, preemption that cancels."""

import pytest
from slurm_cluster import Cluster, notes, wait_for_end
from slurm_submissions import await_start, begun, examined, job, plan, run_directory, started, written_profile
from slurm_trivial_tasks import TOLD
from submitted import current_ids, latest_ids

from mrt_hpc.attempt.ledger import current_submissions
from mrt_hpc.backends.queued_jobs import live_jobs
from mrt_hpc.backends.slurm.queue import QueueState, queue_states
from mrt_hpc.run.retries import wait_until
from mrt_hpc.run.task_state import TaskState, read_task
from mrt_hpc.submit.submission import dead_jobs

SLOW = plan(job("slow"), job("after-slow", ok=("slow",)))


@pytest.mark.timeout(600)
def test_jobs_that_are_just_being_ended(plain_cluster: Cluster) -> None:
    """The first task of each run takes no notice of SIGTERM. What was cancelled is sent again at once, whoever did it;
    what is queued again lives.
    """
    cluster = plain_cluster
    (requeued, ids), *cancelled = [begun(cluster, SLOW, "slow_to_leave") for _ in range(3)]
    for layout in (requeued, *(layout for layout, _ in cancelled)):
        is_deaf = "the task that heeds no signal"
        wait_until(lambda at=layout.root: "deaf" in [n["what"] for n in notes(at)], reason=is_deaf, deadline_s=180)

    assert cluster.as_user("scontrol", "requeue", ids["slow"]).returncode == 0
    states = ("squeue", "--noheader", f"--jobs={ids['slow']}", "--format=%T")
    assert cluster.as_user(*states).stdout.strip() == "COMPLETING"
    assert set(live_jobs(requeued)) == set(ids)
    for number, (layout, theirs) in enumerate(cancelled):
        cancel = ("scancel", theirs["slow"])
        done = cluster.as_user(*cancel) if number else cluster.mrt_hpc("cancel", str(layout.root))
        assert done.returncode == 0, done.stderr
        assert queue_states([theirs["slow"]])[theirs["slow"]].state is QueueState.ENDING
        live = live_jobs(layout)
        assert "slow" not in live
        hopeless = [live[name].job_id for name in dead_jobs(SLOW.jobs, live, ())]
        driver = str(cluster.tests / "slurm_submit_driver.py")
        assert cluster.as_user(cluster.python, driver, "cancel", *hopeless).returncode == 0
        again = cluster.submitted(SLOW, layout.root, "slow_to_leave")
        assert {state.state for state in wait_for_end(again).values()} == {QueueState.COMPLETED}
    assert {state.state for state in wait_for_end(ids).values()} == {QueueState.COMPLETED}
    assert started(requeued) == {"slow": 2, "after-slow": 1}


def test_the_lost_half_of_an_array_is_sent_again_while_the_other_half_runs(plain_cluster: Cluster) -> None:
    the_plan = plan(job("until-told", tasks=3, max_parallel=3), job("after-until-told", ok=("until-told",)))
    layout = run_directory(plain_cluster, "half", the_plan)
    sent = plain_cluster.submit_again(layout.root, "lives")
    assert sent.returncode == 0, sent.stderr
    await_start(layout, "until-told", tasks=3)
    assert plain_cluster.as_user("scancel", f"{latest_ids(layout)['until-told']}_1").returncode == 0

    sent = plain_cluster.submit_again(layout.root, "lives")
    assert {s.tasks for s in current_submissions(layout)["until-told"]} == {None, (1,)}, sent.stdout + sent.stderr
    assert set(live_jobs(layout)["until-told"].tasks) == {0, 1, 2}
    again = f"{latest_ids(layout)['until-told']}_1"
    wait_until(
        lambda: queue_states(current_ids(layout))[again].reason == "Dependency",  # empty until the scheduler has looked
        reason="the dependency that keeps no more than three at a time, in all",
        deadline_s=180,
    )
    assert "0 job(s) submitted" in plain_cluster.submit_again(layout.root, "lives").stdout
    (layout.root / TOLD).touch()
    wait_until(lambda: not live_jobs(layout), reason="the end of the run", deadline_s=300)
    assert started(layout) == {"until-told": 4, "after-until-told": 1}
    assert {read_task(layout, "until-told", index).state for index in range(3)} == {TaskState.DONE}


@pytest.mark.timeout(600)
def test_the_profile_and_the_doctor(plain_cluster: Cluster) -> None:
    run = plain_cluster.folder("doctor")
    path, site = written_profile(plain_cluster, run, "--partition", "preempt", "--gpu-partition", "preempt")
    assert (site.account, site.max_array_size, site.max_submit_jobs, site.preemption_notice_s) == (None, 10, 60, 25)
    status, found = examined(plain_cluster, run, path, "--on-node")
    assert status == 0, found
    assert found["preemption in partition preempt"]["verdict"] == "doubtful"
    assert "--requeue" in found["requeue"]["evidence"], "which every job of a run asks for"
    assert found["node of preempt: signals"]["verdict"] == "ok"
