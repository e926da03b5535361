"""What ``status``, ``explain``, ``cancel`` and ``plan`` say of a run is true at that moment, or it is not said."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from basics import EVALUATION, INFERENCE, QUICKSTART, TRAINER
from canned_queue import PREPARE, CannedRun, submitted_run
from commands import typed
from run_of import task_of
from synthetic_run import made_up_metrics

from mrt_hpc.attempt.entry import _say_started
from mrt_hpc.attempt.ledger import record_site
from mrt_hpc.backends.queued_jobs import look_at_queues
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.run.leases import BEATS_A_LIMIT, Heart, standstill_s
from mrt_hpc.run.task_state import TaskState, read_task
from mrt_hpc.view.snapshot import Snapshot
from mrt_hpc.view.snapshot_reader import SnapshotReader

STARTED = {"kind": "task_started", "job": TRAINER, "task": 0, "rank": 0, "attempt": "13.0", "world_size": 1}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    return submitted_run(tmp_path, monkeypatch)


def said(run: CannedRun, *words: str) -> str:
    return typed(*words, run.layout.root).output.replace(str(run.layout.root), "RUN")


def snapshot(run: CannedRun) -> Snapshot:
    return SnapshotReader.of(run.layout, run.plan).read(look_at_queues(run.layout, 3.0))


def trains(run: CannedRun, *, since: float) -> None:
    """The trainer and a server run, and one iteration of 500 s has ended at a time."""
    made_up_metrics(0, 20, np.random.default_rng(0)).write(run.layout.metrics(0))
    run.layout.weights_version(1).mkdir(parents=True, exist_ok=True)
    run.queue("13|RUNNING|1|None|node1", "12_0|RUNNING|1|None|node2")
    run.task(TRAINER, TaskState.RUNNING, attempt="13.0")
    run.task(INFERENCE, TaskState.RUNNING, attempt="12_0.0")
    run.events(TRAINER, "13.0", STARTED, {"kind": "published", "version": 1, "time": since})


def test_a_task_that_slurm_has_just_started_is_counted_once(run: CannedRun) -> None:
    run.queue("13|RUNNING|1|None|node1")
    (line,) = [line for line in said(run, "status").splitlines() if TRAINER in line and "node1" in line]
    assert "1 starting" in line and "waiting" not in line


def beats_until(run: CannedRun, ago: float, attempt: str = "13.0", job: str = TRAINER) -> Path:
    """A real heart, which has beaten last some seconds ago."""
    heart = Heart(run.layout.heart(job, 0), attempt, limit_s=BEATS_A_LIMIT * 12.0)
    heart.beat()
    os.utime(heart.path, (time.time() - ago,) * 2)
    return heart.path


def test_a_heart_that_stands_still_is_said_with_its_age(run: CannedRun) -> None:
    trains(run, since=time.time() - 100)
    path = beats_until(run, 20)
    assert standstill_s(path) is None, "the next beat may just be late"
    assert "sign of life" not in said(run, "explain")
    beats_until(run, 35)
    text = said(run, "explain")
    assert f"{TRAINER} (job 13) runs on node1" in text and "no sign of life for 35 s" in text
    assert "no sign of life" in said(run, "status")
    assert snapshot(run).expected_end is None, "it may be lost"


def test_a_forecast_knows_the_time_since_the_last_iteration(run: CannedRun) -> None:
    trains(run, since=time.time() - 900)
    assert snapshot(run).expected_end is not None
    trains(run, since=time.time() - 1100)  # of 500 s each
    found = snapshot(run)
    assert found.expected_end is None
    assert [event.at for event in found.upcoming if event.what.startswith("iteration")] == [None]


def test_nothing_is_forecast_while_no_server_runs(run: CannedRun) -> None:
    trains(run, since=time.time() - 100)
    assert snapshot(run).expected_end is not None
    run.queue("13|RUNNING|1|None|node1")
    run.task(INFERENCE, TaskState.WAITING)
    assert snapshot(run).expected_end is None


def job_line(run: CannedRun, job: str) -> str:
    return next(line for line in said(run, "status").splitlines() if line.startswith(f"{job} "))


def test_a_task_is_counted_once_whatever_its_record_and_the_queue_say(run: CannedRun) -> None:
    run.task(TRAINER, TaskState.RETRYING, attempt="13.0", failures=1, message="no memory")
    run.queue("13|PENDING|1|BeginTime|", "12_0|RUNNING|1|None|node2")
    assert "1 retrying and queued (BeginTime) " in job_line(run, TRAINER)
    run.queue("13|RUNNING|1|None|node1", "12_0|RUNNING|1|None|node2")
    assert "1 retrying and running in the queue " in job_line(run, TRAINER)
    run.queue()
    run.accounts("13|CANCELLED|0:0|node1|60", "12_0|FAILED|1:0|node2|60")
    assert "1 retrying and cancelled in the queue " in job_line(run, TRAINER)
    assert "  1 failed in the queue, 3 waiting " in job_line(run, INFERENCE)
    run.task(INFERENCE, TaskState.FAILED, attempt="12_0.0", message="no memory")
    assert "  1 failed, 3 waiting " in job_line(run, INFERENCE)


def test_a_task_that_slurm_has_started_again_is_not_at_work_before_it_says_so(run: CannedRun) -> None:
    trains(run, since=time.time() - 100)
    assert snapshot(run).expected_end is not None
    run.task(INFERENCE, TaskState.GAVE_BACK, attempt="12_0.0", message="gave the nodes back: preempted")
    ends = int(time.time()) + 9  # a preempted job's end is near
    run.queue("13|RUNNING|1|None|node1", f"12_0|RUNNING|{ends}|None|node2")
    found = snapshot(run)
    assert found.expected_end is None
    assert not any("limit" in event.what for event in found.upcoming if event.at == ends)
    text = said(run, "explain")
    assert "returned its nodes (preempted); the queue says that it runs on node2" in text
    assert f"waits for {INFERENCE}, of which no task is at work" in text


def test_an_attempt_is_not_lost_while_the_event_of_its_end_is_written(run: CannedRun) -> None:
    trains(run, since=time.time() - 100)
    run.task(TRAINER, TaskState.GAVE_BACK, attempt="13.0", message="gave the nodes back: preempted")
    assert "recorded no end" not in said(run, "status")
    run.task(TRAINER, TaskState.RUNNING, attempt="13.1")
    assert "recorded no end" in said(run, "status")


def test_a_start_in_the_past_is_no_forecast(run: CannedRun) -> None:
    """The time limit of a queued job was lowered, so its end says another start than the plan's limit."""
    limit = 60 * run.plan.job(TRAINER).resources.time_limit_minutes
    for begins_in, is_said in ((-900, False), (900, True)):
        run.queue(f"13|PENDING|{int(time.time()) + begins_in + limit}|BeginTime|")
        assert ("starts, as the queue expects" in said(run, "status")) is is_said


def test_a_job_that_waits_for_more_than_a_trainer_has_no_time(run: CannedRun) -> None:
    trains(run, since=time.time() - 100)
    event = next(event for event in snapshot(run).upcoming if event.what.startswith("report"))
    assert event.at is None
    assert event.what == f"report may start, after {TRAINER}, {EVALUATION}"


def test_nothing_is_forecast_after_a_trainer_that_has_failed(run: CannedRun) -> None:
    trains(run, since=time.time() - 100)
    run.task(TRAINER, TaskState.FAILED, attempt="13.0", message="no memory")
    run.queue("12_0|RUNNING|1|None|node2")
    found = snapshot(run)
    assert found.expected_end is None
    assert not any("may start" in event.what or event.what.startswith("iteration") for event in found.upcoming)
    assert any(event.what.startswith("no iteration ends, until mrt-hpc submit") for event in found.upcoming)


def test_a_task_does_not_wait_for_itself(run: CannedRun) -> None:
    (run.layout.root / "tasks" / PREPARE / "00000.json").unlink()
    run.queue("11|PENDING|N/A|Dependency|")
    (line,) = [line for line in said(run, "explain").splitlines() if "wait for these" in line]
    assert PREPARE not in line


def test_a_job_that_begins_later_was_not_queued_again(run: CannedRun) -> None:
    run.queue("15|PENDING|N/A|BeginTime|")
    sentence = typed("explain", run.layout.root, "report").output.splitlines()[0]
    assert "earliest time" in sentence and "again" not in sentence


def test_a_finished_run_has_nothing_to_cancel(run: CannedRun) -> None:
    for command in ("scontrol", "scancel"):
        run.command(command, "exit 0")
    run.done()
    text = typed("cancel", run.layout.root).output
    assert "nothing to cancel" in text and "continues" not in text and "cancelled" not in text


def test_an_attempt_after_failed_ones_says_why_they_failed(run: CannedRun) -> None:
    task = task_of(run.layout, TRAINER)
    run.task(
        TRAINER, TaskState.RETRYING, attempt="12.9", failures=2, message="the time limit came\n  next:     raise X"
    )
    _say_started(task, None, None)
    assert read_task(run.layout, TRAINER, 0).state is TaskState.RUNNING
    run.queue("13|RUNNING|1|None|node1", "12_0|RUNNING|1|None|node2")
    text = typed("explain", run.layout.root, TRAINER).output
    assert "after 2 attempt(s) that failed (the time limit came)" in text and "raise X" in text
    assert "the time limit came" in said(run, "status")


def test_a_time_limit_that_is_too_short_for_a_try_is_said_by_plan(tmp_path: Path) -> None:
    profile = tmp_path / "lab.yaml"
    profile.write_text("type: slurm\nname: lab\n")
    words = ("plan", QUICKSTART, "--site", profile)
    assert "leaves a try" not in typed(*words).output
    text = typed(*words, "--set", "resources.trainer.time_limit_minutes=2").output
    assert f"{TRAINER}: the time limit of 2 minute(s) leaves a try 30 s" in " ".join(text.split())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    (disk := tmp_path / "disk").mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("mounting a small filesystem needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_seen_where_no_log_can_say_it(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submitted_run(tmp_path, monkeypatch)
    moved = CannedRun(type(run.layout)(Path(shutil.move(run.layout.root, small_disk / "run"))), run.commands)
    record_site(moved.layout, SlurmSite(name="cluster"))
    (moved.layout.root / "tasks" / PREPARE / "00000.json").unlink()
    moved.queue("11|RUNNING|1|None|node1")
    moved.log(f"{PREPARE}/11_0_log.err", "")
    with (small_disk / "filler").open("wb") as filler, pytest.raises(OSError, match="No space"):
        while True:
            filler.write(bytes(65536))
            filler.flush()
    for command in ("explain", "status"):
        assert "the disk is full" in typed(command, moved.layout.root).output
    (small_disk / "filler").unlink()
    assert "the disk is full" not in typed("explain", moved.layout.root).output
