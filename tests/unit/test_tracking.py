"""TensorBoard event files, real offline directories of W&B with their uploads, and runs that go on without either."""

import errno
import json
import os
import shlex
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest
from basics import QUICKSTART, executable
from commands import commands_first, python, typed
from families import family
from listeners import unix_sockets
from run_of import forget_claims, run_of
from run_of import task_of as task_named
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto.wandb_internal_pb2 import Record

from mrt_hpc import RunLayout, UserError
from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics, Phase
from mrt_hpc.analysis.rows import summarise_evaluation
from mrt_hpc.roles import report
from mrt_hpc.roles.task.context import Task
from mrt_hpc.roles.tracking import Tracker, WandbRun, evaluation_row, numbers_in, run_id
from mrt_hpc.run.atomic import is_temporary
from mrt_hpc.run.evaluation_settings import evaluation_settings
from mrt_hpc.run.quarantine import set_aside, younger_than
from mrt_hpc.run.retries import wait_until

TRAINER, TENSORBOARD, WANDB = "segment-000.trainer", "tracking.tensorboard=true", "tracking.wandb=true"
METRICS = IterationMetrics(iteration=0, tokens_per_rollout=12.0)
UPLOADS = 'shift; for run; do for file in "$run"/*.wandb; do touch "$file.synced"; done; echo "$run" >> "$LIST"; done'


def task_of(root: Path, tracks: str, job: str = TRAINER, rank: int = 0) -> Task:
    return task_named(run_of(root, tracks), job, rank=rank)


def measured(iteration: int, attempt: int) -> IterationMetrics:
    return IterationMetrics(
        iteration=iteration, reward_mean=iteration + attempt / 64, tokens_per_rollout=100.0, batch="a digest",
        seconds={Phase.GENERATION: 2.0 * attempt}, progress_by_episode=(0.5, 0.25)[: 1 + iteration % 2],
        trainer={"ratio": 1.5},
    )  # fmt: skip


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
    found = EventAccumulator(str(directory), size_guidance={"scalars": 0}, purge_orphaned_data=False)
    found.Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def expected(layout: RunLayout) -> dict[str, list[tuple[int, float]]]:
    points: dict[str, list[tuple[int, float]]] = {}
    for path in sorted((layout.root / "iterations").glob("*/metrics.json")):
        metrics = IterationMetrics.read(path)
        for name, value in numbers_in(metrics.model_dump(mode="json", exclude={"iteration"})):
            points.setdefault(name, []).append((metrics.iteration, value))
    return points


def test_training_that_goes_back_leaves_each_iteration_once(task: Task) -> None:
    for attempt in range(4):
        lost = train(task, range(attempt, attempt + 3), attempt)
        assert shown(task.layout.training_events) == expected(task.layout)
    assert [step for step, _ in shown(task.layout.training_events)["reward_mean"]] == list(range(6))
    train(task, range(4, 7), attempt=5)
    lost.log(measured(6, attempt=3))
    lost.__exit__(None, None, None)
    assert shown(task.layout.training_events) == expected(task.layout), "an attempt taken for lost adds nothing"


def test_other_ranks_and_recipes_that_do_not_ask_write_nothing(tmp_path: Path) -> None:
    for name, tracks, rank in (("run", TENSORBOARD, 1), ("other", "tracking.tensorboard=false", 0)):
        train(task_of(tmp_path / name, tracks, rank=rank), range(2), attempt=1)
        assert not (tmp_path / name / "tensorboard").exists()


def test_the_report_writes_evaluations_and_what_the_trainer_could_not(tmp_path: Path) -> None:
    task = task_of(tmp_path / "run", TENSORBOARD, "report")
    train(task, range(3), attempt=1).__exit__(None, None, None)
    found = shown(task.layout.training_events)
    assert found["reward_mean"] == [(n, n + 1 / 64) for n in range(3)]
    assert (found["seconds/generation"][0], found["progress_by_episode/1"]) == ((0, 2.0), [(1, 0.25)])
    assert "batch" not in found
    measured(3, attempt=1).write(task.layout.metrics(3))  # the trainer was killed before it had logged this
    evaluate(task, 0, 5)
    summary = evaluate(task, 20, 15)
    for _ in range(2):
        report_role(task)
        assert shown(task.layout.training_events) == expected(task.layout)
        found = shown(task.layout.evaluation_events)
        assert found["evaluation/held-out/accuracy"] == [(0, 0.125), (20, 0.375)]
        assert len(found) == len(evaluation_row(summary)) - 1


LOGS_ON_A_FULL_DISK = """
import resource, sys
from pathlib import Path
from mrt_hpc.analysis.measures import IterationMetrics
from mrt_hpc.roles.tracking import Tracker
from mrt_hpc.run.layout import RunLayout
tracker = Tracker(layout=RunLayout(Path(sys.argv[1])))
tracker.resume(0)
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
for iteration in range(50):
    tracker.log(IterationMetrics(iteration=iteration, tokens_per_rollout=1.0, reward_mean=0.5))
tracker.__exit__(None, None, None)
print("goes on")
"""


def test_a_file_that_cannot_be_written_stops_nothing_and_is_made_whole_later(task: Task) -> None:
    done = python("-c", LOGS_ON_A_FULL_DISK, task.layout.root)
    assert done.stdout == "goes on\n", done.stderr
    assert done.stderr.count("TensorBoard failed") == 1
    assert 0 < len(shown(task.layout.training_events)["reward_mean"]) < 50
    train(task, range(3), attempt=1)
    assert shown(task.layout.training_events) == expected(task.layout)


def tracked(root: Path) -> Task:
    """A trainer that W&B was told of."""
    task = task_of(root, WANDB)
    with Tracker.of(task) as tracker:
        tracker.log(METRICS)
    return task


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command that marks what it is given as uploaded, as `wandb sync` does, and lists it in this file."""
    executable(commands_first(tmp_path / "bin", monkeypatch) / "wandb", UPLOADS)
    monkeypatch.setenv("LIST", str(tmp_path / "list"))
    return tmp_path / "list"


def sync(task: Task, exits: int = 0) -> str:
    output = typed("sync", task.layout.root, exits=exits).output
    forget_claims(task.layout)
    return output


def test_all_directories_go_once_to_one_run_also_after_an_upload_that_failed(tmp_path: Path, wandb: Path) -> None:
    sync(task_of(tmp_path / "nothing", WANDB), exits=2)
    assert not wandb.exists()
    task = tracked(tmp_path / "run")
    evaluate(task, 0, 4)
    report_role(task_of(task.layout.root, WANDB, "report"))
    for script in ("echo 'Network error' >&2; exit 1", "exit 0"):
        executable(tmp_path / "bin" / "wandb", script)
        assert f"mrt-hpc sync {task.layout.root} again" in sync(task, exits=1)
    executable(tmp_path / "bin" / "wandb", UPLOADS)
    sync(task)
    told = wandb.read_text().split()
    assert (told, len(told)) == (sorted(told), 2)
    assert {Path(path).name.rpartition("-")[2] for path in told} == {run_id(task)}
    assert "not uploaded" not in typed("status", task.layout.root).output
    sync(task)
    assert wandb.read_text().split() == told


TRACKS = """
import sys
from pathlib import Path
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.tracking import _offline_run
run = _offline_run(load_recipe(Path(sys.argv[1])), "x", Path(sys.argv[2]), silent=True)
print(run.settings.base_url, run.settings.entity)
run.finish()
"""


def test_no_settings_of_the_folder_name_the_server(
    tmp_path: Path, wandb: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that others can write to may hold them."""
    task = tracked(tmp_path / "run")
    (settings := tmp_path / "work" / "wandb" / "settings").parent.mkdir(parents=True)
    settings.write_text("[default]\nbase_url = http://127.0.0.1:9\nentity = another\n")
    monkeypatch.chdir(tmp_path / "work")
    executable(tmp_path / "bin" / "wandb", f"[ ! -e wandb/settings ] || exit 7\n{UPLOADS}")
    sync(task)
    assert wandb.exists()
    (tmp_path / "offline").mkdir()
    printed = python("-c", TRACKS, QUICKSTART, tmp_path / "offline").stdout
    assert "127.0.0.1:9" not in printed and "another" not in printed


@pytest.mark.parametrize(("service", "tracks"), [("TensorBoard", TENSORBOARD), ("W&B", WANDB)])
def test_a_trainer_goes_on_where_a_service_cannot_begin(
    service: str, tracks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = task_of(tmp_path / "run", tracks)
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    task.layout.wandb.write_text("a file where W&B wants a folder")
    train(task, range(2), attempt=1).__exit__(None, None, None)
    assert caplog.text.count(f"{service} failed") == 1


def broken(error: BaseException) -> Tracker:
    ends = error if isinstance(error, Exception) else None
    return Tracker([("W&B", WandbRun(Mock(log=Mock(side_effect=error), finish=Mock(side_effect=ends))))])


def test_a_trainer_goes_on_without_wandb_and_ends_by_a_signal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for logged in (2, 0):
        caplog.clear()
        with broken(OSError(errno.ENOSPC, "No space left on device")) as tracker:
            for _ in range(logged):
                tracker.log(METRICS)
        assert caplog.text.count("W&B failed") == 1
    with pytest.raises(SystemExit), broken(SystemExit(143)) as tracker:
        tracker.log(METRICS)
    task = task_of(tmp_path / "run", WANDB, "report")
    evaluate(task, 0, 4)
    task.layout.wandb.mkdir()
    (task.layout.wandb / "evaluations.json").write_text("cut off by a full d")
    report_role(task)
    assert task.layout.report.exists()


def told(task: Task) -> list[str]:
    printed = typed("status", task.layout.root).output
    report.write_report(task.layout)
    lines = [line.strip() for line in (*printed.splitlines(), *task.layout.report.read_text().splitlines())]
    return [line for line in lines if "W&B" in line or "wandb" in line]


def test_status_and_report_give_a_command_that_uploads_what_is_not_uploaded(tmp_path: Path) -> None:
    off = task_of(tmp_path / "off", "tracking.wandb=false")
    with Tracker.of(off):
        pass
    assert told(off) == told(task_of(tmp_path / "a run", WANDB)) == []
    trainer = tracked(tmp_path / "a run")
    command = f"wandb sync {shlex.quote(str(tmp_path / 'a run' / 'wandb' / 'wandb'))}/offline-run-*"
    assert told(trainer).count(command) == 2
    words = ["sh", "-c", f"PATH={Path(sys.executable).parent}:$PATH {command} --dry-run"]
    dry = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    (written,) = trainer.layout.offline_runs.glob("offline-run-*/*.wandb")
    assert written.parent.name in dry.stderr
    written.with_suffix(".wandb.synced").touch()
    assert command not in told(trainer)


def test_no_other_user_reaches_the_sockets_of_wandb(tmp_path: Path) -> None:
    def sockets() -> set[Path]:
        return unix_sockets(family(os.getpid()))

    before = os.umask(0)
    try:
        with Tracker.of(task_of(tmp_path / "run", WANDB)) as tracker:
            tracker.log(METRICS)
            wait_until(lambda: "symon" in str(sockets()), reason="W&B's monitor", deadline_s=20)
            found = sockets()
    finally:
        os.umask(before)
    assert {path.parent for path in found if path.parent.is_dir() and path.parent.stat().st_mode & 0o077} == set()
    assert "mrt-hpc-wandb" not in os.environ.get("TMPDIR", "")


def evaluate(task: Task, version: int, right: int) -> EvaluationSummary:
    samples = {f"p{i}": [float(i < right), 0.0] for i in range(20)}
    settings = evaluation_settings(task.layout, task.recipe)["held-out"].summarised
    measured = {"tokens_per_rollout": 99.0, "regret": {4096: {"p0": 0.5, "p1": 0.25}}, "settings": settings}
    summary = summarise_evaluation(version, "held-out", samples, **measured)
    summary.write(task.layout.evaluation_summary(version, "held-out"))
    return summary


def rows(content: bytes) -> Iterator[dict[str, float]]:
    """The history in a .wandb file: a LevelDB log of protobuf records, in blocks of 32 KiB, after 7 bytes."""
    at, message = 7, b""
    while at + 7 <= len(content):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", content[at : at + 7])
        message += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record, message = Record.FromString(message), b""
            if record.HasField("history"):
                yield {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}


def versions(task: Task) -> list[float]:
    """The versions in all directories that `wandb sync` would upload, oldest directory first."""
    paths = sorted(task.layout.offline_runs.glob("offline-run-*/*.wandb"))
    assert {path.name for path in paths} <= {f"run-{run_id(task)}.wandb"}
    logged = [row for path in paths for row in rows(path.read_bytes())]
    return [row["evaluation/version"] for row in logged if "evaluation/version" in row]


def report_role(task: Task) -> None:
    """The report of a run that has not measured all, which is an error that names the report."""
    with pytest.raises(UserError) as refused:
        report.run(task)
    assert refused.value.where == task.layout.report


KILLED = """
import os, sys
from pathlib import Path
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.attempt.entry import load_task
from mrt_hpc.roles import report, tracking
from mrt_hpc.run.layout import RunLayout
def killed(event, arguments):
    if event == "os.rename" and sys.argv[2] in f"{arguments[0]} {arguments[1]}":
        os.kill(os.getpid(), 9)
sys.addaudithook(killed)
report.run(load_task(RunLayout(Path(sys.argv[1])), "report", 0, Placement(0, 1, 0, "a.0")))
"""


@pytest.mark.parametrize("moment", ["evaluations.json", "/offline-run-"])
def test_an_evaluation_is_logged_once_though_the_report_is_killed(tmp_path: Path, moment: str) -> None:
    """Before the record names the finished directory, and before this takes its place."""
    task = task_of(tmp_path / "run", WANDB, "report")
    evaluate(task, 0, 4)
    python("-c", KILLED, task.layout.root, moment, exits=-9)
    assert versions(task) == []
    for _ in range(2):
        report_role(task)
        assert versions(task) == [0]
    assert [path for path in task.layout.wandb.iterdir() if is_temporary(path)] == []
    shutil.rmtree(task.layout.offline_runs)  # as `wandb clean` does with what is uploaded
    evaluate(task, 20, 10)
    report_role(task)
    assert versions(task) == [20]


def test_a_directory_begun_in_the_same_second_as_another_gets_a_name_of_its_own(tmp_path: Path) -> None:
    task = task_of(tmp_path / "run", WANDB, "report")
    now = datetime.now()  # W&B names directories by local time
    for second in range(6):
        taken = f"offline-run-{now + timedelta(seconds=second):%Y%m%d_%H%M%S}-{run_id(task)}"
        (task.layout.offline_runs / taken / "files").mkdir(parents=True)
    evaluate(task, 0, 4)
    report_role(task)
    assert versions(task) == [0]
