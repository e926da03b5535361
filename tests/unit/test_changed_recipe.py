"""What a later submission may change of a run's recipe, and that nothing that was done is taken for something else."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mrt_hpc.cli.submit import kept_recipe
from mrt_hpc.launch import renewal
from mrt_hpc.launch.create import create_or_open
from mrt_hpc.launch.renewal import is_renewed, renew
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.model import read_plan
from mrt_hpc.recipe.errors import UserError
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.recipe.site import LocalSite
from mrt_hpc.run.events import EventKind, read_events
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.tasks import TaskRecord, TaskState, read_task, write_task
from mrt_hpc.run.weights import publish
from mrt_hpc.training.learning_rate import learning_rate

if TYPE_CHECKING:
    from mrt_hpc.recipe.schema import Recipe

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
CONSTANT = ("training.schedule=constant", "schedule.iterations=10", "schedule.iterations_per_job=4")


def submitted(root: Path, *settings: str) -> tuple[RunLayout, Recipe]:
    """As the command does it, up to the point at which tasks are started."""
    recipe = kept_recipe(RunLayout(root), load_recipe(QUICKSTART, settings))
    plan = compile_plan(recipe, LocalSite())
    layout = create_or_open(root, recipe, plan)
    if is_renewed(layout, recipe, plan):
        renew(layout, recipe, plan)
    return layout, recipe


def finish(layout: RunLayout, *, versions: int | None = None) -> None:
    """All tasks done, and so many weights versions published."""
    plan = read_plan(layout.plan)
    for version in range((plan.iterations if versions is None else versions) + 1):
        publish(layout, version, lambda directory: (directory / "model").write_text("weights") and None)
    for job in plan.jobs:
        for index in range(job.tasks):
            write_task(layout, job.name, index, TaskRecord(TaskState.DONE))


def opened(layout: RunLayout) -> list[str]:
    """Jobs of which a task is not done."""
    return [
        job.name
        for job in read_plan(layout.plan).jobs
        if any(read_task(layout, job.name, i).state is not TaskState.DONE for i in range(job.tasks))
    ]


def told(layout: RunLayout) -> dict[str, tuple[object, object]]:
    """All changes that the events tell."""
    events = read_events(layout.events, EventKind.RECIPE_CHANGED)
    return {change["field"]: (change["old"], change["new"]) for event in events for change in event["changes"]}


def test_what_decides_nothing_is_accepted_and_recorded(tmp_path: Path) -> None:
    layout, _ = submitted(tmp_path / "run")
    finish(layout)
    submitted(tmp_path / "run", "expected.trace_tokens=100", "tracking.wandb=true")
    locked = read_recipe_lock(layout.recipe_lock)
    assert (locked.expected.trace_tokens, locked.tracking.wandb) == (100, True)
    assert told(layout) == {"expected.trace_tokens": (None, 100), "tracking.wandb": (False, True)}
    assert opened(layout) == []
    submitted(tmp_path / "run")
    assert read_recipe_lock(layout.recipe_lock) == locked, "a file that does not name them leaves them as they are"


def test_what_was_done_cannot_be_changed_and_the_way_out_is_told(tmp_path: Path) -> None:
    submitted(tmp_path / "run")
    with pytest.raises(UserError) as refused:
        submitted(
            tmp_path / "run", "training.learning_rate=1e-3", "sampling.temperature=0.5", "expected.trace_tokens=1"
        )
    message = refused.value.message()
    assert "training.learning_rate was 0.0007 and is 0.001" in message
    assert "sampling.temperature was 1.0 and is 0.5" in message
    assert "expected" not in message
    assert "--run DIR" in message
    assert "--set sampling.temperature=1.0 --set training.learning_rate=0.0007" in message


def test_more_iterations_of_a_constant_schedule_go_on_from_those_done(tmp_path: Path) -> None:
    layout, first = submitted(tmp_path / "run", *CONSTANT)
    finish(layout)
    _, recipe = submitted(tmp_path / "run", *CONSTANT, "schedule.iterations=14")
    assert read_recipe_lock(layout.recipe_lock) == recipe
    assert opened(layout) == [
        "segment-002.inference", "segment-002.trainer",
        "segment-003.inference", "segment-003.trainer", "segment-003.evaluation", "report",
    ]  # fmt: skip
    before = [learning_rate(step, 10, first.training) for step in range(10)]
    assert [learning_rate(step, 14, recipe.training) for step in range(10)] == before
    assert told(layout)["schedule.iterations"] == (10, 14)


def test_the_warm_up_that_began_stays_as_long_as_it_was(tmp_path: Path) -> None:
    layout, _ = submitted(tmp_path / "run", *CONSTANT)
    finish(layout)
    _, recipe = submitted(tmp_path / "run", *CONSTANT, "schedule.iterations=40")
    assert recipe.training.warmup_steps == 1, "a tenth of the ten steps that it began with"
    assert submitted(tmp_path / "run", *CONSTANT, "schedule.iterations=80")[1].training.warmup_steps == 1
    with pytest.raises(UserError, match=r"training\.warmup_steps was 1 and is 3"):
        submitted(tmp_path / "run", *CONSTANT, "schedule.iterations=80", "training.warmup_steps=3")


def test_fewer_iterations_are_accepted_down_to_those_done(tmp_path: Path) -> None:
    layout, _ = submitted(tmp_path / "run", *CONSTANT)
    for version in range(7):
        publish(layout, version, lambda directory: (directory / "model").write_text("weights") and None)
    with pytest.raises(UserError, match="6 iterations are done already"):
        submitted(tmp_path / "run", *CONSTANT, "schedule.iterations=5")
    submitted(tmp_path / "run", *CONSTANT, "schedule.iterations=6")
    assert read_plan(layout.plan).iterations == 6


def test_another_schedule_keeps_its_number_of_iterations_once_a_step_was_taken(tmp_path: Path) -> None:
    layout, _ = submitted(tmp_path / "run")
    submitted(tmp_path / "run", "schedule.iterations=22")
    finish(layout, versions=1)
    with pytest.raises(UserError, match=r"schedule\.iterations was 22 and is 24: with training\.schedule: cosine"):
        submitted(tmp_path / "run", "schedule.iterations=24")


WRITES = [("write_json", 0), ("_open_again", 0), ("_open_again", 1), ("write_json", 1), ("write_text", 0), ("_tell", 0)]
"""Each write of a renewal in turn, and how many calls of its function come before it; the journal is the first."""


def cut_short(monkeypatch: pytest.MonkeyPatch, write: str, calls_before: int) -> None:
    """Have a renewal end before one of its writes."""
    original, calls = getattr(renewal, write), count()

    def writes_or_ends(*arguments: object) -> None:
        if next(calls) == calls_before:
            raise KeyboardInterrupt
        original(*arguments)

    monkeypatch.setattr(renewal, write, writes_or_ends)


@pytest.mark.parametrize(("write", "calls_before"), WRITES)
def test_a_change_cut_short_is_finished_by_the_same_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str, calls_before: int
) -> None:
    layout, _ = submitted(tmp_path / "run", *CONSTANT)
    finish(layout)
    wanted = (*CONSTANT, "schedule.iterations=14", "expected.trace_tokens=9")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        cut_short(patched, write, calls_before)
        submitted(tmp_path / "run", *wanted)
    _, recipe = submitted(tmp_path / "run", *wanted)
    assert read_recipe_lock(layout.recipe_lock) == recipe
    assert read_plan(layout.plan).iterations == 14
    assert opened(layout)[0] == "segment-002.inference"
    assert told(layout)["schedule.iterations"] == (10, 14)
    assert not layout.renewal.exists()
