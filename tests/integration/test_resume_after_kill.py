"""A whole run is killed in generation, then interrupted in an evaluation; the same command finishes it. Afterwards the
events show that no completed shard and no checkpointed step was computed twice. (``tests/crash`` stops a trainer at
every change of a file.)
"""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from chaos_backends import started, submit_command
from conftest import printed_by_forks
from families import servers_of
from run_of import read_events

from mrt_hpc.errors import ExitCode
from mrt_hpc.run.archive import sampled_positions
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.retries import wait_until

ITERATIONS, GROUPS, EVALUATED = 2, 6, 12
SHRUNK = (
    f"sampling.problems_per_iteration={GROUPS}", "sampling.rollouts_per_problem=4", f"schedule.iterations={ITERATIONS}",
    f"schedule.iterations_per_job={ITERATIONS}", f"evaluation.benchmarks.0.problems.problems={EVALUATED}",
    "serving.kv_cache_gib=0.25", "tracking.wandb=true",
)  # fmt: skip
DEADLINE_S = 600


def stop_when(run: Path, condition: Callable[[], bool], *, kill: bool = True) -> None:
    """Start the run and wait for the condition. Then kill its process group, or press Ctrl-C, which ends it cleanly; no
    server outlives it.
    """
    process = started(submit_command(run, SHRUNK))
    end = time.monotonic() + DEADLINE_S
    try:
        while not condition():
            assert process.poll() is None, "the run ended before it could be stopped"
            assert time.monotonic() < end, "the moment to stop it never came"
            time.sleep(0.001)
        if not kill:
            process.send_signal(signal.SIGINT)
            assert (process.wait(60), servers_of(run)) == (ExitCode.INTERRUPTED, [])
            return
    finally:
        with suppress(ProcessLookupError):  # a leader that ended by itself may have left others of its group
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    wait_until(lambda: not servers_of(run), reason="the end of its servers", deadline_s=30)


@pytest.fixture(scope="module")
def killed_run(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    """A run that was killed, then interrupted, and then finished.

    Each condition stays true once its moment has come, so that a look that comes late on a busy machine kills as well.
    """
    run = tmp_path_factory.mktemp("killed") / "run"
    layout = RunLayout(run)
    stop_when(run, lambda: bool(sampled_positions(layout, ITERATIONS - 1)))
    stop_when(run, lambda: bool(read_events(layout.events, EventKind.PART_COMMITTED)), kill=False)
    printed_by_forks(*submit_command(run, SHRUNK)[3:])
    return layout


def test_the_run_is_complete_and_every_version_was_published_once(killed_run: RunLayout) -> None:
    assert "missing" not in killed_run.report.read_text().lower()
    assert [json.loads(killed_run.metrics(i).read_text())["iteration"] for i in range(ITERATIONS)] == [0, 1]
    assert all(killed_run.evaluation_summary(version, "held-out").is_file() for version in (0, ITERATIONS))
    published = Counter(e["version"] for e in read_events(killed_run.events, EventKind.PUBLISHED))
    assert published and max(published.values()) == 1 and killed_run.weights_version(ITERATIONS).is_dir()
    for iteration in range(ITERATIONS - 1):  # no checkpoint goes back to these
        assert {p.name for p in killed_run.iteration(iteration).iterdir()} == {"groups.zip", "metrics.json"}
    assert killed_run.groups(ITERATIONS - 1).is_dir()


def test_no_group_was_completed_twice(killed_run: RunLayout) -> None:
    """What was committed in the instant before a kill may lack its event: groups of one iteration end together."""
    for iteration in range(ITERATIONS):
        assert sampled_positions(killed_run, iteration) == set(range(GROUPS))
    events = read_events(killed_run.events, EventKind.GROUP_COMMITTED)
    committed = Counter((e["iteration"], e["position"]) for e in events)
    assert len(committed) >= (ITERATIONS - 1) * GROUPS and max(committed.values()) == 1
    assert not read_events(killed_run.events, EventKind.GROUP_DISCARDED)


def test_no_evaluated_problem_was_sampled_twice(killed_run: RunLayout) -> None:
    parts = Counter((e["version"], e["position"]) for e in read_events(killed_run.events, EventKind.PART_COMMITTED))
    assert len(read_problems(killed_run.benchmark_data("held-out"))) == EVALUATED
    # Those of both versions may be committed at the moment of a stop, before their events are written.
    assert 0 < len(parts) <= 2 * EVALUATED
    assert max(parts.values()) == 1
    assert not list(killed_run.evaluations(0).rglob("parts-*")), "the parts are in the shard now"


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


def test_all_attempts_log_to_one_wandb_run_and_each_evaluation_once(killed_run: RunLayout) -> None:
    run_id = (killed_run.wandb / "run_id").read_text()
    attempts = list(killed_run.wandb.glob("wandb/offline-run-*"))
    assert len(attempts) >= 2 and all(attempt.name.endswith(run_id) for attempt in attempts)
    record = json.loads((killed_run.wandb / "evaluations.json").read_text())
    assert sorted(row["evaluation/version"] for row in record["logged"]) == [0, ITERATIONS]
    assert (killed_run.offline_runs / Path(record["staged"]).name).is_dir()


def test_the_finished_run_has_nothing_left_to_do(killed_run: RunLayout) -> None:
    before = len(read_events(killed_run.events))
    printed_by_forks(*submit_command(killed_run.root, SHRUNK)[3:])
    assert len(read_events(killed_run.events)) == before
