"""Ctrl-C, then kill -9 of a whole run in generation, in the update, while publishing and in an evaluation; the same
command finishes it.

Afterwards the events must show that no completed shard and no checkpointed step was computed twice.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chaos_backends import started, submit_command

from mrt_hpc.errors import ExitCode
from mrt_hpc.run.archive import sampled_positions
from mrt_hpc.run.atomic import is_temporary
from mrt_hpc.run.data import read_problems
from mrt_hpc.run.events import EventKind, read_events
from mrt_hpc.run.groups import complete_groups
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.waiting import wait_until
from mrt_hpc.run.weights import published_versions

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
ITERATIONS = 3
SHRUNK = (
    "sampling.problems_per_iteration=6",
    "sampling.rollouts_per_problem=4",
    f"schedule.iterations={ITERATIONS}",
    f"schedule.iterations_per_job={ITERATIONS}",
    "evaluation.benchmarks.0.problems.problems=20",
    "tracking.wandb=true",
)
DEADLINE_S = 600
KILLS = 4


def start(run: Path) -> subprocess.Popen[bytes]:
    return started(submit_command(run, SHRUNK))


def kill_when(run: Path, condition: Callable[[], bool]) -> None:
    """Start the run, wait for the condition, and kill its process group at once."""
    process = start(run)
    end = time.monotonic() + DEADLINE_S
    try:
        while not condition():
            assert process.poll() is None, "the run ended before it could be killed"
            assert time.monotonic() < end, "the moment to kill never came"
            time.sleep(0.001)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def interrupt_when(run: Path, condition: Callable[[], bool]) -> None:
    """Start the run, wait for the condition, and press Ctrl-C, which must stop it cleanly."""
    process = start(run)
    wait_until(condition, reason="the moment to interrupt", deadline_s=DEADLINE_S)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == ExitCode.INTERRUPTED
    assert servers_of(run) == []


def servers_of(run: Path) -> list[int]:
    """Processes that still serve weights of this run."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and str(run).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def killed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted, then killed four times, and then finished.

    Each condition stays true once its moment has come, so that a look that comes late on a busy machine kills as well.
    """
    run = tmp_path_factory.mktemp("killed") / "run"
    layout = RunLayout(run)

    def is_published(version: int) -> bool:
        return max(published_versions(layout), default=0) >= version

    def in_generation() -> bool:
        return bool(read_events(layout.events, EventKind.SERVER_STARTED))

    def in_update() -> bool:
        return len(complete_groups(layout.groups(0))) == 6 or is_published(1)

    def while_publishing() -> bool:
        begun = any(is_temporary(p) and "v000002" in p.name for p in layout.weights.iterdir())
        return begun or is_published(2)

    def in_evaluation() -> bool:
        """Some problems have been evaluated."""
        first = layout.evaluation_parts(0, "held-out", 0)
        return bool(complete_groups(first)) or layout.evaluation_shard(0, "held-out", 0).exists()

    interrupt_when(run, lambda: bool(read_events(layout.events, EventKind.TASK_STARTED)))
    for moment in (in_generation, in_update, while_publishing, in_evaluation):
        kill_when(run, moment)
        gone = time.monotonic() + 30
        while servers_of(run):
            assert time.monotonic() < gone, f"processes outlived the run: {servers_of(run)}"
            time.sleep(0.05)
    finished = subprocess.run(
        submit_command(run, SHRUNK),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=DEADLINE_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return run


def test_the_report_is_complete(killed_run: Path) -> None:
    layout = RunLayout(killed_run)
    assert layout.report.is_file()
    assert "missing" not in layout.report.read_text().lower()
    for iteration in range(ITERATIONS):
        assert json.loads(layout.metrics(iteration).read_text())["iteration"] == iteration
    for version in (0, ITERATIONS):
        assert layout.evaluation_summary(version, "held-out").is_file()


def test_no_group_was_completed_twice(killed_run: Path) -> None:
    """What was committed in the instant before a kill may lack its event."""
    layout = RunLayout(killed_run)
    for iteration in range(ITERATIONS):
        assert sampled_positions(layout, iteration) == set(range(6))
    events = read_events(layout.events)
    committed = Counter(
        (e["iteration"], e["position"]) for e in events if e["kind"] == "shard_committed" and e["what"] == "group"
    )
    assert len(committed) >= ITERATIONS * 6 - KILLS
    assert max(committed.values()) == 1
    assert not [e for e in events if e["kind"] == "shard_discarded"]


def test_no_evaluated_problem_was_sampled_twice(killed_run: Path) -> None:
    events = read_events(RunLayout(killed_run).events)
    parts = Counter((e["version"], e["position"]) for e in events if e["kind"] == "part_committed")
    problems = len(read_problems(RunLayout(killed_run).benchmark_data("held-out")))
    # Several problems may be committed at the moment of a kill, before their events are written.
    assert 2 * problems - 4 * KILLS <= len(parts) <= 2 * problems
    assert max(parts.values()) == 1
    assert not list(RunLayout(killed_run).evaluations(0).rglob("parts-*")), "the parts are in the shard now"


def test_iterations_that_no_checkpoint_goes_back_to_are_archived(killed_run: Path) -> None:
    layout = RunLayout(killed_run)
    for iteration in range(ITERATIONS - 1):
        assert {p.name for p in layout.iteration(iteration).iterdir()} == {"groups.zip", "metrics.json"}
    assert layout.groups(ITERATIONS - 1).is_dir()


def test_no_checkpointed_step_was_computed_twice(killed_run: Path) -> None:
    """Events count iterations from 0; the checkpoint of iteration i says i + 1 updates."""
    checkpointed: set[int] = set()
    for event in read_events(RunLayout(killed_run).events):
        if event["kind"] == EventKind.CHECKPOINT:
            checkpointed.add(event["iteration"])
        if event["kind"] == EventKind.STEP:
            assert event["iteration"] + 1 not in checkpointed
    assert len(checkpointed) >= ITERATIONS - KILLS
    assert RunLayout(killed_run).checkpoint(ITERATIONS).is_dir()


def test_every_version_was_published_once(killed_run: Path) -> None:
    events = read_events(RunLayout(killed_run).events, EventKind.PUBLISHED)
    published = Counter(e["version"] for e in events)
    assert len(published) >= ITERATIONS + 1 - KILLS
    assert max(published.values()) == 1
    assert RunLayout(killed_run).weights_version(ITERATIONS).is_dir()


def test_all_attempts_log_to_one_wandb_run(killed_run: Path) -> None:
    layout = RunLayout(killed_run)
    run_id = (layout.wandb / "run_id").read_text()
    attempts = list(layout.wandb.glob("wandb/offline-run-*"))
    assert len(attempts) >= 2
    assert all(attempt.name.endswith(run_id) for attempt in attempts)


def test_each_evaluation_is_logged_to_wandb_once(killed_run: Path) -> None:
    layout = RunLayout(killed_run)
    record = json.loads((layout.wandb / "evaluations.json").read_text())
    assert sorted(row["evaluation/version"] for row in record["logged"]) == [0, ITERATIONS]
    assert (layout.offline_runs / Path(record["staged"]).name).is_dir()


def test_the_finished_run_has_nothing_left_to_do(killed_run: Path) -> None:
    before = len(read_events(RunLayout(killed_run).events))
    again = subprocess.run(
        submit_command(killed_run, SHRUNK),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=120,
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    assert len(read_events(RunLayout(killed_run).events)) == before
