"""Ctrl-C in generation, then kill -9 of a whole run in the update, while publishing and in an evaluation; the same
command finishes it. Afterwards the events show that no completed shard and no checkpointed step was computed twice.
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
from conftest import ROOT

from mrt_hpc.errors import ExitCode
from mrt_hpc.run.archive import sampled_positions
from mrt_hpc.run.atomic import is_temporary
from mrt_hpc.run.events import EventKind, read_events
from mrt_hpc.run.groups import complete_groups
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.waiting import wait_until
from mrt_hpc.run.weights import published_versions

if TYPE_CHECKING:
    from collections.abc import Callable

ITERATIONS, GROUPS, EVALUATED = 2, 6, 12
SHRUNK = (
    f"sampling.problems_per_iteration={GROUPS}",
    "sampling.rollouts_per_problem=4",
    f"schedule.iterations={ITERATIONS}",
    f"schedule.iterations_per_job={ITERATIONS}",
    f"evaluation.benchmarks.0.problems.problems={EVALUATED}",
    "serving.kv_cache_gib=0.25",
    "tracking.wandb=true",
)
DEADLINE_S = 600
KILLS = 3


def kill_when(run: Path, condition: Callable[[], bool]) -> None:
    """Start the run, wait for the condition, and kill its process group at once."""
    process = started(submit_command(run, SHRUNK))
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
    process = started(submit_command(run, SHRUNK))
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
def killed_run(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    """A run that was interrupted, then killed three times, and then finished.

    Each condition stays true once its moment has come, so that a look that comes late on a busy machine kills as well.
    """
    run = tmp_path_factory.mktemp("killed") / "run"
    layout = RunLayout(run)

    def is_published(version: int) -> bool:
        return max(published_versions(layout), default=0) >= version

    def in_generation() -> bool:
        return bool(read_events(layout.events, EventKind.SERVER_STARTED))

    def in_update() -> bool:
        return len(complete_groups(layout.groups(0))) == GROUPS or is_published(1)

    def while_publishing() -> bool:
        begun = any(is_temporary(p) and "v000002" in p.name for p in layout.weights.iterdir())
        return begun or is_published(2)

    def in_evaluation() -> bool:
        """Some problems have been evaluated."""
        batches = layout.evaluation_samples(0, "held-out").glob("*/problems/*/?????-*")
        return any(batches) or layout.evaluation_shard(0, "held-out", 0).exists()

    interrupt_when(run, in_generation)
    for moment in (in_update, while_publishing, in_evaluation):
        kill_when(run, moment)
        gone = time.monotonic() + 30
        while servers_of(run):
            assert time.monotonic() < gone, f"processes outlived the run: {servers_of(run)}"
            time.sleep(0.05)
    submit_again(run)
    return layout


def submit_again(run: Path) -> None:
    """Type the command, and wait for the end of the run."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = submit_command(run, SHRUNK)
    ended = subprocess.run(command, env=environment, timeout=DEADLINE_S, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_report_is_complete(killed_run: RunLayout) -> None:
    assert "missing" not in killed_run.report.read_text().lower()
    for iteration in range(ITERATIONS):
        assert json.loads(killed_run.metrics(iteration).read_text())["iteration"] == iteration
    for version in (0, ITERATIONS):
        assert killed_run.evaluation_summary(version, "held-out").is_file()


def test_no_group_was_completed_twice(killed_run: RunLayout) -> None:
    """What was committed in the instant before a kill may lack its event."""
    for iteration in range(ITERATIONS):
        assert sampled_positions(killed_run, iteration) == set(range(GROUPS))
    events = read_events(killed_run.events)
    committed = Counter((e["iteration"], e["position"]) for e in events if e["kind"] == "group_committed")
    assert len(committed) >= ITERATIONS * GROUPS - KILLS
    assert max(committed.values()) == 1
    assert not [e for e in events if e["kind"] == "group_discarded"]


def test_no_evaluated_problem_was_sampled_twice(killed_run: RunLayout) -> None:
    parts = Counter(
        (e["version"], e["position"]) for e in read_events(killed_run.events) if e["kind"] == "part_committed"
    )
    assert len(read_problems(killed_run.benchmark_data("held-out"))) == EVALUATED
    # Several problems may be committed at the moment of a kill, before their events are written.
    assert 2 * EVALUATED - 4 * KILLS <= len(parts) <= 2 * EVALUATED
    assert max(parts.values()) == 1
    assert not list(killed_run.evaluations(0).rglob("parts-*")), "the parts are in the shard now"


def test_iterations_that_no_checkpoint_goes_back_to_are_archived(killed_run: RunLayout) -> None:
    for iteration in range(ITERATIONS - 1):
        assert {p.name for p in killed_run.iteration(iteration).iterdir()} == {"groups.zip", "metrics.json"}
    assert killed_run.groups(ITERATIONS - 1).is_dir()


def test_no_checkpointed_step_was_computed_twice(killed_run: RunLayout) -> None:
    """Events count iterations from 0; the checkpoint of iteration i says i + 1 updates."""
    checkpointed: set[int] = set()
    for event in read_events(killed_run.events):
        if event["kind"] == EventKind.CHECKPOINT:
            checkpointed.add(event["iteration"])
        if event["kind"] == EventKind.STEP:
            assert event["iteration"] + 1 not in checkpointed
    assert checkpointed
    assert killed_run.checkpoint(ITERATIONS).is_dir()


def test_every_version_was_published_once(killed_run: RunLayout) -> None:
    published = Counter(e["version"] for e in read_events(killed_run.events, EventKind.PUBLISHED))
    assert published and max(published.values()) == 1
    assert killed_run.weights_version(ITERATIONS).is_dir()


def test_all_attempts_log_to_one_wandb_run_and_each_evaluation_once(killed_run: RunLayout) -> None:
    run_id = (killed_run.wandb / "run_id").read_text()
    attempts = list(killed_run.wandb.glob("wandb/offline-run-*"))
    assert len(attempts) >= 2 and all(attempt.name.endswith(run_id) for attempt in attempts)
    record = json.loads((killed_run.wandb / "evaluations.json").read_text())
    assert sorted(row["evaluation/version"] for row in record["logged"]) == [0, ITERATIONS]
    assert (killed_run.offline_runs / Path(record["staged"]).name).is_dir()


def test_the_finished_run_has_nothing_left_to_do(killed_run: RunLayout) -> None:
    before = len(read_events(killed_run.events))
    submit_again(killed_run.root)
    assert len(read_events(killed_run.events)) == before
