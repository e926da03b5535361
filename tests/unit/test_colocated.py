"""A segment as one task: its plan, the turns of its two processes, how one ends with the other, and its account."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING

import psutil
import pytest

from mrt_hpc.analysis.spending import attempts
from mrt_hpc.attempt.colocated import sampling, start_companion
from mrt_hpc.attempt.entry import load_task, record_after
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.local.slots import largest_need
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.plan.compile import build_plan, compile_plan
from mrt_hpc.plan.hours import Throughput, expected_hours
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.sampling.round_sampler import Rounds
from mrt_hpc.roles.sampling.serving import Rest
from mrt_hpc.roles.task.context import Companion, turn_of
from mrt_hpc.roles.task.shutdown import Interrupted, RequeueRequested
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.data import write_problems
from mrt_hpc.run.events import EventKind, EventLog, Use, event_file, has_progressed, read_events
from mrt_hpc.run.groups import Sampled, commit_group
from mrt_hpc.run.records import GroupStatistics, Problem
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task, write_task
from mrt_hpc.run.turns import Turn
from mrt_hpc.run.waiting import wait_until
from mrt_hpc.run.weights import publish
from mrt_hpc.submit.create import create_or_open
from mrt_hpc.view.logs import log_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mrt_hpc.recipe.schema import Recipe
    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.layout import RunLayout

RECIPES = Path(__file__).parents[2] / "recipes"
JOB = "segment-000.colocated"
NOTHING = GroupStatistics(
    rollouts=0, branches=0, rollout_tokens=0, branch_tokens=0, prompt_tokens=0, cached_tokens=0, prefilled_tokens=0,
    seconds={},
)  # fmt: skip


def recipe(*changes: str, name: str = "quickstart") -> Recipe:
    return load_recipe(RECIPES / f"{name}.yaml", ("schedule.coupling=colocated", *changes))


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    """A run of one segment of two iterations with one group each, whose task runs."""
    changes = ("schedule.iterations=2", "schedule.iterations_per_job=2", "sampling.problems_per_iteration=1")
    wanted = recipe(*changes)
    layout = create_or_open(tmp_path / "run", wanted, compile_plan(wanted, LocalSite()))
    publish_version(layout, 0)
    write_task(layout, JOB, 0, TaskRecord(TaskState.RUNNING, attempt="a"))
    write_json(layout.heart(JOB, 0), {"attempt": "a", "beat": 1})
    return layout


def publish_version(layout: RunLayout, version: int) -> None:
    publish(layout, version, lambda directory: (directory / "model.safetensors").touch())


def complete(layout: RunLayout, iteration: int) -> None:
    commit_group(layout.group(iteration, 0), Sampled(rollouts=[], statistics=NOTHING))


def process(layout: RunLayout, rank: int) -> Task:
    """A process of the task: the trainer has rank 0, its companion rank 1."""
    return load_task(layout, JOB, 0, Placement(rank, 1, 0, "a"))


# -- the plan


def test_a_segment_is_one_job() -> None:
    changes = ("schedule.iterations=4", "schedule.iterations_per_job=2")
    plan = build_plan(recipe(*changes), max_array_size=None)
    assert [job.name for job in plan.jobs] == [
        "prepare", JOB, "segment-000.evaluation", "segment-001.colocated", "segment-001.evaluation", "report",
    ]  # fmt: skip
    first, second = plan.job(JOB), plan.job("segment-001.colocated")
    assert (first.tasks, [wait.job for wait in second.after]) == (1, [JOB])
    assert [role for role in Role if first.does(role)] == [Role.INFERENCE, Role.TRAINER, Role.COLOCATED]
    assert {wait.job for wait in plan.job("segment-001.evaluation").after} == {"segment-001.colocated"}


def test_collections_stay_jobs_of_inference() -> None:
    plan = build_plan(recipe("schedule.iterations_per_job=10", name="small_world/mrt"), max_array_size=None)
    assert [job.name for job in plan.jobs][:3] == ["prepare", "collection.inference", JOB]


def test_it_has_the_memory_of_both_and_the_gpus_of_one() -> None:
    trainer = "resources.trainer={ranks: 2, gpus: 1, cpus: 4, memory_gib: 10}"
    changes = (trainer, "resources.inference={gpus: 2, cpus: 12, memory_gib: 7}", "resources.evaluation.gpus=2")
    plan = build_plan(recipe(*changes), max_array_size=None)
    needs = plan.job(JOB).resources
    assert (needs.nodes, needs.ranks, needs.gpus, needs.cpus, needs.memory_gib_per_node) == (1, 2, 2, 12, 27)
    assert largest_need(plan) == (12, 2)


def test_its_hours_are_those_of_both_without_waiting() -> None:
    speeds = Throughput(sampled_per_s=100.0, trained_per_s=100.0, publish_s=1.0, checkpoint_s=2.0, source="a test")
    wanted, beside = recipe(), recipe("schedule.coupling=concurrent")
    plans = [build_plan(one, max_array_size=None) for one in (wanted, beside)]
    mine = expected_hours(plans[0], wanted, speeds)[JOB]
    theirs = expected_hours(plans[1], beside, speeds)["segment-000.trainer"]
    assert Use.WAITING not in mine.by_use
    assert mine.hours == pytest.approx(theirs.hours), "without staleness they wait for each other either way"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("resources.inference.tasks=2", "resources.inference.tasks"),
        ("resources.trainer={ranks: 2, ranks_per_node: 1}", "resources.trainer.ranks_per_node"),
        ("resources.trainer.gpus=1", "resources.inference.gpus"),
        ("serving.attach={address: 'http://n:1', key_file: k}", "serving.attach"),
        ("resources.inference.nodes=2", "resources.inference.nodes"),
    ],
)
def test_what_does_not_fit_is_refused(change: str, field: str) -> None:
    with pytest.raises(UserError) as refused:
        recipe(change)
    assert field in refused.value.message()


def test_logs_of_either_role_are_those_of_the_task(layout: RunLayout) -> None:
    layout.logs.mkdir(exist_ok=True)
    (layout.logs / f"{JOB}.00000.a.inference.log").touch()
    for role in ("trainer", "inference", "colocated"):
        assert [log.what for log in log_files(layout, role)] == ["inference"]
    assert not list(log_files(layout, "evaluation"))


# -- turns


def test_nothing_is_sampled_without_the_turn(layout: RunLayout, tmp_path: Path) -> None:
    trainer, turn = Turn(tmp_path / "turn"), Turn(tmp_path / "turn")
    rounds = Rounds(replace(process(layout, 1), turn=turn), problems=10)
    assert trainer.take()
    assert rounds._look() is None
    trainer.pass_on()
    found = rounds._look()
    assert found is not None
    assert found[0] is not None
    assert turn.is_mine


def test_the_turn_is_passed_on_when_nothing_can_be_sampled(layout: RunLayout, tmp_path: Path) -> None:
    turn, servers = Turn(tmp_path / "turn"), [Sleeper()]
    rest = Rest(turn, servers)  # type: ignore[arg-type]
    rounds = Rounds(replace(process(layout, 1), turn=turn), problems=10, rest=rest.begin)
    assert rounds.awaited() is not None
    complete(layout, 0)
    assert rounds._look() is None, "iteration 1 needs newer weights"
    assert (turn.is_mine, servers[0].said) == (False, ["sleep"])
    publish_version(layout, 1)
    work = rounds.awaited()
    assert work is not None
    assert (work.iteration, work.version, turn.is_mine) == (1, 1, True)
    rest.end()
    assert servers[0].said == ["sleep", "wake up"]


class Sleeper:
    """A server, as far as it sleeps: none does on CPU."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def sleep(self) -> None:
        self.said.append("sleep")

    def wake_up(self) -> None:
        self.said.append("wake up")


def test_it_samples_until_a_checkpoint_holds_the_last_state(layout: RunLayout) -> None:
    """Else a trainer that goes back to an earlier state would find no one to sample for it."""
    publish_version(layout, 2)
    rounds = Rounds(process(layout, 1), problems=10)
    assert not rounds.are_over()
    layout.checkpoint(2).mkdir(parents=True)
    assert rounds.are_over()


# -- how one ends with the other


def test_its_failure_is_the_failure_of_the_task(layout: RunLayout) -> None:
    """A real one, which finds no training problems. Its own record names the cause, and the trainer's does not
    replace it.
    """
    layout.train_data.unlink(missing_ok=True)
    trainer = process(layout, 0)
    companion = start_companion(trainer)
    blocked = Path(f"/proc/{companion.process.pid}/status").read_text().partition("SigBlk:")[2].split()[0]
    assert int(blocked, 16) & 1 << signal.SIGUSR2 - 1, "the signal of the time limit is for the first rank"
    assert signal.SIGUSR2 not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert companion.process.wait(120) != 0
    with pytest.raises(UserError) as failure:
        replace(trainer, companion=companion)._check_companion()
    assert str(companion.log) in failure.value.message()
    record = read_task(layout, JOB, 0)
    assert record.state in (TaskState.RETRYING, TaskState.FAILED), companion.log.read_text()
    assert str(layout.train_data) in record.message
    assert event_file(layout.events, JOB, 0, 1, "a").is_file()
    assert not turn_of(trainer).path.exists()  # type: ignore[union-attr]


def test_an_attempt_removes_what_killed_ones_have_left_of_their_turns(layout: RunLayout) -> None:
    """Both processes of those were killed at once. Another task has turns of its own."""
    trainer = process(layout, 0)
    killed, other = replace(trainer, attempt="killed"), replace(trainer, index=7)
    left, own, others = (turn_of(task).path for task in (killed, trainer, other))
    assert left and own and others
    for path in (left, others):
        path.touch()
    try:
        with pytest.raises(Interrupted), sampling(trainer):
            assert (left.exists(), own.exists(), others.exists()) == (False, True, True)
            left.touch()  # its companion has outlived it a bit
            raise Interrupted(128 + signal.SIGTERM)
        assert (left.exists(), own.exists(), others.exists()) == (False, False, True)
    finally:
        others.unlink()


PARENT = """
import sys, time
from pathlib import Path
from mrt_hpc.attempt.colocated import start_companion
from mrt_hpc.attempt.entry import load_task
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.roles.task.context import turn_of
from mrt_hpc.run.layout import RunLayout
task = load_task(RunLayout(Path(sys.argv[1])), "segment-000.colocated", 0, Placement(0, 1, 0, "a"))
turn = turn_of(task)
turn.take()
print(start_companion(task).process.pid, flush=True)
time.sleep(600)
"""


def test_it_waits_for_its_turn_and_ends_with_the_trainer(layout: RunLayout) -> None:
    """Two real processes: the trainer has the turn, and is killed while its companion waits for it."""
    write_problems(layout.train_data, [Problem("p", "1 + 1", "2")])
    command = [sys.executable, "-c", PARENT, str(layout.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as trainer:
        try:
            assert trainer.stdout is not None
            companion = psutil.Process(int(trainer.stdout.readline()))
            mine = event_file(layout.events, JOB, 0, 1, "a")
            wait_until(lambda: mine.is_file() and b"waiting" in mine.read_bytes(), reason="a wait", deadline_s=120)
            assert not read_events(layout.events, EventKind.SERVER_STARTED)
        finally:
            trainer.kill()
    wait_until(lambda: has_ended(companion), reason="the companion to end", deadline_s=60)
    assert "stopped" in mine.read_text()
    assert read_task(layout, JOB, 0).state is TaskState.RUNNING, "the end of the trainer is for its back end to record"
    assert not turn_of(process(layout, 0)).path.exists()  # type: ignore[union-attr]


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("code", "expected"),
    [(1, ExitCode.RETRYABLE), (2, ExitCode.FATAL), (75, ExitCode.GIVE_BACK), (0, ExitCode.RETRYABLE)],
)
def test_its_end_before_the_segment_ends_the_task(tmp_path: Path, code: int, expected: ExitCode) -> None:
    ended = subprocess.Popen(["sh", "-c", f"exit {code}"])
    ended.wait()
    with pytest.raises(UserError) as failure:
        Companion(ended, tmp_path / "log").check()
    assert failure.value.exit_code is expected


def test_a_trainer_whose_companion_was_stopped_leaves_at_its_next_safe_point(layout: RunLayout, tmp_path: Path) -> None:
    sleeping = Companion(subprocess.Popen(["sleep", "60"]), tmp_path / "log")
    trainer = replace(process(layout, 0), companion=sleeping)
    trainer._check_companion()
    assert not trainer.shutdown.given
    sleeping.end()
    with trainer.shutdown.at_safe_points():
        trainer._check_companion()
    assert trainer.shutdown.given


def test_a_request_to_stop_is_passed_on(layout: RunLayout, tmp_path: Path) -> None:
    sleeping = Companion(subprocess.Popen(["sleep", "60"]), tmp_path / "log")
    trainer = process(layout, 0)
    trainer.shutdown.forward = sleeping.tell
    with trainer.shutdown.at_safe_points():
        assert trainer.shutdown.tell(Interrupted(143))
    assert sleeping.process.wait(30) == -15


def test_a_task_that_leaves_records_that_before_its_companion_has_ended(layout: RunLayout) -> None:
    """Slurm kills the first rank some seconds after the others have left."""
    trainer, recorded = process(layout, 0), list[Interrupted]()
    trainer.shutdown.record = recorded.append
    with pytest.raises(Interrupted) as left, sampling(trainer):
        trainer.shutdown.tell(Interrupted(143))
    assert recorded == [left.value]


@pytest.fixture
def soon() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Calls something in a handler of a signal that comes soon."""
    before, timers = signal.getsignal(signal.SIGUSR1), list[Timer]()

    def arrange(action: Callable[[], object]) -> None:
        signal.signal(signal.SIGUSR1, lambda _number, _frame: action())
        timers.append(Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)))
        timers[-1].start()

    yield arrange
    for timer in timers:
        timer.join()
    signal.signal(signal.SIGUSR1, before)


def test_a_request_after_the_segment_is_trained_does_not_make_it_run_again(
    layout: RunLayout, soon: Callable[[Callable[[], object]], None]
) -> None:
    """It comes while the trainer waits for the end of its companion, which it passes the request on to."""
    trainer = process(layout, 0)
    with sampling(trainer) as with_companion:
        soon(lambda: trainer.shutdown.tell(RequeueRequested("why")))
    assert with_companion.companion is not None
    assert with_companion.companion.was_stopped
    assert trainer.shutdown.given


def test_what_the_companion_has_committed_counts_as_progress(layout: RunLayout) -> None:
    EventLog(event_file(layout.events, JOB, 0, 1, "a")).emit(EventKind.SHARD_COMMITTED, what="group")
    assert has_progressed(layout.events, JOB, 0, "a")
    assert process(layout, 0).has_progressed


def test_a_limit_too_short_for_anything_is_told_although_the_trainer_waited(layout: RunLayout) -> None:
    hurried = replace(process(layout, 0), time_left_s=60.0)
    running = TaskRecord(TaskState.RUNNING, attempt="a")
    with hurried.shutdown.at_safe_points(), hurried.shutdown.while_waiting():
        hurried.shutdown.tell(RequeueRequested("why"))
    record = record_after(hurried, RequeueRequested("why"), running)
    assert (record.state, record.failures) == (TaskState.RETRYING, 1)
    assert "resources.trainer.time_limit_minutes" in record.message


# -- the account


def test_while_the_trainer_waits_the_use_of_its_companion_counts(layout: RunLayout) -> None:
    now = time.time()
    trained = [(0, "starting"), (10, Use.WAITING), (60, Use.TRAINING), (80, "ended")]
    sampled = [(1, "starting"), (20, Use.GENERATING), (50, Use.WAITING), (70, Use.ENDING)]
    for rank, told in ((0, trained), (1, sampled)):
        write_uses(layout, rank, now, told)
    (attempt,) = attempts(layout)
    spent = attempt.time_by_use(now, 80)
    expected = {Use.STARTING: 20, Use.GENERATING: 30, Use.WAITING: 10, Use.TRAINING: 20}
    assert spent == pytest.approx(expected)


def write_uses(layout: RunLayout, rank: int, start: float, told: list[tuple[int, str]]) -> None:
    """The events of a process, of which the first is that it started, and the last may be that it ended."""
    where = {"job": JOB, "task": 0, "rank": rank, "host": "n", "pid": rank}
    lines = []
    for after, what in told:
        event = {"time": start + after, "kind": EventKind.USE, "use": what, "host": "n", "pid": rank}
        if what == "starting":
            event |= {"kind": EventKind.TASK_STARTED, **where, "attempt": "a", "world_size": 1, "began": None}
        if what == "ended":
            event |= {"kind": EventKind.TASK_ENDED, **where, "outcome": "done"}
        lines.append(json.dumps(event))
    path = event_file(layout.events, JOB, 0, rank, "a")
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
