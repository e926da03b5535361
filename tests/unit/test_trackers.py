"""TensorBoard event files, uploads to W&B by a command in the place of ``wandb``, and runs that go on without them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from run_of import run_of
from run_of import task_of as task_named
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mrt_hpc.analysis.measures import IterationMetrics, Phase
from mrt_hpc.analysis.rows import summarise_evaluation
from mrt_hpc.cli.main import main
from mrt_hpc.errors import UserError
from mrt_hpc.roles import report
from mrt_hpc.roles.tracking import IterationEvents, Tracker, evaluation_row, iteration_values, run_id
from mrt_hpc.run.evaluation_settings import evaluation_settings
from mrt_hpc.run.quarantine import set_aside, younger_than

if TYPE_CHECKING:
    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.layout import RunLayout

TRAINER, TENSORBOARD = "segment-000.trainer", "tracking.tensorboard=true"
METRICS = IterationMetrics(iteration=0, tokens_per_rollout=12.0)
UPLOADS = 'shift; for run; do for file in "$run"/*.wandb; do touch "$file.synced"; done; echo "$run" >> "$LIST"; done'


def task_of(root: Path, tracks: str, job: str = TRAINER, rank: int = 0) -> Task:
    return task_named(run_of(root, tracks), job, rank=rank)


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


# -- TensorBoard


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return task_of(tmp_path / "run", TENSORBOARD)


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
        lost = train(task, range(attempt, attempt + 3), attempt)
        assert shown(task.layout.training_events) == expected(task.layout)
    assert [step for step, _ in shown(task.layout.training_events)["reward_mean"]] == list(range(14))
    train(task, range(12, 12), attempt=12)
    assert [step for step, _ in shown(task.layout.training_events)["reward_mean"]] == list(range(12)), "gone at once"
    train(task, range(12, 15), attempt=13)
    lost.log(measured(14, attempt=11))
    lost.__exit__(None, None, None)
    assert shown(task.layout.training_events) == expected(task.layout), "an attempt taken for lost adds nothing"


def test_other_ranks_and_recipes_that_do_not_ask_write_nothing(tmp_path: Path) -> None:
    for name, tracks, rank in (("run", TENSORBOARD, 1), ("other", "tracking.tensorboard=false", 0)):
        train(task_of(tmp_path / name, tracks, rank=rank), range(2), attempt=1)
        assert not (tmp_path / name / "tensorboard").exists()
    events = IterationEvents()
    events.resume(3)
    events.log(measured(3, 1))
    events.close()


def test_the_report_writes_evaluations_and_what_the_trainer_could_not(tmp_path: Path) -> None:
    task = task_of(tmp_path / "run", TENSORBOARD, "report")
    train(task, range(3), attempt=1)
    measured(3, attempt=1).write(task.layout.metrics(3))  # the trainer was killed before it had logged this
    settings = evaluation_settings(task.layout, task.recipe)["held-out"].summarised
    for version, right in ((0, 5), (20, 15)):
        tries = {f"p{i}": [float(i < right), 0.0] for i in range(20)}
        summary = summarise_evaluation(version, "held-out", tries, tokens_per_rollout=99.0, settings=settings)
        summary.write(task.layout.evaluation_summary(version, "held-out"))
    for _ in range(2):
        with pytest.raises(UserError, match="the report is incomplete"):
            report.run(task)
        assert shown(task.layout.training_events) == expected(task.layout)
        found = shown(task.layout.evaluation_events)
        assert found["evaluation/held-out/accuracy"] == [(0, 0.125), (20, 0.375)]
        assert len(found) == len(evaluation_row(summary)) - 1
    assert sorted(path.name for path in task.layout.tensorboard.iterdir()) == ["evaluation", "training"]


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
    assert 0 < len(shown(task.layout.training_events)["reward_mean"]) < 50
    train(task, range(3), attempt=1)
    assert shown(task.layout.training_events) == expected(task.layout)


# -- W&B


def tracked(root: Path) -> Task:
    """A task of a run with a report, whose trainer has tracked an iteration."""
    task = task_of(root, "tracking.wandb=true")
    with Tracker.of(task) as tracker:
        tracker.log(METRICS)
    report.write_report(task.layout)
    return task


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command that marks what it is given as uploaded, as `wandb sync` does, and lists it in this file."""
    put(tmp_path, UPLOADS)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("LIST", str(tmp_path / "list"))
    return tmp_path / "list"


def put(folder: Path, script: str) -> None:
    path = folder / "bin" / "wandb"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def sync(task: Task, *, fails: bool = False) -> str:
    result = CliRunner().invoke(main, ["sync", str(task.layout.root)])
    assert bool(result.exit_code) is fails, result.output
    for claim in task.layout.jobs.glob("local-*.json"):
        claim.unlink()  # this process lives on, where a command would have ended
    return result.output


def test_all_directories_go_once_to_one_run_in_their_order_with_the_report(tmp_path: Path, wandb: Path) -> None:
    task = tracked(tmp_path / "run")
    sync(task)
    told = wandb.read_text().split()
    assert told == sorted(told)
    assert len(told) == 2
    assert {Path(path).name.rpartition("-")[2] for path in told} == {run_id(task)}
    attached = Path(told[-1]) / "files"
    assert (attached / "report.md").read_bytes() == task.layout.report.read_bytes()
    assert (attached / "report.html").exists()
    assert "not uploaded" not in CliRunner().invoke(main, ["status", str(task.layout.root)]).output
    sync(task)
    assert wandb.read_text().split() == told


@pytest.mark.parametrize("script", ["echo 'Network error' >&2; exit 1", "exit 0"])
def test_an_upload_that_fails_says_so_and_can_be_repeated(tmp_path: Path, wandb: Path, script: str) -> None:
    task = tracked(tmp_path / "run")
    put(tmp_path, script)
    assert f"mrt-hpc sync {task.layout.root} again" in sync(task, fails=True)
    put(tmp_path, UPLOADS)
    sync(task)
    assert wandb.exists()


@pytest.mark.parametrize("tracks", ["tracking.wandb=false", "tracking.wandb=true"])
def test_a_run_that_has_logged_nothing_is_refused(tmp_path: Path, wandb: Path, tracks: str) -> None:
    sync(task_of(tmp_path / "run", tracks), fails=True)
    assert not wandb.exists()


# -- neither stops a run


class Broken:
    """A W&B run that raises whatever is logged."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def log(self, *_: Any, **__: Any) -> None:
        raise self.error

    def finish(self, **_: Any) -> None:
        if isinstance(self.error, Exception):
            raise self.error


@pytest.mark.parametrize("service", ["TensorBoard", "W&B"])
def test_a_trainer_goes_on_where_a_service_cannot_begin(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = task_of(tmp_path / "run", TENSORBOARD if service == "TensorBoard" else "tracking.wandb=true")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    task.layout.wandb.write_text("a file where W&B wants a folder")
    with train(task, range(2), attempt=1):
        pass
    assert caplog.text.count(f"{service} failed") == 1


def test_a_trainer_goes_on_where_wandb_cannot_write_and_ends_by_a_signal(caplog: pytest.LogCaptureFixture) -> None:
    for logged in (2, 0):
        caplog.clear()
        with Tracker(Broken(OSError(errno.ENOSPC, "No space left on device"))) as tracker:
            for _ in range(logged):
                tracker.log(METRICS)
        assert caplog.text.count("W&B failed") == 1
    with pytest.raises(SystemExit), Tracker(Broken(SystemExit(143))) as tracker:
        tracker.log(METRICS)


def test_the_report_is_written_where_wandb_cannot_log_the_evaluations(tmp_path: Path) -> None:
    task = task_of(tmp_path / "run", "tracking.wandb=true", "report")
    summarise_evaluation(0, "held-out", {"p": [1.0, 0.0]}).write(task.layout.evaluation_summary(0, "held-out"))
    task.layout.wandb.mkdir()
    (task.layout.wandb / "evaluations.json").write_text("cut off by a full d")
    with pytest.raises(UserError, match="the report is incomplete"):
        report.run(task)
    assert task.layout.report.exists()
