"""A run directory that is moved while tasks write to it: its old place stays empty, and it goes on at the new one."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import refusal
from run_of import job_of, run_of

from mrt_hpc.attempt.ledger import claim_run, record_submission
from mrt_hpc.attempt.ranks import start_ranks
from mrt_hpc.backends.local.backend import LocalRun, run_plan
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.plan.jobs import Plan, Role
from mrt_hpc.roles.tracking import EventFile
from mrt_hpc.run.events import EventKind, EventLog
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.leases import Holder, Observer, group_leases
from mrt_hpc.run.manifest import commit_whole
from mrt_hpc.run.quarantine import set_aside
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task, write_task

JOB = job_of("a", Role.REPORT)


@pytest.fixture
def layout() -> Iterator[RunLayout]:
    """A run outside of pytest's own folder, which counts as a run for the sake of other tests."""
    with tempfile.TemporaryDirectory() as folder:
        yield run_of(Path(folder) / "run")


def claim_process(layout: RunLayout) -> None:
    with claim_run(layout, 10.0):
        pass


def start(layout: RunLayout) -> None:
    for child in start_ranks(layout, JOB, 0, {}).children:
        child.kill()
        child.wait()


WRITERS: dict[str, Callable[[RunLayout], object]] = {
    "state": lambda run: write_task(run, "a", 0, TaskRecord(TaskState.RUNNING)),
    "event": lambda run: EventLog(run.events / "a.jsonl").emit(EventKind.STEP),
    "lease": lambda run: group_leases(run, 3, Holder(run.root, "a", 0, "1"), Observer(10.0)).claim(7),
    "group": lambda run: commit_whole(run.group(3, 7), lambda directory: (directory / "x").touch()),
    "job": lambda run: record_submission(run, "a", "17", "box"),
    "set aside": lambda run: set_aside(run, [run.plan], "why"),
    "events": lambda run: EventFile(run.training_events).close(),
    "claim": claim_process,
    "log": start,
}


def move(layout: RunLayout) -> RunLayout:
    return RunLayout(layout.root.rename(layout.root.with_name("moved")))


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_nothing_is_written_where_a_moved_run_was(layout: RunLayout, write: Callable[[RunLayout], object]) -> None:
    moved = move(layout)
    refused = refusal(write, layout)
    assert (str(refused.where), "mrt-hpc submit NEWPATH" in str(refused.advice)) == (str(layout.root), True)
    assert not layout.root.exists()
    write(moved)


def test_the_command_that_runs_a_moved_run_ends_and_another_goes_on_at_the_new_place(layout: RunLayout) -> None:
    plan = Plan(name="p", iterations=1, segments=1, jobs=(JOB,))
    layout.plan.write_text(plan.model_dump_json())

    def move_once(run: LocalRun) -> None:
        if run.running and layout.root.exists():
            move(layout)

    refused = refusal(lambda: run_plan(plan, layout, LocalSite(cpus=1), retries=2, show=move_once))
    assert str(refused.where) == str(layout.root)
    assert not layout.root.exists()
    moved = RunLayout(layout.root.with_name("moved"))
    assert not run_plan(plan, moved, LocalSite(cpus=1), retries=2, show=lambda _: None)
    assert read_task(moved, "a", 0).state is TaskState.FAILED, "the report of a run without any results"
