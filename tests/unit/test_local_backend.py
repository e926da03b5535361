"""The local backend with real child processes: order, failure, slots, and what it does not start again.

The tasks are reports of an empty run: they start fast, and fail because everything is missing.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mrt_hpc.backends.local.backend import LocalRun, run_plan
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.local.slots import Slots, largest_need, machine_slots
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import build_plan, compile_plan
from mrt_hpc.plan.jobs import Dependency, DependencyKind, Job, JobResources, Plan, Role
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.events import EventKind, read_events
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task, write_task
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from mrt_hpc.run.layout import RunLayout

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
ONE = JobResources(
    nodes=1, ranks_per_node=1, gpus_per_rank=0, cpus_per_rank=1, memory_gib_per_node=1.0, time_limit_minutes=1
)


def report_job(name: str, *after: tuple[str, DependencyKind], tasks: int = 1) -> Job:
    dependencies = tuple(Dependency(job=job, kind=kind) for job, kind in after)
    return Job(name=name, role=Role.REPORT, tasks=tasks, resources=ONE, after=dependencies)


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    recipe = load_recipe(QUICKSTART)
    return create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite()))


def run(layout: RunLayout, *jobs: Job) -> tuple[bool, LocalRun]:
    """Run a plan of these jobs; whether all went well, and the backend as it was at the end."""
    plan = Plan(name="p", iterations=1, segments=1, jobs=jobs)
    layout.plan.write_text(plan.model_dump_json())
    seen: list[LocalRun] = []
    return run_plan(plan, layout, LocalSite(cpus=1), retries=2, show=seen.append), seen[-1]


def test_what_needs_a_failed_job_is_given_up_and_the_rest_goes_on(layout: RunLayout) -> None:
    ok, anyway = DependencyKind.AFTEROK, DependencyKind.AFTERANY
    well, backend = run(layout, report_job("a"), report_job("b", ("a", ok)), report_job("c", ("b", anyway)))
    assert not well
    assert backend.ended == {("a", 0): TaskState.FAILED, ("b", 0): TaskState.STOPPED, ("c", 0): TaskState.FAILED}
    started = [e["job"] for e in read_events(layout.events, EventKind.TASK_STARTED)]
    assert started == ["a", "c"]
    assert "incomplete" in read_task(layout, "a", 0).message
    assert read_task(layout, "b", 0).state is TaskState.WAITING


def test_what_is_done_is_not_started_again(layout: RunLayout) -> None:
    write_task(layout, "a", 0, TaskRecord(TaskState.DONE))
    well, _ = run(layout, report_job("a"), report_job("b", ("a", DependencyKind.AFTEROK)))
    assert not well
    assert [e["job"] for e in read_events(layout.events, EventKind.TASK_STARTED)] == ["b"]


def test_a_run_of_done_tasks_ends_well_at_once(layout: RunLayout) -> None:
    for index in range(3):
        write_task(layout, "a", index, TaskRecord(TaskState.DONE))
    well, _ = run(layout, report_job("a", tasks=3))
    assert well
    assert read_events(layout.events) == []


def test_a_task_that_is_killed_is_run_again_and_a_fatal_failure_is_not(layout: RunLayout) -> None:
    plan = Plan(name="p", iterations=1, segments=1, jobs=(report_job("a"),))
    layout.plan.write_text(plan.model_dump_json())
    killed: set[int] = set()

    def kill_twice(backend: LocalRun) -> None:
        for task in backend.running:
            (child,) = task.children
            if len(killed) < 2 and child.pid not in killed:
                killed.add(child.pid)
                child.kill()

    assert not run_plan(plan, layout, LocalSite(cpus=1), retries=2, show=kill_twice)
    record = read_task(layout, "a", 0)
    assert len(killed) == 2
    assert record.failures == 3, "two that were killed, and the report's own"
    assert "incomplete" in record.message


def test_a_task_that_fails_too_often_is_given_up(layout: RunLayout) -> None:
    plan = Plan(name="p", iterations=1, segments=1, jobs=(report_job("a"),))
    layout.plan.write_text(plan.model_dump_json())

    def kill_always(backend: LocalRun) -> None:
        for task in backend.running:
            task.children[0].kill()

    assert not run_plan(plan, layout, LocalSite(cpus=1), retries=1, show=kill_always)
    assert read_task(layout, "a", 0).failures == 2
    assert "wrote no reason" in read_task(layout, "a", 0).message


def test_slots_are_given_out_and_come_back() -> None:
    slots = Slots(cpus=4, gpus=["0", "1", "2"])
    two = ONE.model_copy(update={"gpus_per_rank": 2, "cpus_per_rank": 3})
    assert slots.take(two) == ["0", "1"]
    assert not slots.fit(two)
    assert slots.fit(ONE)
    slots.give_back(two, ["0", "1"])
    assert slots.fit(two)
    assert slots.take(two) == ["2", "0"]


def test_a_concurrent_pair_must_fit_and_a_sequential_one_need_not() -> None:
    gpus = ("resources.inference.gpus=1", "resources.trainer.gpus=1")
    pair = build_plan(load_recipe(QUICKSTART, gpus), max_array_size=None)
    assert largest_need(pair) == (3, 2)
    one_by_one = ("schedule.coupling=sequential", "schedule.iterations_per_job=1")
    sequential = build_plan(load_recipe(QUICKSTART, (*gpus, *one_by_one)), max_array_size=None)
    assert largest_need(sequential)[1] == 1
    with pytest.raises(UserError, match="2 GPUs at a time, and this machine has 1") as refused:
        machine_slots(pair, LocalSite(gpus=1))
    advised = tuple(re.findall(r"--set (\S+=\w+)", str(refused.value.advice)))
    assert len(advised) == 3
    colocated = build_plan(load_recipe(QUICKSTART, (*gpus, *advised)), max_array_size=None)
    assert machine_slots(colocated, LocalSite(gpus=1)).gpus == ["0"]
    assert machine_slots(sequential, LocalSite(gpus=1)).gpus == ["0"]
