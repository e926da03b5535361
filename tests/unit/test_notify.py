"""The command that tells how a run has ended, and that it is stuck."""

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil
import pytest
from basics import INFERENCE, QUICKSTART, TRAINER, executable
from families import assert_gone
from run_of import run_of

from mrt_hpc.attempt import notify
from mrt_hpc.attempt.entry import load_task, run_task
from mrt_hpc.attempt.ledger import record_site, record_submission
from mrt_hpc.attempt.notify import (
    FULL_DISK,
    forget_notices,
    notify_end,
    notify_failure,
    notify_stuck,
    patience_of,
    sign,
    sign_for,
)
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm import after_srun
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.task.context import Task
from mrt_hpc.roles.task.peers import PeersAwayError
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import NO_INODES, retrying
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task

HERE = Placement(0, 1, 0, "12.0")
SECOND = "segment-001.trainer"


@dataclass
class Notified:
    """A run whose site profile names a command that writes down what it gets."""

    layout: RunLayout
    folder: Path

    @property
    def told(self) -> list[str]:
        """The outcomes that the command got; its arguments are those of the profile, the run and the outcome."""
        path = self.folder / "told"
        lines = path.read_text().splitlines() if path.exists() else []
        outcomes = [line.rpartition("|")[2] for line in lines]
        assert lines == [f"me|{self.layout.root}|{outcome}|{outcome}" for outcome in outcomes]
        return outcomes

    @property
    def why(self) -> str:
        return (self.folder / "why").read_text()

    def command(self, *words: str) -> None:
        record_site(self.layout, SlurmSite(name="site", notify=words))

    def runs(self, job: str, role: Callable[[Task], None] = lambda _: None, place: Placement = HERE) -> None:
        run_task(str(self.layout.root), job, 0, place, role)

    def returns(self, job: str, place: Placement = HERE, *, finishes: bool = False) -> None:

        def role(task: Task) -> None:
            if finishes:
                task.events.emit(EventKind.GROUP_COMMITTED)
            peer = Role.TRAINER if task.job.role is Role.INFERENCE else Role.INFERENCE
            raise PeersAwayError("has not run for 10 minutes", task.peers(peer))

        with pytest.raises(UserError, match="gave the nodes back"):
            self.runs(job, role, place)

    def fails(self, job: str, state: TaskState = TaskState.FAILED) -> None:
        write_task(self.layout, job, 0, TaskRecord(state, message="why"))
        notify_failure(self.layout, job, 0, TaskRecord(state, message="why"))


def refused(error: Exception, *_: object, **__: object) -> None:
    raise error


never_written = partial(refused, OSError(errno.ENOSPC, "No space left on device"))


@pytest.fixture
def run(tmp_path: Path) -> Notified:
    run = Notified(run_of(tmp_path / "a run"), tmp_path)
    words = f'echo "$1|$2|$3|$MRT_HPC_OUTCOME" >> {tmp_path}/told\necho "$MRT_HPC_REASON" > {tmp_path}/why'
    executable(tmp_path / "tell", words)
    run.command(str(tmp_path / "tell"), "me")
    record_submission(run.layout, "report", "12", "site")
    return run


def test_the_report_tells_how_a_run_has_ended_and_nobody_else(run: Notified) -> None:
    run.runs("prepare")
    write_task(run.layout, "report", 0, TaskRecord(TaskState.RETRYING))
    notify_end(run.layout, "report", 0)
    assert run.told == [], "other jobs, and a report that comes back"
    with pytest.raises(UserError):
        run.runs("report", partial(refused, UserError("the report is incomplete")))
    assert run.told == ["failed"]
    run.runs("report")
    assert run.told == ["failed", "finished"]


def test_a_command_may_fail(run: Notified, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    write_task(run.layout, "report", 0, TaskRecord(TaskState.DONE))
    run.command("/no/such/command")
    notify_end(run.layout, "report", 0)
    assert "notify" in caplog.text
    capfd.readouterr()
    run.command("echo", "123")
    notify_end(run.layout, "report", 0)
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", f"123 {run.layout.root} finished\n"), "no answer of the job script"


def test_a_hung_command_ends(run: Notified, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(notify, "LONGEST_S", 2.0)
    started, child = time.monotonic(), run.folder / "child"
    run.command("sh", "-c", f"sleep 600 & echo $! > {child}; wait")
    write_task(run.layout, "report", 0, TaskRecord(TaskState.DONE))
    notify_end(run.layout, "report", 0)
    assert time.monotonic() - started < 20
    assert "timed out" in caplog.text
    with suppress(psutil.NoSuchProcess):
        assert_gone([psutil.Process(int(child.read_text()))])


def test_a_full_disk_is_told_once_by_all_tasks_and_attempts_until_there_was_room(run: Notified) -> None:
    def written_at_last() -> None:
        if times.pop():
            never_written()

    sign(run.layout, INFERENCE)
    for job in (INFERENCE, INFERENCE, TRAINER, INFERENCE):
        patience = replace(patience_of(run.layout, job, 1e-9), full_pause_s=0.0, long_wait_s=0.0)
        with pytest.raises(UserError, match="stayed full"):
            retrying(never_written, "a shard", patience)
    assert run.told == ["stuck"]
    assert all(word in run.why for word in (INFERENCE, "a shard"))
    for told in (1, 2):
        times = [False, True, True]
        retrying(written_at_last, "a shard", replace(patience, full_limit_s=60))
        assert run.told == ["stuck"] * told


def test_a_cause_is_told_by_the_next_that_notices_when_nobody_could_be_told(run: Notified) -> None:
    for command in ((), ("false",)):
        run.command(*command)
        notify_stuck(run.layout, "prepare", FULL_DISK, "the disk is full")
        assert not (run.layout.notices / FULL_DISK).exists()
    run.command(str(run.folder / "tell"), "me")
    for _ in range(2):
        notify_stuck(run.layout, "report", FULL_DISK, "the disk is full")
    assert run.told == ["stuck"]


def test_what_an_attempt_has_finished_since_takes_the_full_disk_back(run: Notified) -> None:
    def progresses_and_waits(task: Task) -> None:
        task.events.emit(EventKind.GROUP_COMMITTED)
        retrying(never_written, "a shard", replace(task.events.patience, full_limit_s=0.0))

    with pytest.raises(UserError, match="stayed full"):
        run.runs(INFERENCE, progresses_and_waits)
    assert ((run.layout.notices / FULL_DISK).exists(), run.told) == (True, ["stuck"]), "not the one that ends on it"
    run.runs("prepare")
    assert (run.layout.notices / FULL_DISK).exists(), "small files of other jobs may still find room"
    run.runs(INFERENCE)
    assert not (run.layout.notices / FULL_DISK).exists()


def test_a_disk_without_room_for_any_file_is_told_too(run: Notified, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a new name finds room, as a link; BeeGFS links within one folder only."""
    link = os.link

    def linked(source: Path, path: Path) -> None:
        if source.parent != path.parent:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        link(source, path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", linked)
        patch.setattr(notify, "write_text", never_written)
        task = load_task(run.layout, INFERENCE, 0, HERE)
        sign_for(task)
        for _ in range(2):
            task.events.patience.watch.full("a shard", NO_INODES)  # type: ignore[union-attr]
    assert run.told == ["stuck"]


def test_roles_that_miss_each_other_again_and_again_are_told_once(run: Notified) -> None:
    for outcomes in ([], [], ["stuck"], ["stuck"]):
        run.returns(INFERENCE)
        run.returns(TRAINER)
        assert run.told == outcomes
    assert all(word in run.why for word in (INFERENCE, TRAINER, "3 times"))


def test_what_the_segment_finishes_begins_the_count_of_waits_again(run: Notified) -> None:
    for number in range(1, 6):
        run.returns(TRAINER)
        run.returns(INFERENCE, replace(HERE, attempt=f"12.{number}"), finishes=True)
    assert run.told == []
    for times in (1, 2):
        for _ in range(3):
            run.returns(TRAINER)
        assert run.told == ["stuck"] * times, "each is a time of waiting of its own"
        run.returns(INFERENCE, replace(HERE, attempt="12.9"), finishes=True)


def test_near_the_time_limit_a_later_attempt_tells_of_the_waits(run: Notified) -> None:
    for time_left_s in (HERE.time_left_s, HERE.time_left_s, 20.0, 20.0):
        run.returns(TRAINER, replace(HERE, time_left_s=time_left_s))
    assert run.told == []
    run.returns(TRAINER)
    assert run.told == ["stuck"]


@pytest.fixture
def long_run(run: Notified) -> Notified:
    changes = ("schedule.iterations=6", "schedule.iterations_per_job=2", "evaluation.every=2")
    write_json(run.layout.plan, compile_plan(load_recipe(QUICKSTART, changes), LocalSite()).as_json())
    return run


def test_a_failure_that_stops_the_run_is_told_while_the_report_waits(long_run: Notified) -> None:
    long_run.fails("prepare")  # all other jobs are cancelled, and the report starts
    long_run.fails("segment-000.evaluation")  # no other job needs it
    assert long_run.told == []
    write_task(long_run.layout, "prepare", 0, TaskRecord(TaskState.DONE))
    write_task(long_run.layout, TRAINER, 0, TaskRecord(TaskState.DONE))
    long_run.fails(SECOND, TaskState.RETRYING)
    assert long_run.told == [], "it may be tried again"
    for _ in range(2):
        long_run.fails(SECOND)
    assert long_run.told == ["stuck"]
    assert all(word in long_run.why for word in (f"{SECOND} has failed", "segment-001.evaluation"))
    forget_notices(long_run.layout)
    long_run.fails(SECOND)
    assert long_run.told == ["stuck", "stuck"], "a submission lets every cause be told again"


def test_the_job_script_tells_of_a_killed_task(long_run: Notified, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "40")
    write_task(long_run.layout, TRAINER, 0, TaskRecord(TaskState.DONE))
    write_task(long_run.layout, SECOND, 0, TaskRecord(TaskState.RUNNING, "40.0", failures=3))
    code = after_srun.main([str(long_run.layout.root), SECOND, "0", "137"])
    assert (code, long_run.told) == (after_srun.AttemptOutcome.OVER, ["stuck"])
