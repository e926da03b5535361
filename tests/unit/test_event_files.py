"""TensorBoard event files: read by TensorBoard itself, they hold the metrics of the run's own files alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mrt_hpc.analysis.measures import IterationMetrics, Phase
from mrt_hpc.analysis.rows import summarise_evaluation
from mrt_hpc.attempt.entry import load_task
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles import report
from mrt_hpc.roles.tracking import IterationEvents, Tracker, evaluation_row, iteration_values
from mrt_hpc.run.quarantine import set_aside, younger_than
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.layout import RunLayout

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
TRAINER = "segment-000.trainer"


def task_of(root: Path, job: str = TRAINER, *changes: str, rank: int = 0) -> Task:
    recipe = load_recipe(QUICKSTART, changes or ("tracking.tensorboard=true",))
    layout = create_or_open(root, recipe, compile_plan(recipe, LocalSite()))
    return load_task(layout, job, 0, Placement(rank, 2, rank, "a.0"))


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return task_of(tmp_path / "run")


def measured(iteration: int, attempt: int) -> IterationMetrics:
    """The metrics of an iteration, which are others in each attempt."""
    return IterationMetrics(
        iteration=iteration,
        reward_mean=iteration + attempt / 64,
        tokens_per_rollout=100.0,
        seconds={Phase.GENERATION: 2.0 * attempt, Phase.WAITING: 0.5},
        batch="a digest",
        progress_by_episode=(0.5, 0.25)[: 1 + iteration % 2],
        trainer={"ratio": 1.5},
    )


def train(task: Task, iterations: range, attempt: int) -> Tracker:
    """One attempt of the trainer, as the trainer role does it; its tracker is not closed, as if it was killed."""
    set_aside(task.layout, younger_than(task.layout, iterations.start), "newer than the checkpoint")
    tracker = Tracker.of(task)
    tracker.resume(iterations.start)
    for iteration in iterations:
        metrics = measured(iteration, attempt)
        metrics.write(task.layout.metrics(iteration))
        tracker.log(metrics)
    return tracker


def shown(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """All points that TensorBoard finds, in its order, by their names."""
    found = EventAccumulator(str(directory), size_guidance={"scalars": 0}, purge_orphaned_data=False)
    found.Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def expected(layout: RunLayout) -> dict[str, list[tuple[int, float]]]:
    """The same of the run's own files."""
    points: dict[str, list[tuple[int, float]]] = {}
    for path in sorted((layout.root / "iterations").glob("*/metrics.json")):
        metrics = IterationMetrics.read(path)
        for name, value in iteration_values(metrics).items():
            points.setdefault(name, []).append((metrics.iteration, value))
    return points


def test_the_event_files_hold_what_the_metrics_say(task: Task) -> None:
    with train(task, range(4), attempt=1):
        pass
    found = shown(task.layout.training_events)
    assert found == expected(task.layout)
    assert found["reward_mean"] == [(n, n + 1 / 64) for n in range(4)]
    assert found["seconds/generation"][0] == (0, 2.0)
    assert found["progress_by_episode/1"] == [(1, 0.25), (3, 0.25)]
    assert "batch" not in found


def test_training_that_goes_back_leaves_each_iteration_once(task: Task) -> None:
    """More than ten times, as the names of event files end with a number that counts those of a process."""
    for attempt in range(12):
        train(task, range(attempt, attempt + 3), attempt)
        assert shown(task.layout.training_events) == expected(task.layout)
    assert [step for step, _ in shown(task.layout.training_events)["reward_mean"]] == list(range(14))


def test_points_of_later_iterations_are_gone_before_the_first_new_one(task: Task) -> None:
    train(task, range(5), attempt=1)
    train(task, range(2, 2), attempt=2)
    assert [step for step, _ in shown(task.layout.training_events)["reward_mean"]] == [0, 1]


def test_an_attempt_that_was_taken_for_lost_adds_nothing(task: Task) -> None:
    lost = train(task, range(3), attempt=1)
    train(task, range(2, 4), attempt=2)
    lost.log(measured(3, attempt=1))
    lost.__exit__(None, None, None)
    assert shown(task.layout.training_events) == expected(task.layout)


def test_other_ranks_and_recipes_that_do_not_ask_write_nothing(tmp_path: Path) -> None:
    train(task_of(tmp_path / "run", rank=1), range(2), attempt=1)
    train(task_of(tmp_path / "other", TRAINER, "tracking.tensorboard=false"), range(2), attempt=1)
    assert not (tmp_path / "run" / "tensorboard").exists()
    assert not (tmp_path / "other" / "tensorboard").exists()


def test_the_report_writes_evaluations_and_what_the_trainer_could_not(tmp_path: Path) -> None:
    task = task_of(tmp_path / "run", "report")
    train(task, range(3), attempt=1)
    measured(3, attempt=1).write(task.layout.metrics(3))  # the trainer was killed before it had logged this
    for version, right in ((0, 5), (20, 15)):
        tries = {f"p{i}": [float(i < right), 0.0] for i in range(20)}
        summary = summarise_evaluation(version, "held-out", tries, tokens_per_rollout=99.0)
        summary.write(task.layout.evaluation_summary(version, "held-out"))
    for _ in range(2):
        with pytest.raises(UserError, match="the report is incomplete"):
            report.run(task)
        assert shown(task.layout.training_events) == expected(task.layout)
        found = shown(task.layout.evaluation_events)
        assert found["evaluation/held-out/accuracy"] == [(0, 0.125), (20, 0.375)]
        assert len(found) == len(evaluation_row(summary)) - 1
    assert sorted(path.name for path in task.layout.tensorboard.iterdir()) == ["evaluation", "training"]


def test_a_run_goes_on_without_the_package(
    task: Task, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with train(task, range(2), attempt=1):
        pass
    assert caplog.text.count("TensorBoard failed") == 1


LOGS_ON_A_FULL_DISK = """
import resource, sys
from pathlib import Path
from mrt_hpc.analysis.measures import IterationMetrics
from mrt_hpc.roles.tracking import IterationEvents
from mrt_hpc.run.layout import RunLayout

events = IterationEvents(RunLayout(Path(sys.argv[1])))
events.resume(0)
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
for iteration in range(50):
    events.log(IterationMetrics(iteration=iteration, tokens_per_rollout=1.0, reward_mean=0.5))
events.close()
print("goes on")
"""


def test_a_file_that_cannot_be_written_stops_nothing_and_is_made_whole_later(task: Task) -> None:
    command = [sys.executable, "-c", LOGS_ON_A_FULL_DISK, str(task.layout.root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "goes on\n", done.stderr
    assert done.stderr.count("TensorBoard failed") == 1
    torn = shown(task.layout.training_events)
    assert 0 < len(torn["reward_mean"]) < 50
    train(task, range(3), attempt=1)
    assert shown(task.layout.training_events) == expected(task.layout)


def test_event_files_that_nothing_asks_for_take_every_call() -> None:
    events = IterationEvents()
    events.resume(3)
    events.log(measured(3, 1))
    events.close()
