"""The command that tells how a run has ended, and that it is stuck."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mrt_hpc.attempt import notify
from mrt_hpc.attempt.entry import load_task, run_task
from mrt_hpc.attempt.ledger import record_site, record_submission, recorded_site
from mrt_hpc.attempt.notify import tell_end, tell_stuck
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.attempt.stuck import patience_of, sign_for, tell_failure
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm import after_srun
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.task.peers import PeersAwayError
from mrt_hpc.run import stuck_notices as told_module
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.retries import NO_INODES, RetryPolicy, retrying
from mrt_hpc.run.stuck_notices import FULL_DISK, forget_told, sign
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task
from mrt_hpc.run.waiting import wait_until
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from collections.abc import Callable

    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.layout import RunLayout

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
HERE = Placement(0, 1, 0, "12.0")


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    """A run whose site profile names a command that writes down what it gets."""
    recipe = load_recipe(QUICKSTART)
    layout = create_or_open(tmp_path / "a run", recipe, compile_plan(recipe, LocalSite()))
    command = tmp_path / "tell"
    words = "$1|$2|$3|$MRT_HPC_OUTCOME"
    lines = ("#!/bin/sh", f'echo "{words}" >> {tmp_path / "told"}', f'echo "$MRT_HPC_REASON" > {tmp_path / "why"}')
    command.write_text("\n".join(lines))
    command.chmod(0o755)
    record_site(layout, SlurmSite(name="site", notify=(str(command), "me")))
    record_submission(layout, "report", "12", "site")
    return layout


def told(run: RunLayout) -> list[str]:
    path = run.root.parent / "told"
    return path.read_text().splitlines() if path.exists() else []


def does_nothing(_: Task) -> None:
    return


def fails(_: Task) -> None:
    raise UserError("the report is incomplete")


def test_the_report_tells_that_a_run_has_finished(run: RunLayout) -> None:
    run_task(str(run.root), "report", 0, HERE, does_nothing)
    assert told(run) == [f"me|{run.root}|finished|finished"]


def test_the_report_tells_that_a_run_has_failed(run: RunLayout) -> None:
    with pytest.raises(UserError):
        run_task(str(run.root), "report", 0, HERE, fails)
    assert told(run) == [f"me|{run.root}|failed|failed"]


def test_other_jobs_and_a_report_that_comes_back_tell_nothing(run: RunLayout) -> None:
    run_task(str(run.root), "prepare", 0, HERE, does_nothing)
    write_task(run, "report", 0, TaskRecord(TaskState.RETRYING))
    tell_end(run, "report", 0)
    assert told(run) == []


def test_a_command_that_fails_fails_nothing(run: RunLayout, caplog: pytest.LogCaptureFixture) -> None:
    record_site(run, SlurmSite(name="site", notify=("/no/such/command",)))
    write_task(run, "report", 0, TaskRecord(TaskState.DONE))
    tell_end(run, "report", 0)
    assert "notify" in caplog.text


def test_a_command_that_hangs_is_ended_with_what_it_has_started(
    run: RunLayout, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notify, "LONGEST_S", 3.0)
    started, child = time.monotonic(), run.root.parent / "child"
    script = f"sleep 600 & echo $! > {child}; wait"
    record_site(run, SlurmSite(name="site", notify=("sh", "-c", script)))
    write_task(run, "report", 0, TaskRecord(TaskState.DONE))
    tell_end(run, "report", 0)
    assert time.monotonic() - started < 120
    assert "timed out" in caplog.text
    wait_until(lambda: has_ended(int(child.read_text())), reason="the end of the child", deadline_s=60)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or only its parent has not asked for its exit code yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_the_output_of_the_command_is_no_answer_of_the_job_script(
    run: RunLayout, capfd: pytest.CaptureFixture[str]
) -> None:
    record_site(run, SlurmSite(name="site", notify=("echo", "123")))
    write_task(run, "report", 0, TaskRecord(TaskState.DONE))
    tell_end(run, "report", 0)
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", f"123 {run.root} finished\n")


# -- stuck

TRAINER, INFERENCE = "segment-000.trainer", "segment-000.inference"
NO_ROOM = OSError(errno.ENOSPC, "No space left on device")


def why(run: RunLayout) -> str:
    return (run.root.parent / "why").read_text().strip()


def patience(run: RunLayout, job: str) -> RetryPolicy:
    """Of a task that has no time, and tells at once."""
    return replace(patience_of(run, job, 1e-9), full_pause_s=0.0, long_wait_s=0.0)


def never_written() -> None:
    raise NO_ROOM


@pytest.fixture
def _links_within_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on BeeGFS, which links within one folder only."""

    def linked(source: Path, path: Path, link: Callable[[Path, Path], None] = os.link) -> None:
        if source.parent != path.parent:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        link(source, path)

    monkeypatch.setattr(os, "link", linked)


@pytest.mark.usefixtures("_links_within_folders")
def test_a_full_disk_is_told_once_by_all_tasks_and_attempts(run: RunLayout) -> None:
    sign(run, INFERENCE)
    for job in (INFERENCE, INFERENCE, TRAINER, INFERENCE):
        with pytest.raises(UserError, match="stayed full"):
            retrying(never_written, "a shard", patience(run, job))
    assert told(run) == [f"me|{run.root}|stuck|stuck"]
    assert f"the disk is full: {INFERENCE} waits for room to write a shard" in why(run)


def test_a_cause_that_could_not_be_told_is_told_by_the_next_that_notices(run: RunLayout) -> None:
    site = recorded_site(run, "site")
    record_site(run, SlurmSite(name="site", notify=("false",)))
    tell_stuck(run, "prepare", "full_disk", "the disk is full")
    record_site(run, site)
    for _ in range(2):
        tell_stuck(run, "report", "full_disk", "the disk is full")
    assert told(run) == [f"me|{run.root}|stuck|stuck"]


def test_a_full_disk_is_told_again_when_there_was_room_in_between(run: RunLayout) -> None:
    def written_at_last() -> None:
        if times.pop():
            raise NO_ROOM

    sign(run, INFERENCE)
    for number in (1, 2):
        times = [False, True, True]
        retrying(written_at_last, "a shard", replace(patience(run, INFERENCE), full_limit_s=60))
        assert len(told(run)) == number


def test_what_an_attempt_has_finished_since_takes_the_full_disk_back(run: RunLayout) -> None:
    sign(run, INFERENCE)
    with pytest.raises(UserError, match="stayed full"):
        retrying(never_written, "a shard", patience(run, INFERENCE))
    run_task(str(run.root), "prepare", 0, HERE, does_nothing)
    assert (run.told / FULL_DISK).exists(), "small files of other jobs may still find room"
    run_task(str(run.root), INFERENCE, 0, HERE, does_nothing)
    assert not (run.told / FULL_DISK).exists()


def test_an_attempt_that_ends_on_the_full_disk_takes_nothing_back(run: RunLayout) -> None:
    def progresses_and_waits(task: Task) -> None:
        task.events.emit(EventKind.SHARD_COMMITTED)
        retrying(never_written, "a shard", replace(task.events.patience, full_limit_s=0.0))

    with pytest.raises(UserError, match="stayed full"):
        run_task(str(run.root), INFERENCE, 0, HERE, progresses_and_waits)
    assert (run.told / FULL_DISK).exists()
    assert len(told(run)) == 1


@pytest.mark.usefixtures("_links_within_folders")
def test_a_disk_without_room_for_any_file_is_told_too(run: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a new name finds room."""

    def full(*_: object, **__: object) -> None:
        raise NO_ROOM

    with monkeypatch.context() as patch:
        patch.setattr(told_module, "write_text", full)
        task = load_task(run, INFERENCE, 0, HERE)
        sign_for(task)
        task.events.patience.watch.full("a shard", NO_INODES)  # type: ignore[union-attr]
        task.events.patience.watch.full("a shard", NO_INODES)  # type: ignore[union-attr]
    assert len(told(run)) == 1


def returns_its_nodes(task: Task) -> None:
    peer = Role.TRAINER if task.job.role is Role.INFERENCE else Role.INFERENCE
    raise PeersAwayError("has not run for 10 minutes", task.peers(peer))


def give_back(
    run: RunLayout, job: str, role: Callable[[Task], None] = returns_its_nodes, attempt: str = "12.0"
) -> None:
    with pytest.raises(UserError, match="gave the nodes back"):
        run_task(str(run.root), job, 0, replace(HERE, attempt=attempt), role)


def test_roles_that_miss_each_other_again_and_again_are_told_once(run: RunLayout) -> None:
    for _ in range(2):
        give_back(run, INFERENCE)
        give_back(run, TRAINER)
    assert told(run) == []
    for _ in range(3):
        give_back(run, INFERENCE)
        give_back(run, TRAINER)
    assert told(run) == [f"me|{run.root}|stuck|stuck"]
    assert f"task 0 of {INFERENCE} has returned its nodes 3 times in a row because {TRAINER} did not run" in why(run)


def test_what_the_segment_finishes_begins_the_count_of_waits_again(run: RunLayout) -> None:
    def finishes_something(task: Task) -> None:
        task.events.emit(EventKind.SHARD_COMMITTED)
        returns_its_nodes(task)

    for number in range(1, 6):
        give_back(run, TRAINER)
        give_back(run, INFERENCE, finishes_something, f"12.{number}")
    assert told(run) == []
    for _ in range(3):
        give_back(run, TRAINER)
    assert len(told(run)) == 1
    give_back(run, INFERENCE, finishes_something, "12.9")
    for _ in range(3):
        give_back(run, TRAINER)
    assert len(told(run)) == 2, "this is another time of waiting"


def test_near_the_time_limit_a_later_attempt_tells_of_the_waits(run: RunLayout) -> None:
    late = replace(HERE, time_left_s=20.0)
    for place in (HERE, HERE, late, late):
        with pytest.raises(UserError, match="gave the nodes back"):
            run_task(str(run.root), TRAINER, 0, place, returns_its_nodes)
    assert told(run) == []
    give_back(run, TRAINER)
    assert len(told(run)) == 1


def failure(run: RunLayout, job: str, index: int = 0) -> None:
    record = TaskRecord(TaskState.FAILED, message="the server does not start\n  next: look")
    write_task(run, job, index, record)
    tell_failure(run, job, index, record)


@pytest.fixture
def long_run(run: RunLayout) -> RunLayout:
    """One with three segments, of which each is evaluated."""
    changes = ("schedule.iterations=6", "schedule.iterations_per_job=2", "evaluation.every=2")
    recipe = load_recipe(QUICKSTART, changes)
    write_json(run.plan, compile_plan(recipe, LocalSite()).as_json())
    return run


def test_a_failure_that_stops_the_run_is_told_while_the_report_waits(long_run: RunLayout) -> None:
    write_task(long_run, TRAINER, 0, TaskRecord(TaskState.DONE))
    failure(long_run, "segment-001.trainer")
    failure(long_run, "segment-001.trainer")
    assert told(long_run) == [f"me|{long_run.root}|stuck|stuck"]
    assert "segment-001.trainer has failed for good, so segment-001.evaluation" in why(long_run)
    assert "the server does not start" in (long_run.root.parent / "why").read_text()


def test_a_failure_that_the_report_tells_at_once_is_left_to_it(long_run: RunLayout) -> None:
    failure(long_run, "prepare")  # all other jobs are cancelled, and the report starts
    failure(long_run, "segment-000.evaluation")  # no other job needs it
    assert told(long_run) == []


def test_a_failure_that_may_be_tried_again_is_not_told(long_run: RunLayout) -> None:
    write_task(long_run, TRAINER, 0, TaskRecord(TaskState.DONE))
    tell_failure(long_run, "segment-001.trainer", 0, TaskRecord(TaskState.RETRYING))
    assert told(long_run) == []


def test_the_end_of_a_job_script_tells_of_a_task_that_was_killed(
    long_run: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "40")
    write_task(long_run, TRAINER, 0, TaskRecord(TaskState.DONE))
    write_task(long_run, "segment-001.trainer", 0, TaskRecord(TaskState.RUNNING, "40.0", failures=3))
    code = after_srun.main([str(long_run.root), "segment-001.trainer", "0", "137"])
    assert code == after_srun.AttemptOutcome.OVER
    assert len(told(long_run)) == 1


def test_a_submission_lets_every_cause_be_told_again(long_run: RunLayout) -> None:
    write_task(long_run, TRAINER, 0, TaskRecord(TaskState.DONE))
    failure(long_run, "segment-001.trainer")
    forget_told(long_run)
    failure(long_run, "segment-001.trainer")
    assert len(told(long_run)) == 2


def test_without_a_command_nothing_is_recorded(run: RunLayout) -> None:
    record_site(run, SlurmSite(name="site"))
    tell_stuck(run, TRAINER, FULL_DISK, "the disk is full")
    assert not (run.told / FULL_DISK).exists()
