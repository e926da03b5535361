"""Plans of trivial tasks on a real cluster: order, arrays, failure, cancelling, coming back."""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest
from slurm_cluster import Cluster, notes, recorded_ids, wait_for_end
from slurm_plans import job, plan
from slurm_trivial_tasks import TOLD

from mrt_hpc.backends.slurm.arrays import sbatch_texts
from mrt_hpc.backends.slurm.queue import QueueState, queue_states
from mrt_hpc.plan.compile import split_array
from mrt_hpc.plan.jobs import Role
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.waiting import wait_until


def wait_for_start(run_dir: Path, job_name: str, tasks: int = 1) -> None:
    def started() -> bool:
        starts = (note for note in notes(run_dir) if (note["what"], note["job"]) == ("start", job_name))
        return len({note["index"] for note in starts}) >= tasks

    wait_until(started, reason=f"{tasks} task(s) of {job_name} to start", deadline_s=180)


def test_a_plan_runs_in_order_with_its_arrays_and_ranks(cluster: Cluster) -> None:
    run_dir = cluster.run_dir("order")
    whole = job("segment-000.inference", tasks=5, ok=("prepare",), max_parallel=2)
    parts = split_array(whole, 3)
    the_plan = plan(
        job("prepare", role=Role.PREPARE),
        *parts,
        job("segment-000.trainer", role=Role.TRAINER, ranks=2, ok=tuple(part.name for part in parts), gpus=1),
        job("report", role=Role.REPORT, any=("segment-000.trainer",)),
    )
    ids = cluster.submitted(the_plan, run_dir, "brief")
    states = wait_for_end(ids)

    assert {state.state for state in states.values()} == {QueueState.COMPLETED}
    assert len(states) == 1 + 5 + 1 + 1
    found = notes(run_dir)
    assert os.geteuid() not in {note["uid"] for note in found}, "tasks belong to the ordinary user"
    started, ended = times(found, "start", min), times(found, "end", max)
    assert ended["prepare"] <= started["segment-000.inference-0"]
    assert max(ended[part.name] for part in parts) <= started["segment-000.trainer"]
    assert ended["segment-000.trainer"] <= started["report"]
    assert {(n["rank"], n["world_size"]) for n in found if n["job"] == "segment-000.trainer"} == {(0, 2), (1, 2)}
    assert Counter(n["job"] for n in found if n["what"] == "start")["segment-000.inference-0"] == 3
    assert all(overlap(found, part.name) <= 2 for part in parts)
    check_texts(cluster, the_plan, run_dir, ids)


def times(found: list[dict], what: str, which: type[min]) -> dict[str, float]:
    jobs = {note["job"] for note in found}
    return {name: which(n["time"] for n in found if n["job"] == name and n["what"] == what) for name in jobs}


def overlap(found: list[dict], name: str) -> int:
    """The most tasks of an array that ran at the same time."""
    running = most = 0
    for note in sorted((n for n in found if n["job"] == name), key=lambda n: n["time"]):
        running += 1 if note["what"] == "start" else -1
        most = max(most, running)
    return most


def check_texts(cluster: Cluster, the_plan: object, run_dir: Path, ids: dict[str, str]) -> None:
    """What was submitted is what `plan --sbatch` prints, ids apart; and there was one sbatch a job."""
    for name, text in sbatch_texts(the_plan, cluster.site(), RunLayout(run_dir)):  # type: ignore[arg-type]
        for other, job_id in ids.items():
            text = text.replace(f"{{{other}}}", job_id)
        (script,) = (run_dir / "logs" / name).glob("*_submission.sh")
        assert script.name == f"{ids[name]}_submission.sh"
        assert script.read_text() == text


def test_a_failure_cancels_what_needs_it_and_the_report_still_runs(cluster: Cluster) -> None:
    run_dir = cluster.run_dir("failure")
    the_plan = plan(
        job("broken"), job("needs", tasks=2, ok=("broken",)), job("also", ok=("needs",)), job("report", any=("also",))
    )
    ids = cluster.submitted(the_plan, run_dir, "fails_by_name")
    states = wait_for_end(ids)
    assert states[ids["broken"]].state is QueueState.FAILED
    assert states[ids["broken"]].reason == "2:0"
    # Slurm accounts for an array that never started task by task or, now and then, as a whole.
    needs = [state.state for task_id, state in states.items() if task_id.partition("_")[0] == ids["needs"]]
    assert set(needs) == {QueueState.CANCELLED}
    assert states[ids["also"]].state is QueueState.CANCELLED
    assert states[ids["report"]].state is QueueState.COMPLETED


def test_cancelled_jobs_stay_cancelled(cluster: Cluster) -> None:
    run_dir = cluster.run_dir("cancel")
    the_plan = plan(job("running", tasks=4, max_parallel=2), job("waiting", ok=("running",)))
    ids = cluster.submitted(the_plan, run_dir, "long")
    wait_for_start(run_dir, "running", tasks=2)

    def is_shown() -> bool:
        shown = queue_states(ids.values())
        states = Counter(state.state for state in shown.values())
        wanted = {QueueState.RUNNING: 2, QueueState.PENDING: 3}
        return states == wanted and shown[ids["waiting"]].reason == "Dependency"

    wait_until(is_shown, reason="the scheduler to have looked at all tasks", deadline_s=60)

    driver = str(cluster.tests / "slurm_submit_driver.py")
    again = [cluster.as_user(cluster.python, driver, "cancel", *ids.values()) for _ in range(2)]
    assert [done.returncode for done in again] == [0, 0], again[-1].stderr
    states = wait_for_end(ids)
    assert {state.state for state in states.values()} == {QueueState.CANCELLED}
    assert {note["restarts"] for note in notes(run_dir)} == {0}


@pytest.mark.parametrize(("moment", "recorded"), [("die_after", {"first"}), ("die_once_recorded", {"first", "second"})])
def test_an_interrupted_submission_goes_on_without_doubles(cluster: Cluster, moment: str, recorded: set[str]) -> None:
    """The first job waits for the second submission, so that all that was sent is still in the queue then. Comments
    belong to the site, the second submission goes through a link, and another job has a name that looks like records.
    """
    run_dir, site = cluster.run_dir(f"interrupted-{moment}"), cluster.site(sbatch={"comment": "project=lab"})
    the_plan = plan(job("first"), job("second", tasks=2, ok=("first",)), job("third", ok=("second",)))
    odd = ("--hold", "--job-name=a\n7|PENDING|N/A|b\n", "--comment=run: a\ntask:\n b", "--wrap=true")
    other = cluster.as_user("sbatch", "--parsable", *odd).stdout.strip()
    cut = cluster.submit(the_plan, run_dir, "brief_once_told", site=site, **{moment: "second"})
    assert cut.returncode == 9
    known = recorded_ids(cut.stdout)
    assert set(known) == recorded

    (link := run_dir.with_name(f"{run_dir.name}-link")).symlink_to(run_dir)
    ids = known | cluster.submitted(the_plan, link, "brief_once_told", known_ids=known, site=site)
    assert cluster.as_user("scancel", other).returncode == 0
    (run_dir / TOLD).touch()
    assert set(ids) == {"first", "second", "third"}
    assert len(set(ids.values())) == 3
    states = wait_for_end(ids)
    assert {state.state for state in states.values()} == {QueueState.COMPLETED}
    assert Counter((n["job"], n["index"]) for n in notes(run_dir) if n["what"] == "start").most_common(1)[0][1] == 1


def test_a_task_that_comes_back_keeps_its_id_and_those_who_wait(cluster: Cluster) -> None:
    """By its own wish, by the signal before a time limit, and after its node was lost."""
    run_dir = cluster.run_dir("back")
    names = ("requeues", "signalled", "lost")
    the_plan = plan(*(job(name) for name in names), *(job(f"after-{name}", ok=(name,)) for name in names))
    ids = cluster.submitted(the_plan, run_dir, "comes_back")
    for name in names:
        wait_for_start(run_dir, name)
    assert cluster.as_user("scancel", "--signal=USR2", ids["signalled"]).returncode == 0
    (lost,) = {str(note["node"]) for note in notes(run_dir) if note["job"] == "lost"}
    assert cluster.onehost("kill-node", lost).returncode == 0
    try:
        # those that merely wait come back after cred_expire, the lost one once its node counts as down
        states = wait_for_end(ids, seconds=300)
    finally:
        assert cluster.onehost("start-node", lost).returncode == 0
    assert {state.state for state in states.values()} == {QueueState.COMPLETED}, states
    ends = {note["job"]: note["restarts"] for note in notes(run_dir) if note["what"] == "end"}
    assert {name: ends[name] for name in names} == dict.fromkeys(names, 1)


def test_lack_of_memory_is_told_apart_from_failure(cluster: Cluster) -> None:
    if "proctrack/cgroup" not in cluster.as_user("scontrol", "show", "config").stdout:
        pytest.skip("without writable control groups this cluster does not limit memory")
    run_dir = cluster.run_dir("memory")
    ids = cluster.submitted(plan(job("greedy", memory_gib=0.25)), run_dir, "greedy")
    (state,) = wait_for_end(ids).values()
    assert state.state is QueueState.OUT_OF_MEMORY


def test_a_refusal_says_why_and_keeps_the_script(cluster: Cluster) -> None:
    run_dir = cluster.run_dir("refused")
    site = cluster.site(partitions={"cpu": "no-such"})
    done = cluster.submit(plan(job("first")), run_dir, "brief", site=site)
    assert done.returncode == 1
    assert "Slurm refused to queue job first" in done.stderr
    assert "invalid partition" in done.stderr
    assert (run_dir / "logs/first/submission.sh").is_file()


COUNTING = """#!/bin/sh
echo {name} >> {calls}
exec {real} "$@"
"""


def test_the_states_of_many_jobs_are_one_squeue_and_one_sacct(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = cluster.submitted(plan(*(job(f"job-{n}", tasks=2) for n in range(4))), cluster.run_dir("many"), "brief")
    calls = tmp_path / "calls"
    for name in ("squeue", "sacct", "scontrol"):
        script = tmp_path / name
        script.write_text(COUNTING.format(name=name, calls=calls, real=shutil.which(name)))
        script.chmod(0o755)
    wait_for_end(ids)
    accounted = "accounting to tell the tasks of each array apart"
    wait_until(lambda: len(queue_states(ids.values())) == 8, reason=accounted, deadline_s=60)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert len(queue_states(ids.values())) == 8
    assert calls.read_text().split() == ["squeue", "sacct"]


NOTING = """#!/bin/sh
{real} "$@" || {{ code=$?; echo $code >> {refusals}; exit $code; }}
"""


def test_a_controller_that_is_away_is_asked_again(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = cluster.submitted(plan(job("first")), cluster.run_dir("away"), "brief")
    wait_for_end(ids)
    held = await_saved_state(cluster)  # else it would come back in the belief that the job is running
    refusals = tmp_path / "refusals"
    script = tmp_path / "squeue"
    script.write_text(NOTING.format(refusals=refusals, real=shutil.which("squeue")))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def come_back() -> None:
        wait_until(refusals.exists, reason="squeue to give up: it tries for some seconds itself", deadline_s=120)
        cluster.onehost("start-controller")

    assert cluster.onehost("kill-controller").returncode == 0
    back = threading.Thread(target=come_back)
    back.start()
    try:
        assert queue_states(ids.values())[ids["first"]].state is not QueueState.UNKNOWN
    finally:
        back.join()
    assert refusals.exists()
    assert cluster.as_user("scancel", held).returncode == 0


def await_saved_state(cluster: Cluster) -> str:
    """Until the controller has written down all that it knows; it does so some seconds after something has happened.

    Returns:
        The id of a held job, which is what has happened.
    """
    saved = Path({**os.environ, **cluster.settings}["ONEHOST_ROOT"]) / "state" / "job_state"
    before = saved.stat().st_mtime
    held = cluster.as_user("sbatch", "--parsable", "--hold", "--wrap=true").stdout.strip()
    wait_until(lambda: saved.stat().st_mtime > before, reason="the controller to save its state", deadline_s=60)
    return held


@pytest.mark.usefixtures("cluster")
def test_states_of_jobs_that_slurm_does_not_know() -> None:
    states = queue_states(["999999"])
    assert states["999999"].state is QueueState.UNKNOWN
    assert queue_states([]) == {}
