"""How an attempt begins to sample, how it ends, what its record says then, and who runs it again."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from basics import INFERENCE, QUICKSTART, TRAINER
from commands import refusal
from run_of import bare_run, read_events, run_of, task_of

from mrt_hpc import ExitCode, RunLayout, UserError
from mrt_hpc.attempt import signals
from mrt_hpc.attempt.early_end import settle
from mrt_hpc.attempt.entry import attempt, ending_of
from mrt_hpc.attempt.ledger import record_submission
from mrt_hpc.attempt.next_state import MOST_RETURNS, Ending, EndKind, next_state
from mrt_hpc.plan.compile import build_plan
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.sampling import serving
from mrt_hpc.roles.sampling.serving import record_first_token
from mrt_hpc.roles.task.context import Task
from mrt_hpc.roles.task.peers import PeersAwayError
from mrt_hpc.roles.task.shutdown import Interrupted, RequeueRequested, ShutdownRequest
from mrt_hpc.run.events import EventKind, EventLog, event_file
from mrt_hpc.run.leases import Observer
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task, write_task

RUNNING = TaskRecord(TaskState.RUNNING, attempt="7.1", failures=1)
WHY = RequeueRequested("why")


def task(tmp_path: Path, time_left_s: float | None = None) -> Task:
    recipe, layout = load_recipe(QUICKSTART), bare_run(tmp_path)
    plan, events = build_plan(recipe, max_array_size=None), EventLog(event_file(layout.events, "report", 0, 0, "7.1"))
    return Task(
        layout=layout, experiment=recipe, plan=plan, job=plan.job("report"), index=0, rank=0, world_size=1,
        local_rank=0, attempt="7.1", events=events, observer=Observer(60.0), time_left_s=time_left_s,
    )  # fmt: skip


def record_after(task: Task, error: BaseException | None, before: TaskRecord) -> TaskRecord:
    """The record of an attempt at a task that has run and ended so."""
    return next_state(replace(before, state=TaskState.RUNNING), ending_of(task, error))


def error_of(exit_code: ExitCode) -> UserError:
    return UserError("why", exit_code=exit_code)


COUNTED = replace(RUNNING, attempt="7.0", message="earlier", returns=2, waits=3, finished=4, awaited=(INFERENCE,))
BY_ROLE = {
    "done": (None, (TaskState.DONE, 1, 2), (TaskState.DONE, 0, 0)),
    "asked": (WHY, (TaskState.GAVE_BACK, 1, 3), (TaskState.GAVE_BACK, 0, 0)),
    "full": (error_of(ExitCode.GIVE_BACK), (TaskState.GAVE_BACK, 1, 3), (TaskState.GAVE_BACK, 0, 0)),
    "stopped": (Interrupted(143), (TaskState.STOPPED, 1, 2), (TaskState.STOPPED, 0, 0)),
    "Ctrl-C": (KeyboardInterrupt(), (TaskState.STOPPED, 1, 2), (TaskState.STOPPED, 0, 0)),
    "failed": (RuntimeError("why"), (TaskState.RETRYING, 2, 2), (TaskState.RETRYING, 1, 2)),
    "fatal": (error_of(ExitCode.FATAL), (TaskState.FAILED, 2, 2), (TaskState.FAILED, 1, 2)),
}
"""How a role ends, and the record then (state, failures, returns) where it has finished nothing, and something."""
BY_CODE = {
    137: ((TaskState.RETRYING, 2, 2), (TaskState.RETRYING, 1, 2)),
    143: ((TaskState.STOPPED, 1, 3), (TaskState.STOPPED, 0, 0)),
    int(ExitCode.GIVE_BACK): ((TaskState.GAVE_BACK, 1, 3), (TaskState.GAVE_BACK, 0, 0)),
}
"""The same of an attempt that recorded no end, by its exit code."""


def counts(record: TaskRecord) -> tuple[TaskState, int, int]:
    return record.state, record.failures, record.returns


@pytest.mark.parametrize("ending", BY_ROLE)
@pytest.mark.parametrize("progressed", [False, True])
def test_what_the_role_counts(tmp_path: Path, ending: str, progressed: bool) -> None:
    error, *expected = BY_ROLE[ending]
    one = task(tmp_path)
    if progressed:
        one.events.emit(EventKind.CHECKPOINT, iteration=1)
    other = replace(one, rank=1, events=EventLog(tmp_path / "of-rank-1.jsonl"))
    for rank in (one, other):  # the other ranks know of the first one's progress
        after = record_after(rank, error, replace(COUNTED, attempt="7.1"))
        assert (counts(after), after.waits, after.finished) == (expected[progressed], 3, 4)
        assert ("why" in after.message) == ("why" in f"{error}{getattr(error, 'why', '')}")


@pytest.mark.parametrize("state", [state for state in TaskState if state is not TaskState.UNREADABLE])
@pytest.mark.parametrize("mine", [False, True])
def test_what_the_job_script_counts(tmp_path: Path, state: TaskState, mine: bool) -> None:
    """An attempt speaks for itself where it can, and what is done stays done."""
    before = replace(COUNTED, state=state, attempt="7.1" if mine else "7.0")
    is_open = state in (TaskState.RUNNING, TaskState.WAITING) if mine else state is not TaskState.DONE
    for code, expected in BY_CODE.items():
        for progressed in (False, True):
            layout = bare_run(tmp_path / f"{code}{progressed}")
            if progressed:
                EventLog(event_file(layout.events, "j", 0, 0, "7.1")).emit(EventKind.GROUP_COMMITTED)
            write_task(layout, "j", 0, before)
            after = settle(layout, "j", 0, "7.1", code, retries=3)
            assert counts(after) == (expected[progressed] if is_open else counts(before)), (code, progressed)
            assert (after.attempt, after.waits, after.finished) == ("7.1" if is_open else before.attempt, 3, 4)
            assert after.awaited == (() if is_open else (INFERENCE,)), "explain would name the jobs as the cause"
            assert counts(read_task(layout, "j", 0)) == counts(after)


def test_only_the_first_rank_tells_of_a_lost_attempt_and_a_library_that_ends_the_process_fails(tmp_path: Path) -> None:
    for rank in range(2):
        attempt(replace(task(tmp_path), rank=rank, world_size=2), lambda _: None, earlier=("7.0", 1.0))
    started = read_events(RunLayout(tmp_path).events, EventKind.TASK_STARTED)
    assert [event["earlier"] for event in started] == [{"attempt": "7.0", "until": 1.0}, None]
    refusal(attempt, task(tmp_path), lambda _: sys.exit(0))
    assert read_task(RunLayout(tmp_path), "report", 0).state is TaskState.RETRYING


def test_a_time_limit_too_short_for_anything_counts_as_a_failure(tmp_path: Path) -> None:
    hurried = task(tmp_path, time_left_s=80.0)
    after = record_after(hurried, WHY, RUNNING)
    assert (after.state, after.failures) == (TaskState.RETRYING, 2)
    assert "resources.report.time_limit_minutes" in after.message
    with pytest.raises(RequeueRequested), hurried.shutdown.while_waiting():
        hurried.shutdown.interrupt(WHY)
    assert record_after(hurried, WHY, RUNNING).state is TaskState.GAVE_BACK, "it had to wait for its peers"
    working = task(tmp_path, time_left_s=80.0)
    working.events.emit(EventKind.GROUP_COMMITTED)
    after = record_after(working, WHY, RUNNING)
    assert (after.state, after.failures) == (TaskState.GAVE_BACK, 0)


def test_waits_for_peers_are_counted_until_the_segment_finishes_something(tmp_path: Path) -> None:
    layout = run_of(tmp_path)
    trainer, inference = (task_of(layout, job) for job in (TRAINER, INFERENCE))
    away, record = PeersAwayError("has not run for 10 minutes", trainer.peers(Role.INFERENCE)), RUNNING
    for times in (4, MOST_RETURNS):
        for waits in range(1, times + 1):
            record = record_after(trainer, away, record)
            assert (record.state, record.waits, record.failures) == (TaskState.GAVE_BACK, waits, 1)
        if times < MOST_RETURNS:
            inference.events.emit(EventKind.GROUP_COMMITTED)
    assert record_after(trainer, away, record).state is TaskState.FAILED


@pytest.mark.parametrize(
    ("later", "mine"), [("7.2", "7.1"), ("10_1.1", "9_1.4"), ("10_1.1", "10_1.0"), ("3_1.0", "10_1.1")]
)
def test_a_later_attempt_speaks_for_itself_alone(tmp_path: Path, later: str, mine: str) -> None:
    layout = bare_run(tmp_path)
    for job_id in ("7", "9", "10", "3"):  # the controller has begun to count again
        record_submission(layout, "j", job_id, "site")
    write_task(layout, "j", 0, TaskRecord(TaskState.RUNNING, later))
    for record in (settle(layout, "j", 0, mine, 137, retries=3), read_task(layout, "j", 0)):
        assert (record.state, record.attempt, record.failures) == (TaskState.RUNNING, later, 0)


def test_how_the_ranks_of_an_attempt_ended_is_found_in_its_events(tmp_path: Path) -> None:
    layout = bare_run(tmp_path)
    for rank, outcome in enumerate(("stopped", "retrying")):
        EventLog(event_file(layout.events, "failed", 0, rank, "7.1")).emit(EventKind.TASK_ENDED, outcome=outcome)
    write_task(layout, "failed", 0, RUNNING)
    after = settle(layout, "failed", 0, "7.1", 143, retries=3)
    assert (after.state, after.failures) == (TaskState.RETRYING, 2), "not hidden by the rank that was told to leave"


def test_a_request_is_raised_at_once_unless_safe_points_are_asked_for() -> None:
    request = ShutdownRequest()
    with pytest.raises(RequeueRequested):
        request.interrupt(WHY)
    assert not request.interrupt(Interrupted(143)), "what unwinds is not unwound again"
    request.force()
    request = ShutdownRequest()
    with request.defer_to_safe_points():
        assert request.interrupt(WHY) and request.is_given
        assert request.interrupt(Interrupted(143)), "a preemption may be announced and then come"
        with pytest.raises(Interrupted) as ending:
            request.leave_if_given()
        assert ending.value.code == 143
    request = ShutdownRequest()
    with request.defer_to_safe_points(), pytest.raises(RequeueRequested):
        request.interrupt(WHY)
        request.force()
    ShutdownRequest().leave_if_given()


@pytest.fixture
def heeding() -> Iterator[SimpleNamespace]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGALRM)}
    heeding = SimpleNamespace(shutdown=ShutdownRequest(), seconds_left=float("inf"))
    signals.heed_signals(heeding)  # type: ignore[arg-type]
    yield heeding
    signal.alarm(0)
    for number, handler in kept.items():
        signal.signal(number, handler)


def test_signals_become_requests_and_a_safe_point_is_waited_for_while_there_is_time(heeding: SimpleNamespace) -> None:
    with pytest.raises(Interrupted) as stopped:
        os.kill(os.getpid(), signal.SIGTERM)
    assert stopped.value.code == 143
    assert signal.alarm(0) > 0, "should a library swallow the exception, the kernel ends the process"
    heeding.shutdown = ShutdownRequest()
    with pytest.raises(RequeueRequested) as gave_back:
        os.kill(os.getpid(), signal.SIGUSR2)
    assert gave_back.value.code == ExitCode.GIVE_BACK
    heeding.shutdown = ShutdownRequest()
    with heeding.shutdown.defer_to_safe_points():
        os.kill(os.getpid(), signal.SIGUSR2)
        assert heeding.shutdown.is_given
        assert signal.alarm(0) > 3600
    heeding.shutdown, heeding.seconds_left = ShutdownRequest(), signals.LAST_MOMENT_S + 1.5
    with pytest.raises(RequeueRequested), heeding.shutdown.defer_to_safe_points():
        os.kill(os.getpid(), signal.SIGUSR2)
        signal.sigtimedwait([], 20)  # until the alarm comes


def first_tokens(one: Task, *counts: int | None, unfinished: int = 1, tokens: int = 0) -> tuple[list[float], int]:
    """The recorded times, of a server whose counters take these values one after the other; and how many were read."""
    server = Mock(unfinished=unfinished, generated_tokens=tokens)
    server.control.tokens_done.side_effect = counts

    async def watched() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(5 if unfinished else 0.05):
                await record_first_token(one, server, server)

    asyncio.run(watched())
    times = [event["seconds"] for event in read_events(one.layout.events, EventKind.FIRST_TOKEN)]
    return times, server.control.tokens_done.call_count


def test_the_first_token_is_written_once_as_the_counters_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "LOOK_EVERY_S", 0.001)
    one = task(tmp_path / "one")
    assert first_tokens(one, unfinished=0) == ([], 0), "a server without work is left alone"
    (seconds,), read = first_tokens(one, 0, None, 0, 4)
    assert (read, 0 < seconds <= one.age_s) == (4, True), "it was not written before the counters had moved"
    assert first_tokens(one, 9) == ([seconds], 0)
    (_,), read = first_tokens(task(tmp_path / "other"), unfinished=0, tokens=3)
    assert read == 0, "all work has ended between two looks"


def test_a_task_that_finishes_nothing_is_told_which_limit_to_raise(tmp_path: Path) -> None:
    layout = bare_run(tmp_path)
    for job, section in ((INFERENCE, "inference"), ("segment-000.colocated", "trainer")):
        often = TaskRecord(TaskState.RUNNING, attempt="13.0", returns=MOST_RETURNS)
        write_task(layout, job, 0, next_state(often, Ending(EndKind.RETURNED, "13.0")))
        said = read_task(layout, job, 0).message
        assert f"mrt-hpc submit {layout.word}" in said and f"--set resources.{section}.time_limit_minutes=" in said
