"""A cluster configured with little: no accounting, no requeue by itself, small limits, preemption that cancels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from slurm_cluster import Cluster, notes, wait_for_end
from slurm_lives import run_directory, starts
from slurm_plans import job, plan
from submitted import current_ids, latest_ids

from mrt_hpc.attempt.ledger import current_submissions, record_submission
from mrt_hpc.backends.queued_jobs import live_jobs
from mrt_hpc.backends.slurm.queue import QueueState, queue_states
from mrt_hpc.run.task_state import TaskState, read_task
from mrt_hpc.run.waiting import wait_until
from mrt_hpc.submit.submission import without_hope

if TYPE_CHECKING:
    from collections.abc import Callable

    from mrt_hpc.run.layout import RunLayout

THE_PLAN = plan(job("slow"), job("after-slow", ok=("slow",)))


def slow_run(cluster: Cluster, name: str) -> tuple[RunLayout, dict[str, str]]:
    """A run whose first task is at work, and takes no notice of SIGTERM; its directory, and the ids in its ledger."""
    layout = run_directory(cluster, name, THE_PLAN)
    ids = cluster.submitted(THE_PLAN, layout.root, "slow_to_leave")
    for each, job_id in ids.items():
        record_submission(layout, each, job_id, "onehost")
    wait_until(lambda: "deaf" in [n["what"] for n in notes(layout.root)], reason="the slow task", deadline_s=180)
    return layout, ids


def cancelled_by_the_command(cluster: Cluster, layout: RunLayout, _: dict[str, str]) -> None:
    assert cluster.mrt_hpc("cancel", str(layout.root)).returncode == 0


def cancelled_by_hand(cluster: Cluster, _: RunLayout, ids: dict[str, str]) -> None:
    assert cluster.as_user("scancel", ids["slow"]).returncode == 0


@pytest.mark.parametrize("cancel", [cancelled_by_the_command, cancelled_by_hand])
def test_jobs_that_are_just_being_ended_are_sent_again_at_once(
    plain_cluster: Cluster, cancel: Callable[[Cluster, RunLayout, dict[str, str]], None]
) -> None:
    layout, ids = slow_run(plain_cluster, "ending")
    cancel(plain_cluster, layout, ids)
    assert queue_states([ids["slow"]])[ids["slow"]].state is QueueState.ENDING
    live = live_jobs(layout)
    assert "slow" not in live
    hopeless = [live[name].job_id for name in without_hope(THE_PLAN.jobs, live, ())]
    driver = str(plain_cluster.tests / "slurm_submit_driver.py")
    assert plain_cluster.as_user(plain_cluster.python, driver, "cancel", *hopeless).returncode == 0
    again = plain_cluster.submitted(THE_PLAN, layout.root, "slow_to_leave")
    assert {state.state for state in wait_for_end(again).values()} == {QueueState.COMPLETED}


def test_a_job_that_is_queued_again_lives_while_its_processes_end(plain_cluster: Cluster) -> None:
    layout, ids = slow_run(plain_cluster, "requeued")
    assert plain_cluster.as_user("scontrol", "requeue", ids["slow"]).returncode == 0
    states = ("squeue", "--noheader", f"--jobs={ids['slow']}", "--format=%T")
    assert plain_cluster.as_user(*states).stdout.strip() == "COMPLETING"
    assert set(live_jobs(layout)) == set(ids)
    assert {state.state for state in wait_for_end(ids).values()} == {QueueState.COMPLETED}
    assert starts(layout) == {"slow": 2, "after-slow": 1}


def test_the_lost_half_of_an_array_is_sent_again_while_the_other_half_runs(plain_cluster: Cluster) -> None:
    the_plan = plan(job("until-told", tasks=3, max_parallel=3), job("after-until-told", ok=("until-told",)))
    layout = run_directory(plain_cluster, "half", the_plan)
    sent = plain_cluster.submit_again(layout.root, "lives")
    assert sent.returncode == 0, sent.stderr
    wait_until(lambda: starts(layout)["until-told"] == 3, reason="all three tasks", deadline_s=180)
    whole = latest_ids(layout)
    assert plain_cluster.as_user("scancel", f"{whole['until-told']}_1").returncode == 0

    sent = plain_cluster.submit_again(layout.root, "lives")
    assert "of which task(s) 1 had been lost" in sent.stdout, sent.stderr
    assert {s.tasks for s in current_submissions(layout)["until-told"]} == {None, (1,)}
    assert set(live_jobs(layout)["until-told"].tasks) == {0, 1, 2}
    again = f"{latest_ids(layout)['until-told']}_1"
    wait_until(
        lambda: queue_states(current_ids(layout))[again].reason == "Dependency",  # empty until the scheduler has looked
        reason="the dependency that keeps no more than three at a time, in all",
        deadline_s=180,
    )
    assert "0 job(s) submitted" in plain_cluster.submit_again(layout.root, "lives").stdout
    (layout.root / "word-to-end").touch()
    wait_until(lambda: not live_jobs(layout), reason="the end of the run", deadline_s=300)
    assert starts(layout) == {"until-told": 4, "after-until-told": 1}
    assert {read_task(layout, "until-told", index).state for index in range(3)} == {TaskState.DONE}
