"""How an attempt begins to sample, how it ends, what its record says then, and who runs it again; and that one of two
jobs of a task works at a time.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from basics import INFERENCE, QUICKSTART, TRAINER
from commands import refusal, typed
from run_of import bare_run, read_events, run_of, task_of

from mrt_hpc import ExitCode, RunLayout, UserError
from mrt_hpc.attempt import signals
from mrt_hpc.attempt import sole_attempt as holding
from mrt_hpc.attempt.early_end import settle
from mrt_hpc.attempt.entry import attempt, ending_of, run_task
from mrt_hpc.attempt.ledger import LOCAL, LocalProcess, claim_run, local_process, record_submission
from mrt_hpc.attempt.next_state import MOST_RETURNS, Ending, EndKind, next_state
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.attempt.sole_attempt import sole_attempt
from mrt_hpc.backends import queued_jobs
from mrt_hpc.backends.slurm.after_srun import AttemptOutcome
from mrt_hpc.backends.slurm.after_srun import main as after_srun
from mrt_hpc.plan.compile import build_plan
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.sampling import serving
from mrt_hpc.roles.sampling.serving import record_first_token
from mrt_hpc.roles.task.context import Task
from mrt_hpc.roles.task.peers import PeersAwayError
from mrt_hpc.roles.task.shutdown import Interrupted, RequeueRequested, ShutdownRequest
from mrt_hpc.run.events import EventKind, EventLog, event_file
from mrt_hpc.run.leases import BEATS_A_LIMIT, NO_BEAT, Beat, Heart, Observer, read_beat
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


@pytest.mark.parametrize(("later", "mine"), [
    ("7.2", "7.1"), ("10_1.1", "9_1.4"), ("10_1.1", "10_1.0"), ("3_1.0", "10_1.1")
])  # fmt: skip
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


# -- of two jobs of a task one works at a time, and a run on this machine runs in one place at a time


LIMIT_S = 0.5


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunLayout:
    monkeypatch.setattr(holding, "LOOK_EVERY_S", 0.05)
    return run_of(tmp_path / "run", f"resilience.heartbeat_limit_s={LIMIT_S}")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    read: list[Path] = []
    monkeypatch.setattr(holding, "read_beat", lambda path: read.append(path) or read_beat(path))
    return read


@pytest.mark.parametrize("second", ["47.0", "45_0.0", "44.3"])
def test_a_second_job_does_nothing(layout: RunLayout, monkeypatch: pytest.MonkeyPatch, second: str) -> None:
    write_task(layout, TRAINER, 0, TaskRecord(TaskState.RUNNING, attempt="46.0"))
    began: list[Task] = []
    monkeypatch.setenv("SLURM_JOB_ID", second.partition(".")[0])
    monkeypatch.setenv("SLURM_RESTART_COUNT", second[-1])
    with sole_attempt(task_of(layout, TRAINER, attempt="46.0")):
        with pytest.raises(UserError) as refused:
            run_task(str(layout.root), TRAINER, 0, Placement(0, 1, 0, second), began.append)
        outcome = after_srun([str(layout.root), TRAINER, "0", "143"])  # of a rank that was ended with the first one
    assert (refused.value.exit_code, outcome, began) == (ExitCode.GIVE_BACK, AttemptOutcome.AGAIN, [])
    assert read_task(layout, TRAINER, 0).attempt == "46.0", "what the first has recorded stays"
    run_task(str(layout.root), TRAINER, 0, Placement(0, 1, 0, second), began.append)
    assert len(began) == 1, "the first has ended"


@pytest.mark.parametrize(("left", "taker", "at_once"), [
    ("45.0", "45.1", True), ("45_3.0", "45_3.1", True), ("45.0", "47.0", False), ("1234abcd", "5678abcd", True)
])  # fmt: skip
def test_a_killed_one_is_taken_over(layout: RunLayout, looks: list[Path], left: str, taker: str, at_once: bool) -> None:
    """At once by the next attempt of the same job; by another job when the heart has stood still for long enough."""
    with sole_attempt(task_of(layout, TRAINER, attempt=left)):
        kept = {path: path.read_bytes() for path in layout.heart(TRAINER, 0).parent.iterdir()}
    for path, content in kept.items():  # its claim, and a heart that stands still
        path.write_bytes(content)
    began = time.monotonic()
    with pytest.raises(ValueError, match="ends"), sole_attempt(task_of(layout, TRAINER, attempt=taker)):
        assert (len(looks) == 1) == at_once
        assert at_once or time.monotonic() - began >= LIMIT_S
        looks.clear()
        raise ValueError("ends")
    with sole_attempt(task_of(layout, TRAINER, attempt="99.0")):
        assert len(looks) == 1, "the end is written whatever ends the attempt"


def test_one_that_beats_too_late_is_refused(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (task_of(layout, TRAINER, attempt=attempt) for attempt in ("45.0", "47.0"))
    with ExitStack() as other:

        class Slow(Heart):
            """The first has claimed, and before its first beat the second one works."""

            def __enter__(self) -> Heart:
                if self.attempt == first.attempt:
                    other.enter_context(sole_attempt(second))
                return super().__enter__()

        monkeypatch.setattr(holding, "Heart", Slow)
        with pytest.raises(UserError) as refused, sole_attempt(first):
            pytest.fail("two work at once")
        assert refused.value.exit_code is ExitCode.GIVE_BACK


def test_one_that_only_stood_still_works_on_alone(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another job took it for dead, sees that it beats, and comes back."""
    first, *others = (task_of(layout, TRAINER, attempt=attempt) for attempt in ("45.0", "47.0", "47.1", "47.2"))
    path, last = layout.heart(TRAINER, 0), holding.TaskClaim(1, "45.0", Beat("45.0", 0))
    with sole_attempt(first):
        with monkeypatch.context() as patch:
            patch.setattr(holding, "finished_claim", lambda *_: last)
            with pytest.raises(UserError), sole_attempt(others[0]):
                pytest.fail("two work at once")
        with Heart(path, "45.0", 0.1), pytest.raises(UserError), sole_attempt(others[1]):
            pytest.fail("it came back beside the first")
    with sole_attempt(others[2]):
        assert read_beat(path).attempt == "47.2"


def test_of_many_that_begin_at_once_never_two_work_together(layout: RunLayout) -> None:
    jobs, at_work, most = 8, set[str](), list[int]()
    start = Barrier(jobs)

    def work(one: Task) -> None:
        start.wait()
        try:
            with sole_attempt(one):
                at_work.add(one.attempt)
                most.append(len(at_work))
                time.sleep(0.05)
                at_work.remove(one.attempt)
        except UserError as refused:
            assert refused.exit_code is ExitCode.GIVE_BACK

    with ThreadPoolExecutor(jobs) as pool:
        for turn in range(5):
            tasks = [task_of(layout, TRAINER, attempt=f"{100 * turn + number + 1}.0") for number in range(jobs)]
            list(pool.map(work, tasks))
    assert len(most) >= 5 and set(most) == {1}, "one of each turn works"


HOLD = """
import signal, sys, time
from pathlib import Path
from mrt_hpc.attempt.ledger import claim_run
from mrt_hpc.run.layout import RunLayout
with claim_run(RunLayout(Path(sys.argv[1])), 10.0):
    if "deaf" in sys.argv:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("held", flush=True)
    while True:  # as a run waits: a signal to a suspended process may reach another of its threads than the main one
        time.sleep(0.05)
"""


@contextmanager
def held(layout: RunLayout, *how: str) -> Iterator[subprocess.Popen[str]]:
    """Another process holds the run, in a group of its own as the jobs of a shell are."""
    command = [sys.executable, "-c", HOLD, str(layout.root), *how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_run_held_by_a_live_process_is_refused_until_that_has_ended(layout: RunLayout) -> None:
    with held(layout) as process:
        with pytest.raises(UserError, match=f"process {process.pid} on"), claim_run(layout, 10.0):
            pass
        assert (found := local_process(layout)) and found.pid == process.pid
    assert local_process(layout) is None, "killed"
    with claim_run(layout, 10.0):
        assert read_beat(layout.heart(LOCAL, 2)) != NO_BEAT, "the second claim"
    assert read_beat(layout.heart(LOCAL, 2)) == NO_BEAT


def test_a_cancelled_process_has_ended(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    for suspended in (False, True):
        with held(layout) as process:
            if suspended:
                os.killpg(process.pid, signal.SIGSTOP)
            typed("cancel", layout.root)
            assert process.poll() is not None
    monkeypatch.setattr(queued_jobs, "ENDS_WITHIN_S", 0.3)
    with held(layout, "deaf") as process:
        left = refusal(lambda: list(queued_jobs.cancel_run(layout)))
        assert all(str(process.pid) in text for text in (left.what, str(left.advice)))


@pytest.mark.parametrize("refused_since", [0, 2])
def test_a_process_on_another_host_is_known_by_its_heart(layout: RunLayout, refused_since: int) -> None:
    """Also where others have claimed since, and were refused."""
    holder, heart = LocalProcess(os.getpid(), "1", "another-host", 1, held=True), layout.heart(LOCAL, 1)
    for process in (holder, *(LocalProcess(1, "1", f"host-{number}", 2 + number) for number in range(refused_since))):
        (layout.jobs / f"local-{process.generation:05d}.json").write_text(json.dumps(asdict(process)))
    beating, refused = Heart(heart, holder.name, 0.02 * BEATS_A_LIMIT), pytest.raises(UserError, match="another-host")
    with beating, refused, claim_run(layout, 10.0):
        pass
    with Heart(heart, holder.name, 1000.0), claim_run(layout, 0.3):
        assert read_beat(layout.heart(LOCAL, 2 + refused_since)) != NO_BEAT
