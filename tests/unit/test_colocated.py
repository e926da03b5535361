"""A segment as one task: its plan, the turns of its two processes, how one ends with the other, and its account."""

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Timer
from unittest.mock import Mock, call

import psutil
import pytest
from commands import recipe, refusal
from families import assert_gone
from run_of import publish_some, read_events, run_of, say, task_of
from samples import sampled
from tables import tables

from mrt_hpc import ExitCode, Problem, RunLayout
from mrt_hpc.analysis.spending import attempts
from mrt_hpc.attempt.colocated import run_companion, start_companion
from mrt_hpc.attempt.entry import ending_of
from mrt_hpc.attempt.next_state import next_state
from mrt_hpc.backends.local.slots import largest_need
from mrt_hpc.plan.compile import build_plan
from mrt_hpc.plan.jobs import Plan, Role
from mrt_hpc.roles.sampling.round_sampler import Rounds
from mrt_hpc.roles.sampling.serving import Rest
from mrt_hpc.roles.task.context import Companion, Task, turn_of
from mrt_hpc.roles.task.shutdown import Interrupted, RequeueRequested
from mrt_hpc.run.event_stream import EventStream, has_progressed
from mrt_hpc.run.events import EventKind, EventLog, Use, event_file
from mrt_hpc.run.groups import commit_group
from mrt_hpc.run.manifest import commit_whole
from mrt_hpc.run.problems import write_problems
from mrt_hpc.run.retries import wait_until
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task
from mrt_hpc.run.turns import Turn, remove_abandoned

COLOCATED, JOB = "schedule.coupling=colocated", "segment-000.colocated"


def plan(*changes: str, name: str = "quickstart") -> Plan:
    return build_plan(recipe(name, COLOCATED, *changes), max_array_size=None)


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    """A run of one segment of two iterations with one group each, whose task runs."""
    short = ("schedule.iterations=2", "schedule.iterations_per_job=2", "sampling.problems_per_iteration=1")
    layout = run_of(tmp_path / "run", COLOCATED, *short)
    publish_some(layout, 0)
    say(layout, JOB, TaskState.RUNNING)
    return layout


@pytest.fixture
def trainer(layout: RunLayout) -> Task:
    """The process of rank 0; its companion has rank 1."""
    return task_of(layout, JOB)


def test_a_segment_is_one_job_and_collections_stay_jobs_of_inference() -> None:
    found = plan("schedule.iterations=4", "schedule.iterations_per_job=2")
    segments = [f"segment-00{n}.{role}" for n in (0, 1) for role in ("colocated", "evaluation")]
    assert [job.name for job in found.jobs] == ["prepare", *segments, "report"]
    first, second = found.job(JOB), found.job("segment-001.colocated")
    assert (first.tasks, [wait.job for wait in second.after]) == (1, [JOB])
    assert [role for role in Role if first.does(role)] == [Role.INFERENCE, Role.TRAINER, Role.COLOCATED]
    assert {wait.job for wait in found.job("segment-001.evaluation").after} == {"segment-001.colocated"}
    collecting = plan("schedule.iterations_per_job=10", name="small_world/mrt")
    assert [job.name for job in collecting.jobs][:3] == ["prepare", "collection.inference", JOB]


def test_it_has_the_memory_of_both_and_the_gpus_of_one() -> None:
    resources = "resources.trainer={ranks: 2, gpus: 1, cpus: 4, memory_gib: 10}"
    found = plan(resources, "resources.inference={gpus: 2, cpus: 12, memory_gib: 7}", "resources.evaluation.gpus=2")
    needs = found.job(JOB).resources
    assert (needs.nodes, needs.ranks, needs.gpus, needs.cpus, needs.memory_gib_per_node) == (1, 2, 2, 12, 27)
    assert largest_need(found) == (12, 2)


def test_what_does_not_fit_is_refused() -> None:
    for change, field in tables("colocated")["unfit"]:
        assert field in refusal(plan, change).message()


def test_one_of_two_has_the_turn(tmp_path: Path) -> None:
    trainer, inference = Turn(tmp_path / "turn"), Turn(tmp_path / "turn")
    assert inference.take() and inference.take(), "who has it keeps it"
    trainer.pass_on()
    assert not trainer.take(), "only its holder passes it on"
    with subprocess.Popen(["sleep", "60"], close_fds=False) as child:  # does not keep it
        inference.pass_on()
        assert (inference.is_mine, trainer.take()) == (False, True)
        child.kill()
    assert not inference.take()
    alone = Turn()
    alone.pass_on()
    assert (alone.take(), alone.is_mine, alone.is_shared) == (True, True, False)


def test_what_a_killed_process_has_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, held, link = tmp_path / "left", Turn(tmp_path / "held"), tmp_path / "link"
    left.touch()
    link.symlink_to(left)
    assert held.take()
    remove_abandoned([left, tmp_path / "held", link, tmp_path / "gone"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["held", "link"]
    held.pass_on()
    with monkeypatch.context() as another_user:
        another_user.setattr(os, "geteuid", lambda: 4711)
        remove_abandoned([tmp_path / "held"])
        assert (tmp_path / "held").exists()
        assert "another user" in refusal(Turn(tmp_path / "turn").take).message()
    remove_abandoned([tmp_path / "held"])
    assert not (tmp_path / "held").exists()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, 524])
def test_a_filesystem_without_locks_is_named(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "left").touch()
    for attempt in (Turn(tmp_path / "turn").take, partial(remove_abandoned, [tmp_path / "left"])):
        refused = refusal(attempt)
        assert ("scratch" in str(refused.advice), str(tmp_path) in str(refused.where)) == (True, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["left", "turn"]


def test_it_samples_in_its_turn_and_passes_it_on_when_nothing_can_be_sampled(layout: RunLayout, tmp_path: Path) -> None:
    other, turn, server = Turn(tmp_path / "turn"), Turn(tmp_path / "turn"), Mock()  # no server sleeps on a CPU
    rest = Rest(turn, [server])
    rounds = Rounds(replace(task_of(layout, JOB, rank=1), turn=turn), problems=10, rest=rest.begin)
    assert other.take()
    assert rounds._look() is None
    other.pass_on()
    assert rounds.await_round() is not None
    assert (turn.is_mine, server.mock_calls) == (True, [])
    commit_group(layout.group(0, 0), sampled())
    assert rounds._look() is None, "iteration 1 needs newer weights"
    assert (turn.is_mine, server.mock_calls) == (False, [call.sleep()])
    publish_some(layout, 1)
    work = rounds.await_round()
    assert work and (work.iteration, work.version, turn.is_mine) == (1, 1, True)
    rest.end()
    assert server.mock_calls == [call.sleep(), call.wake_up()]


def test_it_samples_until_a_checkpoint_holds_the_last_state(layout: RunLayout) -> None:
    """Else a trainer that goes back to an earlier state would find no one to sample for it."""
    publish_some(layout, 2)
    rounds = Rounds(task_of(layout, JOB, rank=1), problems=10)
    assert not rounds.are_over()
    commit_whole(layout.checkpoint(2), lambda _: None, state="another attempt's")
    assert not rounds.are_over(), "of two attempts, which the trainer sees to"
    shutil.rmtree(layout.checkpoint(2))
    commit_whole(layout.checkpoint(2), lambda _: None)
    assert rounds.are_over()


def test_its_failure_is_the_failure_of_the_task(layout: RunLayout, trainer: Task) -> None:
    """A real one, which finds no training problems. Its own record names the cause, and the trainer's does not
    replace it.
    """
    layout.train_data.unlink(missing_ok=True)
    companion = start_companion(trainer)
    blocked = Path(f"/proc/{companion.process.pid}/status").read_text().partition("SigBlk:")[2].split()[0]
    assert int(blocked, 16) & 1 << signal.SIGUSR2 - 1, "the signal of the time limit is for the first rank"
    assert signal.SIGUSR2 not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert companion.process.wait(120) != 0
    assert str(companion.log) in refusal(replace(trainer, companion=companion)._check_companion).message()
    record = read_task(layout, JOB, 0)
    assert record.state in (TaskState.RETRYING, TaskState.FAILED), companion.log.read_text()
    assert str(layout.train_data) in record.message
    assert event_file(layout.events, JOB, 0, 1, "a").is_file()
    assert not turn_of(trainer).path.exists()  # type: ignore[union-attr]


def test_an_attempt_removes_what_killed_ones_have_left_of_their_turns(trainer: Task) -> None:
    """Both processes of those were killed at once. Another task has turns of its own."""
    killed, other = replace(trainer, attempt="killed"), replace(trainer, index=7)
    left, own, others = (turn_of(task).path for task in (killed, trainer, other))
    assert left and own and others
    for path in (left, others):
        path.touch()
    try:
        with pytest.raises(Interrupted), run_companion(trainer):
            assert (left.exists(), own.exists(), others.exists()) == (False, True, True)
            left.touch()  # its companion has outlived it a bit
            raise Interrupted(128 + signal.SIGTERM)
        assert (left.exists(), own.exists(), others.exists()) == (False, False, True)
    finally:
        others.unlink()


PARENT = """
import sys, time
from pathlib import Path
from run_of import task_of
from mrt_hpc.attempt.colocated import start_companion
from mrt_hpc.roles.task.context import turn_of
from mrt_hpc.run.layout import RunLayout
task = task_of(RunLayout(Path(sys.argv[1])), "segment-000.colocated")
turn = turn_of(task)
turn.take()
print(start_companion(task).process.pid, flush=True)
time.sleep(600)
"""


def test_it_waits_for_its_turn_and_ends_with_the_trainer(layout: RunLayout, trainer: Task) -> None:
    """Two real processes: the trainer has the turn, and is killed while its companion waits for it."""
    write_problems(layout.train_data, [Problem("p", "1 + 1", "2")])
    mine = event_file(layout.events, JOB, 0, 1, "a")
    command, support = [sys.executable, "-c", PARENT, str(layout.root)], {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **support}) as parent:
        try:
            assert parent.stdout is not None
            companion = psutil.Process(int(parent.stdout.readline()))
            wait_until(lambda: mine.is_file() and b"waiting" in mine.read_bytes(), reason="a wait", deadline_s=120)
            assert not read_events(layout.events, EventKind.SERVER_STARTED)
        finally:
            parent.kill()
    assert_gone([companion])
    assert "stopped" in mine.read_text()
    assert read_task(layout, JOB, 0).state is TaskState.RUNNING, "the end of the trainer is for its back end to record"
    assert not turn_of(trainer).path.exists()  # type: ignore[union-attr]


def companion_of(folder: Path, command: str) -> Companion:
    return Companion(subprocess.Popen(["sh", "-c", command]), folder / "log")


@pytest.mark.parametrize(("code", "expected"), [
    (1, ExitCode.RETRYABLE), (2, ExitCode.FATAL), (75, ExitCode.GIVE_BACK), (0, ExitCode.RETRYABLE)
])  # fmt: skip
def test_its_end_before_the_segment_ends_the_task(tmp_path: Path, code: int, expected: ExitCode) -> None:
    ended = companion_of(tmp_path, f"exit {code}")
    ended.process.wait()
    assert refusal(ended.check).exit_code is expected


def test_a_trainer_whose_companion_was_stopped_leaves_at_its_next_safe_point(trainer: Task, tmp_path: Path) -> None:
    sleeping = companion_of(tmp_path, "exec sleep 60")
    trainer = replace(trainer, companion=sleeping)
    trainer._check_companion()
    assert not trainer.shutdown.is_given
    sleeping.end()
    with trainer.shutdown.defer_to_safe_points():
        trainer._check_companion()
    assert trainer.shutdown.is_given


def test_a_request_to_stop_is_passed_on(trainer: Task, tmp_path: Path) -> None:
    sleeping = companion_of(tmp_path, "exec sleep 60")
    trainer.shutdown.forward = sleeping.interrupt
    with trainer.shutdown.defer_to_safe_points():
        assert trainer.shutdown.interrupt(Interrupted(143))
    assert sleeping.process.wait(30) == -15


def test_a_task_that_leaves_records_that_before_its_companion_has_ended(trainer: Task) -> None:
    """Slurm kills the first rank some seconds after the others have left."""
    recorded = list[Interrupted]()
    trainer.shutdown.record = recorded.append
    with pytest.raises(Interrupted) as left, run_companion(trainer):
        trainer.shutdown.interrupt(Interrupted(143))
    assert recorded == [left.value]


def test_a_request_after_the_segment_is_trained_does_not_make_it_run_again(trainer: Task) -> None:
    """It comes while the trainer waits for the end of its companion, which it passes the request on to."""
    before = signal.signal(signal.SIGUSR1, lambda *_: trainer.shutdown.interrupt(RequeueRequested("why")))
    soon = Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        with run_companion(trainer) as with_companion:
            soon.start()
    finally:
        soon.join()
        signal.signal(signal.SIGUSR1, before)
    assert with_companion.companion and with_companion.companion.was_stopped
    assert trainer.shutdown.is_given


def test_what_the_companion_has_committed_counts_as_progress(layout: RunLayout, trainer: Task) -> None:
    EventLog(event_file(layout.events, JOB, 0, 1, "a")).emit(EventKind.GROUP_COMMITTED)
    assert has_progressed(layout.events, JOB, 0, "a")
    assert ending_of(trainer, None).progressed


def test_a_limit_too_short_for_anything_is_recorded_although_the_trainer_waited(trainer: Task) -> None:
    hurried = replace(trainer, time_left_s=60.0)
    with hurried.shutdown.defer_to_safe_points(), hurried.shutdown.while_waiting():
        hurried.shutdown.interrupt(RequeueRequested("why"))
    record = next_state(TaskRecord(TaskState.RUNNING, attempt="a"), ending_of(hurried, RequeueRequested("why")))
    assert (record.state, record.failures) == (TaskState.RETRYING, 1)
    assert "resources.trainer.time_limit_minutes" in record.message


def test_while_the_trainer_waits_the_use_of_its_companion_counts(layout: RunLayout) -> None:
    now, where = time.time(), {"job": JOB, "task": 0}
    started = {"kind": EventKind.TASK_STARTED, **where, "attempt": "a", "world_size": 1, "began": None}
    ended = (80, {"kind": EventKind.TASK_ENDED, **where, "rank": 0, "outcome": "done"})
    spent = ([(10, Use.WAITING), (60, Use.TRAINING)], [(20, Use.GENERATING), (50, Use.WAITING), (70, Use.ENDING)])
    for rank, uses in enumerate(spent):
        used = [(after, {"kind": EventKind.USE, "use": use}) for after, use in uses]
        events = [(rank, {**started, "rank": rank}), *used, *([] if rank else [ended])]
        lines = [json.dumps({"time": now + after, "host": "n", "pid": rank, **event}) for after, event in events]
        path = event_file(layout.events, JOB, 0, rank, "a")
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines))
    (attempt,) = attempts(layout, EventStream(layout.events))
    expected = {Use.STARTING: 20, Use.GENERATING: 30, Use.WAITING: 10, Use.TRAINING: 20}
    assert attempt.time_by_use(now, 80) == pytest.approx(expected)
