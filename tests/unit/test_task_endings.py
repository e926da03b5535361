"""How an attempt ends, what its record says then, and who runs it again."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mrt_hpc.attempt import entry
from mrt_hpc.attempt.end import RUNS_AGAIN, settled
from mrt_hpc.attempt.entry import attempt, record_after
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.plan.compile import build_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.task.context import Task
from mrt_hpc.roles.task.shutdown import Interrupted, RequeueRequested, ShutdownRequest
from mrt_hpc.run.events import EventKind, EventLog, event_file, read_events
from mrt_hpc.run.heartbeats import Observer
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import MOST_RETURNS, TaskRecord, TaskState, read_task, write_task

if TYPE_CHECKING:
    from collections.abc import Iterator

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
RUNNING = TaskRecord(TaskState.RUNNING, attempt="7.1", failures=1)


def task(tmp_path: Path, time_left_s: float | None = None) -> Task:
    recipe = load_recipe(QUICKSTART)
    plan = build_plan(recipe, max_array_size=None)
    events = EventLog(event_file(RunLayout(tmp_path).events, "report", 0, 0, "7.1"))
    return Task(
        layout=RunLayout(tmp_path), experiment=recipe, plan=plan, job=plan.job("report"), index=0, rank=0, world_size=1,
        local_rank=0, attempt="7.1", events=events, observer=Observer(60.0),
        time_left_s=time_left_s,
    )  # fmt: skip


def error_of(exit_code: ExitCode) -> UserError:
    return UserError("why", exit_code=exit_code)


@pytest.mark.parametrize(
    ("error", "state", "failures"),
    [
        (None, TaskState.DONE, 1),
        (Interrupted(143), TaskState.STOPPED, 1),
        (KeyboardInterrupt(), TaskState.STOPPED, 1),
        (RequeueRequested("why"), TaskState.GAVE_BACK, 1),
        (error_of(ExitCode.GIVE_BACK), TaskState.GAVE_BACK, 1),
        (error_of(ExitCode.RETRYABLE), TaskState.RETRYING, 2),
        (error_of(ExitCode.FATAL), TaskState.FAILED, 2),
        (RuntimeError("why"), TaskState.RETRYING, 2),
    ],
)
def test_what_is_said_of_an_attempt(
    tmp_path: Path, error: BaseException | None, state: TaskState, failures: int
) -> None:
    after = record_after(task(tmp_path), error, RUNNING)
    assert (after.state, after.failures) == (state, failures)
    assert ("why" in after.message) == (error is not None and "why" in f"{error}{getattr(error, 'why', '')}")


def test_only_the_first_rank_tells_of_an_attempt_that_was_lost(tmp_path: Path) -> None:
    """The others may see the heart of their own attempt beat."""
    for rank in range(2):
        attempt(replace(task(tmp_path), rank=rank, world_size=2), lambda _: None, earlier=("7.0", 1.0))
    started = read_events(RunLayout(tmp_path).events, EventKind.TASK_STARTED)
    assert [event["earlier"] for event in started] == [{"attempt": "7.0", "until": 1.0}, None]


def test_the_fourth_failure_in_a_row_of_three_allowed_is_the_last(tmp_path: Path) -> None:
    record = TaskRecord(TaskState.RUNNING, failures=3)
    failing = task(tmp_path)
    assert record_after(failing, RuntimeError("again"), record).state is TaskState.FAILED
    failing.events.emit(EventKind.CHECKPOINT, iteration=1)
    after = record_after(failing, RuntimeError("again"), record)
    assert (after.state, after.failures) == (TaskState.RETRYING, 1), "what had got somewhere may get further"


def test_a_time_limit_too_short_for_anything_counts_as_a_failure(tmp_path: Path) -> None:
    hurried = task(tmp_path, time_left_s=80.0)
    after = record_after(hurried, RequeueRequested("why"), RUNNING)
    assert (after.state, after.failures) == (TaskState.RETRYING, 2)
    assert "raise resources.report.time_limit_minutes" in after.message
    with pytest.raises(RequeueRequested), hurried.shutdown.while_waiting():
        hurried.shutdown.tell(RequeueRequested("why"))
    assert record_after(hurried, RequeueRequested("why"), RUNNING).state is TaskState.GAVE_BACK, (
        "it had to wait for its peers"
    )
    working = task(tmp_path, time_left_s=80.0)
    working.events.emit(EventKind.SHARD_COMMITTED)
    after = record_after(working, RequeueRequested("why"), RUNNING)
    assert (after.state, after.failures) == (TaskState.GAVE_BACK, 0), "failures count in a row"


@pytest.mark.parametrize(
    ("error", "waits", "most"),
    [
        (RequeueRequested("why"), False, 6),
        (RequeueRequested("why"), True, MOST_RETURNS),
        (error_of(ExitCode.GIVE_BACK), False, MOST_RETURNS),
    ],
)
def test_a_task_that_returns_its_nodes_again_and_again_fails(
    tmp_path: Path, error: BaseException, waits: bool, most: int
) -> None:
    """Also where it believes that its time limit is far."""
    believing, record = task(tmp_path, time_left_s=1800.0), RUNNING
    believing.shutdown.found_waiting = waits
    for _ in range(most):
        record = record_after(believing, error, record)
        assert record.state is TaskState.GAVE_BACK
    after = record_after(believing, error, record)
    assert (after.state, "time_limit_minutes" in after.message) == (TaskState.FAILED, True)
    believing.events.emit(EventKind.CHECKPOINT, iteration=1)
    after = record_after(believing, error, record)
    assert (after.state, after.returns) == (TaskState.GAVE_BACK, 0)


@pytest.mark.parametrize("exit_code", [ExitCode.GIVE_BACK, 143])
def test_attempts_that_end_without_a_record_of_their_own_are_counted(tmp_path: Path, exit_code: int) -> None:
    layout = RunLayout(tmp_path)
    for number in range(MOST_RETURNS):
        assert settled(layout, "j", 0, f"7.{number}", exit_code, 3).state in RUNS_AGAIN
    once = settled(layout, "j", 0, f"7.{MOST_RETURNS - 1}", exit_code, 3)
    assert (once.state in RUNS_AGAIN, once.returns) == (True, MOST_RETURNS), "a second question counts nothing"
    assert settled(layout, "j", 0, f"7.{MOST_RETURNS}", exit_code, 3).state is TaskState.FAILED


def test_the_other_ranks_know_of_the_first_ones_progress(tmp_path: Path) -> None:
    task(tmp_path).events.emit(EventKind.CHECKPOINT, iteration=1)
    other = replace(task(tmp_path), rank=1, events=EventLog(tmp_path / "of-rank-1.jsonl"))
    assert record_after(other, RuntimeError("why"), RUNNING).failures == 1


def test_a_library_that_ends_the_process_has_failed(tmp_path: Path) -> None:
    def leave(_: Task) -> None:
        raise SystemExit(0)

    with pytest.raises(UserError, match="a library ended the process"):
        attempt(task(tmp_path), leave)
    assert read_task(RunLayout(tmp_path), "report", 0).state is TaskState.RETRYING


def settle(tmp_path: Path, before: TaskRecord | None, attempt: str = "7.1", exit_code: int = 137) -> TaskRecord:
    layout = RunLayout(tmp_path)
    if before is not None:
        write_task(layout, "j", 0, before)
    after = settled(layout, "j", 0, attempt, exit_code, retries=3)
    assert read_task(layout, "j", 0).state is after.state
    return after


def test_an_attempt_that_ended_without_a_word_has_failed(tmp_path: Path) -> None:
    after = settle(tmp_path, RUNNING)
    assert (after.state, after.failures) == (TaskState.RETRYING, 2)
    assert "137" in after.message


def test_one_that_died_before_it_could_say_anything_has_failed_too(tmp_path: Path) -> None:
    assert settle(tmp_path, None).failures == 1
    earlier = TaskRecord(TaskState.GAVE_BACK, attempt="7.0", failures=3)
    assert settle(tmp_path, earlier).state is TaskState.FAILED, (
        "else an environment that is broken would go on for ever"
    )


def test_what_one_that_died_had_done_is_found_in_its_events(tmp_path: Path) -> None:
    EventLog(event_file(RunLayout(tmp_path).events, "j", 0, 0, "7.1")).emit(EventKind.SHARD_COMMITTED)
    assert settle(tmp_path, TaskRecord(TaskState.RUNNING, attempt="7.1", failures=3)).failures == 1


def test_a_task_that_gave_back_and_could_not_say_so_is_run_again(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    write_task(layout, "j", 0, RUNNING)
    after = settled(layout, "j", 0, "7.1", ExitCode.GIVE_BACK, 3)
    assert (after.state, after.failures) == (TaskState.GAVE_BACK, 1)


@pytest.mark.parametrize("state", [TaskState.DONE, TaskState.GAVE_BACK, TaskState.STOPPED, TaskState.FAILED])
def test_the_word_of_an_attempt_stands(tmp_path: Path, state: TaskState) -> None:
    after = settle(tmp_path, TaskRecord(state, attempt="7.1"))
    assert (after.state, after.failures) == (state, 0)
    assert (state in RUNS_AGAIN) == (state in (TaskState.GAVE_BACK, TaskState.STOPPED))


def test_an_attempt_of_which_another_rank_was_faster_to_leave_has_not_failed(tmp_path: Path) -> None:
    after = settle(tmp_path, TaskRecord(TaskState.RUNNING, attempt="7.1", failures=1), exit_code=143)
    assert (after.state, after.failures) == (TaskState.STOPPED, 1)
    assert after.state in RUNS_AGAIN


def test_a_rank_that_failed_is_not_hidden_by_one_that_was_told_to_leave(tmp_path: Path) -> None:
    for rank, outcome in enumerate(("stopped", "retrying")):
        log = EventLog(event_file(RunLayout(tmp_path).events, "j", 0, rank, "7.1"))
        log.emit(EventKind.TASK_ENDED, outcome=outcome)
    after = settle(tmp_path, RUNNING, exit_code=143)
    assert (after.state, after.failures) == (TaskState.RETRYING, 2)


def test_an_attempt_taken_for_lost_does_not_speak_for_the_one_after_it(tmp_path: Path) -> None:
    after = settle(tmp_path, TaskRecord(TaskState.RUNNING, attempt="7.2"), attempt="7.1")
    assert (after.state, after.failures) == (TaskState.RUNNING, 0)
    assert after.state not in RUNS_AGAIN


@pytest.mark.parametrize("attempt", ["9_1.4", "10_1.0"])
def test_a_task_that_was_cancelled_does_not_speak_for_the_one_submitted_after_it(tmp_path: Path, attempt: str) -> None:
    after = settle(tmp_path, TaskRecord(TaskState.RUNNING, attempt="10_1.1"), attempt=attempt)
    assert (after.state, after.attempt) == (TaskState.RUNNING, "10_1.1")


def test_a_full_disk_does_not_turn_giving_back_into_a_failure(tmp_path: Path) -> None:
    """The attempt could not even write that it runs."""
    layout = RunLayout(tmp_path)
    write_task(layout, "j", 0, TaskRecord(TaskState.RETRYING, attempt="7.0", failures=3))
    after = settled(layout, "j", 0, "7.1", ExitCode.GIVE_BACK, 3)
    assert (after.state, after.failures) == (TaskState.GAVE_BACK, 3)


def test_a_request_is_raised_at_once_unless_safe_points_are_asked_for() -> None:
    request = ShutdownRequest()
    with pytest.raises(RequeueRequested):
        request.tell(RequeueRequested("why"))
    request = ShutdownRequest()
    with request.at_safe_points():
        assert request.tell(RequeueRequested("why"))
        assert request.given
        assert request.tell(Interrupted(143)), "a preemption may be announced and then come"
        with pytest.raises(Interrupted) as ending:
            request.leave_if_given()
        assert ending.value.code == 143
    request = ShutdownRequest()
    with request.at_safe_points():
        assert request.tell(RequeueRequested("why"))
        with pytest.raises(RequeueRequested):
            request.force()
    ShutdownRequest().leave_if_given()


def test_what_unwinds_is_not_unwound_again() -> None:
    request = ShutdownRequest()
    with pytest.raises(RequeueRequested):
        request.tell(RequeueRequested("why"))
    assert not request.tell(Interrupted(143))
    request.force()


class Told:
    """As much of a task as the handlers look at."""

    def __init__(self) -> None:
        self.shutdown = ShutdownRequest()
        self.seconds_left = float("inf")


@pytest.fixture
def told() -> Iterator[Told]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGALRM)}
    task = Told()
    entry.heed_signals(task)  # type: ignore[arg-type]
    yield task
    signal.alarm(0)
    for number, handler in kept.items():
        signal.signal(number, handler)


def test_signals_become_requests(told: Told) -> None:
    with pytest.raises(Interrupted) as stopped:
        os.kill(os.getpid(), signal.SIGTERM)
    assert stopped.value.code == 143
    assert signal.alarm(0) > 0, "should a library swallow the exception, the kernel ends the process"
    told.shutdown = ShutdownRequest()
    with pytest.raises(RequeueRequested) as gave_back:
        os.kill(os.getpid(), signal.SIGUSR2)
    assert gave_back.value.code == ExitCode.GIVE_BACK


def test_near_the_time_limit_the_way_to_a_safe_point_is_cut_short(told: Told) -> None:
    told.seconds_left = entry.LAST_MOMENT_S + 1.5
    with pytest.raises(RequeueRequested), told.shutdown.at_safe_points():
        os.kill(os.getpid(), signal.SIGUSR2)
        signal.sigtimedwait([], 20)  # until the alarm comes


def test_while_there_is_time_a_safe_point_is_waited_for(told: Told) -> None:
    with told.shutdown.at_safe_points():
        os.kill(os.getpid(), signal.SIGUSR2)
        assert told.shutdown.given
        assert signal.alarm(0) > 3600
