"""Submissions of trivial tasks to a real cluster: order, arrays, refusals, interruptions, and what Slurm is asked."""

import os
import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest
from slurm_cluster import Cluster, notes, recorded_ids, wait_for_end
from slurm_submissions import job, plan
from slurm_trivial_tasks import TOLD

from mrt_hpc.backends.backend import QueuedTask
from mrt_hpc.backends.slurm.arrays import sbatch_texts
from mrt_hpc.backends.slurm.queue import QueueState, queue_states
from mrt_hpc.plan.compile import split_array
from mrt_hpc.plan.jobs import Role
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import wait_until

PARTS = split_array(job("segment-000.inference", tasks=5, ok=("prepare",), max_parallel=2), 3)
PLAN = plan(
    job("prepare", role=Role.PREPARE),
    *PARTS,
    job("segment-000.trainer", role=Role.TRAINER, ranks=2, ok=tuple(part.name for part in PARTS), gpus=1),
    job("report", role=Role.REPORT, any=("segment-000.trainer",)),
)
TASKS = 1 + 5 + 1 + 1

Ended = tuple[Path, dict[str, str], dict[str, "QueuedTask"]]


@pytest.fixture(scope="module")
def ended(cluster: Cluster) -> Ended:
    """The directory of a run of the plan that has ended, its ids, and the states of its tasks."""
    run_dir = cluster.run_dir("order")
    ids = cluster.submitted(PLAN, run_dir, "brief")
    return run_dir, ids, wait_for_end(ids)


def test_a_plan_runs_in_order_with_its_arrays_and_ranks(cluster: Cluster, ended: Ended) -> None:
    run_dir, ids, states = ended
    assert [state.state for state in states.values()] == [QueueState.COMPLETED] * TASKS
    found = notes(run_dir)
    assert os.geteuid() not in {note["uid"] for note in found}, "tasks belong to the ordinary user"
    starts, ends = times(found, "start"), times(found, "end")
    assert max(ends["prepare"]) <= min(starts["segment-000.inference-0"])
    assert max(max(ends[part.name]) for part in PARTS) <= min(starts["segment-000.trainer"])
    assert max(ends["segment-000.trainer"]) <= min(starts["report"])
    assert {(n["rank"], n["world_size"]) for n in found if n["job"] == "segment-000.trainer"} == {(0, 2), (1, 2)}
    assert len(starts["segment-000.inference-0"]) == 3
    for part in PARTS:
        at_once = [
            sum(b <= t for b in starts[part.name]) - sum(e < t for e in ends[part.name]) for t in starts[part.name]
        ]
        assert max(at_once) <= 2
    for name, text in sbatch_texts(PLAN, cluster.site(), RunLayout(run_dir)):  # what `plan --sbatch` prints, ids apart
        for other, job_id in ids.items():
            text = text.replace(f"{{{other}}}", job_id)
        (script,) = (run_dir / "logs" / name).glob("*_submission.sh")
        assert (script.name, script.read_text()) == (f"{ids[name]}_submission.sh", text)


def times(found: list[dict], what: str) -> dict[str, list[float]]:
    """The times at which the tasks of each job have noted something."""
    jobs = {note["job"] for note in found}
    return {name: [n["time"] for n in found if (n["job"], n["what"]) == (name, what)] for name in jobs}


@pytest.mark.timeout(600)
def test_an_interrupted_submission_goes_on_without_doubles(cluster: Cluster) -> None:
    """The first job waits for the second submission, so that all that was sent is still in the queue then. Comments
    belong to the site, the second submission goes through a link, and another job has a name that looks like records.
    """
    site = cluster.site(sbatch={"comment": "project=lab"})
    the_plan = plan(job("first"), job("second", tasks=2, ok=("first",)), job("third", ok=("second",)))
    odd = ("--hold", "--job-name=a\n7|PENDING|N/A|b\n", "--comment=run: a\ntask:\n b", "--wrap=true")
    other = cluster.as_user("sbatch", "--parsable", *odd).stdout.strip()
    runs = []
    for moment, recorded in {"die_after": {"first"}, "die_once_recorded": {"first", "second"}}.items():
        run_dir = cluster.run_dir(f"interrupted-{moment}")
        cut = cluster.submit(the_plan, run_dir, "brief", site=site, **{moment: "second"})
        assert cut.returncode == 9
        known = recorded_ids(cut.stdout)
        assert set(known) == recorded
        (link := run_dir.with_name(f"{run_dir.name}-link")).symlink_to(run_dir)
        ids = known | cluster.submitted(the_plan, link, "brief", known_ids=known, site=site)
        assert len(set(ids.values())) == len(the_plan.jobs)
        (run_dir / TOLD).touch()
        runs.append((run_dir, ids))
    assert cluster.as_user("scancel", other).returncode == 0
    for run_dir, ids in runs:
        assert {state.state for state in wait_for_end(ids).values()} == {QueueState.COMPLETED}
        assert {*Counter((n["job"], n["index"]) for n in notes(run_dir) if n["what"] == "start").values()} == {1}


def test_lack_of_memory_is_told_apart_from_failure(cluster: Cluster) -> None:
    if "proctrack/cgroup" not in cluster.as_user("scontrol", "show", "config").stdout:
        pytest.skip("without writable control groups this cluster does not limit memory")
    ids = cluster.submitted(plan(job("greedy", tasks=3, memory_gib=0.25)), cluster.run_dir("memory"), "greedy")
    states = {task.state for task in wait_for_end(ids).values()}
    # Slurm itself takes some of the kernel's kills for any other failure.
    assert QueueState.OUT_OF_MEMORY in states <= {QueueState.OUT_OF_MEMORY, QueueState.FAILED}


def test_a_refusal_says_why_and_keeps_the_script(cluster: Cluster) -> None:
    run_dir = cluster.run_dir("refused")
    done = cluster.submit(plan(job("first")), run_dir, "brief", site=cluster.site(partitions={"cpu": "no-such"}))
    assert done.returncode == 1
    assert "invalid partition" in done.stderr
    assert (run_dir / "logs/first/submission.sh").is_file()


def wrapped(name: str, folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a shell script run in the place of a command of Slurm; the file in which it may note something."""
    noted, wrapper = folder / "noted", folder / name
    wrapper.write_text(f"#!/bin/sh\n{script.format(name=name, noted=noted, real=shutil.which(name))}\n")
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return noted


def test_the_states_of_many_jobs_are_one_squeue_and_one_sacct(
    ended: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ids, _ = ended
    accounted = "accounting to tell the tasks of each array apart"
    wait_until(lambda: len(queue_states(ids.values())) == TASKS, reason=accounted, deadline_s=60)
    for name in ("squeue", "sacct", "scontrol"):
        (folder := tmp_path / name).mkdir()
        wrapped(name, folder, f'echo {{name}} >> {tmp_path}/calls\nexec {{real}} "$@"', monkeypatch)
    assert len(queue_states(ids.values())) == TASKS
    assert (tmp_path / "calls").read_text().split() == ["squeue", "sacct"]
    assert queue_states(["999999"])["999999"].state is QueueState.UNKNOWN and queue_states([]) == {}


def test_a_controller_that_is_away_is_asked_again(
    cluster: Cluster, ended: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ids, _ = ended
    saved = Path({**os.environ, **cluster.settings}["ONEHOST_ROOT"]) / "state" / "job_state"
    before = saved.stat().st_mtime  # until all is written down: it would come back in the belief that jobs are running
    held = cluster.as_user("sbatch", "--parsable", "--hold", "--wrap=true").stdout.strip()
    wait_until(lambda: saved.stat().st_mtime > before, reason="the controller to save its state", deadline_s=60)
    noting = '{real} "$@" || {{ code=$?; echo $code >> {noted}; exit $code; }}'
    refusals = wrapped("squeue", tmp_path, noting, monkeypatch)

    def come_back() -> None:
        wait_until(refusals.exists, reason="squeue to give up: it tries for some seconds itself", deadline_s=120)
        cluster.onehost("start-controller")

    assert cluster.onehost("kill-controller").returncode == 0
    back = threading.Thread(target=come_back)
    back.start()
    try:
        assert queue_states([ids["prepare"]])[ids["prepare"]].state is not QueueState.UNKNOWN
    finally:
        back.join()
    assert refusals.exists()
    assert cluster.as_user("scancel", held).returncode == 0
