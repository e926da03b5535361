"""What a run says of its failures: the cause before its consequences, and each reason whole."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mrt_hpc.attempt.entry import record_after
from mrt_hpc.attempt.run_progress import failed
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import build_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.task.context import Task
from mrt_hpc.roles.task.peers import PeersFailedError
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.events import EventLog
from mrt_hpc.run.heartbeats import Observer
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task, task_file

if TYPE_CHECKING:
    from mrt_hpc.plan.jobs import Plan

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
TRAINER, INFERENCE = "segment-000.trainer", "segment-000.inference"
RUNNING = TaskRecord(TaskState.RUNNING, attempt="a")


@pytest.fixture
def plan() -> Plan:
    return build_plan(load_recipe(QUICKSTART), max_array_size=None)


def task(plan: Plan, root: Path, job: str) -> Task:
    return Task(
        layout=RunLayout(root), experiment=load_recipe(QUICKSTART), plan=plan, job=plan.job(job), index=0, rank=0,
        world_size=1, local_rank=0, attempt="a", events=EventLog(root / "events.jsonl"), observer=Observer(60.0),
    )  # fmt: skip


def ends(task: Task, error: BaseException, time: float) -> TaskRecord:
    """What is written of a task that ended by an error at some time, by its node's clock."""
    after = replace(record_after(task, error, RUNNING), state=TaskState.FAILED, time=time)
    write_json(task_file(task.layout, task.job.name, task.index), asdict(after))
    return after


def test_the_reason_is_the_failure_that_was_first_in_time(plan: Plan, tmp_path: Path) -> None:
    ends(task(plan, tmp_path, INFERENCE), UserError("the later one"), 2000.0)
    ends(task(plan, tmp_path, TRAINER), UserError("the earlier one"), 1000.0)
    told = failed(plan, RunLayout(tmp_path)).message()
    assert f"the first was task 0 of {TRAINER}" in told
    assert "the earlier one" in told
    assert f"mrt-hpc logs {tmp_path} trainer" in told


def test_a_consequence_hides_no_cause_whatever_the_clocks_of_the_nodes_say(plan: Plan, tmp_path: Path) -> None:
    trainer, inference = task(plan, tmp_path, TRAINER), task(plan, tmp_path, INFERENCE)
    consequence = PeersFailedError("weights", inference.peers(trainer.job.role), "mrt-hpc status")
    ends(inference, consequence, 1000.0)
    assert read_task(inference.layout, INFERENCE, 0).awaited == (TRAINER,)
    ends(trainer, UserError("its own words"), 2000.0)
    assert "its own words" in failed(plan, RunLayout(tmp_path)).message()


def test_where_only_a_consequence_is_known_it_is_told(plan: Plan, tmp_path: Path) -> None:
    inference = task(plan, tmp_path, INFERENCE)
    ends(inference, PeersFailedError("weights", inference.peers(plan.job(TRAINER).role), "mrt-hpc status"), 1.0)
    assert "so this task cannot get weights" in failed(plan, RunLayout(tmp_path)).message()


def test_a_reason_is_told_whole(plan: Plan, tmp_path: Path) -> None:
    error = UserError("two parts: both are told", where="a file", value=7, expected="8", advice="put 8 there")
    ends(task(plan, tmp_path, TRAINER), error, 1.0)
    told = failed(plan, RunLayout(tmp_path)).message()
    for part in ("two parts: both are told", "a file", "value:    7", "expected: 8", "put 8 there"):
        assert part in told


def test_an_unexpected_exception_is_told_by_its_type_and_message_and_place(plan: Plan, tmp_path: Path) -> None:
    def cut() -> None:
        b"text".partition(b"")

    try:
        cut()
    except ValueError as error:
        record = ends(task(plan, tmp_path, INFERENCE), error, 1.0)
    for told in (record.message, failed(plan, RunLayout(tmp_path)).message()):
        assert "Traceback" not in told
        assert "ValueError: empty separator" in told
        assert "test_reasons.py" in told
        assert f"mrt-hpc logs {tmp_path} inference" in told
