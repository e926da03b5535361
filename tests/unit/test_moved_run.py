"""A run directory that is moved while tasks write to it: its old place stays empty, and it goes on at the new one."""

from __future__ import annotations

import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from run_of import job_of, run_of

from mrt_hpc.attempt.ledger import claimed, record_submission
from mrt_hpc.attempt.notify import sign
from mrt_hpc.attempt.ranks import start_ranks
from mrt_hpc.backends.local.backend import LocalRun, run_plan
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import Plan, Role
from mrt_hpc.roles.tracking import write_events
from mrt_hpc.run.events import EventKind, EventLog
from mrt_hpc.run.heartbeats import Heart, Observer
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.leases import Holder, group_leases
from mrt_hpc.run.manifest import commit_whole
from mrt_hpc.run.quarantine import set_aside
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task, write_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

JOB = job_of("a", Role.REPORT)


@pytest.fixture
def layout() -> Iterator[RunLayout]:
    """A run outside of pytest's own folder, which counts as a run for the sake of other tests."""
    with tempfile.TemporaryDirectory() as folder:
        yield run_of(Path(folder) / "run")


def move(layout: RunLayout) -> RunLayout:
    return RunLayout(layout.root.rename(layout.root.with_name("moved")))


def claim_process(layout: RunLayout) -> None:
    with claimed(layout, 10.0):
        pass


def start(layout: RunLayout) -> None:
    for child in start_ranks(layout, JOB, 0, {}).children:
        child.kill()
        child.wait()


def fill(directory: Path) -> None:
    (directory / "x").touch()


WRITERS: dict[str, Callable[[RunLayout], object]] = {
    "the state of a task": lambda run: write_task(run, "a", 0, TaskRecord(TaskState.RUNNING)),
    "an event": lambda run: EventLog(run.events / "a.jsonl").emit(EventKind.STEP),
    "a lease": lambda run: group_leases(run, 3, Holder(run.root, "a", 0, "1"), Observer(10.0)).claim(7),
    "a group": lambda run: commit_whole(run.group(3, 7), fill),
    "weights": lambda run: commit_whole(run.weights_version(1), fill),
    "a job": lambda run: record_submission(run, "a", "17", "box"),
    "what is told": lambda run: sign(run, "a"),
    "what is set aside": lambda run: set_aside(run, [run.plan], "why"),
    "event files": lambda run: write_events(run, run.training_events, ()),
    "the claim of a process": claim_process,
    "the log of a rank": start,
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_nothing_is_written_where_a_moved_run_was(layout: RunLayout, write: Callable[[RunLayout], object]) -> None:
    moved = move(layout)
    with pytest.raises(UserError) as refused:
        write(layout)
    assert str(refused.value.where) == str(layout.root)
    assert "--run" in str(refused.value.advice)
    assert not layout.root.exists()
    write(moved)


def test_a_heart_leaves_the_place_of_a_moved_run_empty_and_others_may_write_on(layout: RunLayout) -> None:
    with Heart(layout.heart("a", 0), "1", 0.05):
        moved = move(layout)
        for _ in range(50):
            with pytest.raises(UserError):
                WRITERS["an event"](layout)
    assert not layout.root.exists()
    WRITERS["an event"](moved)


def test_a_run_that_is_moved_at_any_moment_is_never_made_again(layout: RunLayout) -> None:
    """Writers go on until they are told of the move; they may meet the moment itself, which the system refuses."""
    told: list[UserError] = []

    def write_on(name: str) -> None:
        while True:
            try:
                WRITERS[name](layout)
            except UserError as error:
                told.append(error)
                return
            except FileNotFoundError:
                continue

    names = ("the state of a task", "an event", "a lease", "a job", "what is told")
    threads = [threading.Thread(target=partial(write_on, name)) for name in names]
    for thread in threads:
        thread.start()
    moved = move(layout)
    for thread in threads:
        thread.join(60)
    assert len(told) == len(names)
    assert not layout.root.exists()
    assert moved.recipe_lock.is_file()


def test_the_command_that_runs_a_moved_run_ends_and_another_goes_on_at_the_new_place(layout: RunLayout) -> None:
    plan = Plan(name="p", iterations=1, segments=1, jobs=(JOB,))
    layout.plan.write_text(plan.model_dump_json())

    def move_once(run: LocalRun) -> None:
        if run.running and layout.root.exists():
            move(layout)

    with pytest.raises(UserError) as refused:
        run_plan(plan, layout, LocalSite(cpus=1), retries=2, show=move_once)
    assert str(refused.value.where) == str(layout.root)
    assert not layout.root.exists()
    moved = RunLayout(layout.root.with_name("moved"))
    assert not run_plan(plan, moved, LocalSite(cpus=1), retries=2, show=lambda _: None)
    assert read_task(moved, "a", 0).state is TaskState.FAILED, "the report of a run without any results"
