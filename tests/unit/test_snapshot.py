"""The snapshot of a run, which status --json prints and status --watch shows."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from canned_queue import EVALUATION, INFERENCE, QUICKSTART, TRAINER, CannedRun, canned_run
from click.testing import CliRunner
from many_tasks import many_tasks
from synthetic_run import Shape, SyntheticRun

from mrt_hpc.backends.queued_jobs import look_at_queues
from mrt_hpc.cli.main import main
from mrt_hpc.plan.jobs import read_plan
from mrt_hpc.run.data import read_problems
from mrt_hpc.run.groups import commit_group
from mrt_hpc.run.task_state import TaskState
from mrt_hpc.view.snapshot import Snapshot
from mrt_hpc.view.snapshot_reader import SnapshotReader

if TYPE_CHECKING:
    from pathlib import Path

TASK = {"job": TRAINER, "task": 0, "rank": 0, "attempt": "12.0", "world_size": 1}
SHAPE = {
    "format", "run", "name", "kind", "time", "state", "unreached", "unreadable", "warnings", "process", "iterations",
    "measured", "evaluations", "jobs", "tasks", "throughput", "fault_counts", "faults", "upcoming", "expected_end",
    "report", "report_is_old",
}  # fmt: skip
PARTS = {
    "iterations": {"done", "planned", "weights_version", "groups_done", "groups_planned", "seconds"},
    "throughput": {"sampling", "whole", "training", "evaluation"},
    "jobs": {"name", "role", "ids", "tasks", "states", "queue", "after", "time_limit_s", "gpus"},
    "tasks": {
        "job", "index", "role", "state", "alive", "attempt", "since", "node", "weights_version", "last_event",
        "failures", "reason", "paused", "ends_at",
    },
    "measured": {"iteration", "reward", "progress", "answered", "seconds"},
    "upcoming": {"what", "at"},
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    return canned_run(tmp_path, monkeypatch)


def snapshot(run: CannedRun, reader: SnapshotReader | None = None) -> Snapshot:
    reader = reader or SnapshotReader.of(run.layout, run.plan)
    return reader.read(look_at_queues(run.layout, 3.0))


def trained(run: CannedRun, iterations: int) -> list[object]:
    """Write the metrics of finished iterations, and the weights version that the last one published."""
    source = SyntheticRun(run.layout.root.parent / "measured", Shape(20, 20, problems=1, paragraphs=1))
    written = [source._metrics(iteration) for iteration in range(iterations)]
    for metrics in written:
        metrics.write(run.layout.metrics(metrics.iteration))
    run.layout.weights_version(iterations).mkdir(parents=True)
    return list(written)


def test_the_json_has_the_documented_shape(run: CannedRun) -> None:
    trained(run, 2)
    run.submitted(trainer="12")
    run.queue("12|RUNNING|1|None|node7")
    run.task(TRAINER, TaskState.RUNNING, attempt="12.0")
    result = CliRunner().invoke(main, ["status", str(run.layout.root), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert set(found) == SHAPE
    for name, fields in PARTS.items():
        part = found[name]
        assert set(part[0] if isinstance(part, list) else part) == fields, name
    assert found["format"] == 1
    assert Snapshot.model_validate(found).name == "quickstart"


def test_a_running_task_has_its_node_its_weights_and_its_time_limit(run: CannedRun) -> None:
    run.submitted(trainer="12", inference="13")
    ends = int(time.time()) + 600
    run.queue(f"12|RUNNING|{ends}|None|node[7-8]", "13|PENDING|N/A|Priority|")
    run.task(TRAINER, TaskState.RUNNING, attempt="12.0")
    run.events(TRAINER, "12.0", {"kind": "task_started", **TASK}, {"kind": "published", "version": 4})
    (task,) = snapshot(run).tasks
    assert (task.job, task.alive, task.node) == (TRAINER, True, "node[7-8]")
    assert (task.weights_version, task.ends_at, task.last_event) == (4, ends, 1001.0)


def test_the_weights_of_a_server_are_those_that_it_loaded_last(run: CannedRun) -> None:
    run.task(INFERENCE, TaskState.STOPPED, attempt="b")
    started = {"kind": "task_started", **TASK, "job": INFERENCE}
    run.events(INFERENCE, "a", started, {"kind": "server_started", "version": 9, "server_pid": 1})
    reader = SnapshotReader.of(run.layout, run.plan)
    assert snapshot(run, reader).tasks[0].weights_version == 9
    later = {"time": 5000.0, "kind": "server_started", "version": 2}
    run.events(
        INFERENCE, "b", {**started, "time": 4000.0}, later, {"time": 5001.0, "kind": "weights_loaded", "version": 3}
    )
    assert snapshot(run, reader).tasks[0].weights_version == 3


def test_the_latest_attempt_is_told_by_its_name_and_not_by_the_clock_of_its_node(run: CannedRun) -> None:
    run.task(INFERENCE, TaskState.STOPPED, attempt="13_0.1")
    for attempt, at, version in (("13_0.0", 9000.0, 1), ("13_0.1", 5000.0, 2)):
        told = [{"kind": "task_started", "job": INFERENCE}, {"kind": "server_started", "version": version}]
        run.events(INFERENCE, attempt, *({**TASK, **event, "time": at} for event in told))
    assert snapshot(run).tasks[0].weights_version == 2


def test_an_attempt_without_an_end_is_told_as_lost_once_its_task_is_in_another(run: CannedRun) -> None:
    run.task(TRAINER, TaskState.RUNNING, attempt="12.0")
    run.events(TRAINER, "12.0", {"kind": "task_started", **TASK})
    assert snapshot(run).faults == ()
    run.task(TRAINER, TaskState.RUNNING, attempt="12.1")
    (fault,) = snapshot(run).faults
    assert fault.what.startswith("attempt lost")
    assert fault.task == f"{TRAINER} task 0"
    assert snapshot(run).fault_counts == {fault.what: 1}


def test_throughput_follows_from_the_last_iterations(run: CannedRun) -> None:
    last = trained(run, 9)[-5:]
    rates = snapshot(run).throughput
    assert rates.sampling == pytest.approx(
        sum(m.generated_tokens for m in last) / sum(m.sampling_seconds for m in last)
    )  # type: ignore[attr-defined]
    assert rates.whole == pytest.approx(sum(m.generated_tokens for m in last) / sum(m.wall_seconds for m in last))  # type: ignore[attr-defined]
    assert rates.evaluation is None


def test_throughput_of_the_first_iteration_follows_from_its_groups(run: CannedRun, tmp_path: Path) -> None:
    source = SyntheticRun(tmp_path / "measured", Shape(20, 20, problems=2, paragraphs=1))
    for position, problem in enumerate(read_problems(source.layout.train_data)[:2]):
        sampled = source._sampled(0, [problem])
        cost = replace(sampled.statistics, rollout_tokens=100 * (position + 1), branch_tokens=50)
        cost = replace(cost, seconds={"generation": 2.0 * (position + 1)})
        commit_group(run.layout.group(0, position), replace(sampled, statistics=cost))
    found = snapshot(run)
    assert (found.iterations.groups_done, found.iterations.groups_planned) == (2, 32)
    assert found.throughput.sampling == pytest.approx((100 + 200 + 2 * 50) / 4.0)


def test_what_comes_next_is_timed_by_the_measured_iterations(run: CannedRun) -> None:
    trained(run, 5)  # of 500 seconds each
    run.submitted(trainer="12", evaluation="13")
    run.queue(f"12|RUNNING|{int(time.time()) + 900}|None|node7", "13_0|PENDING|N/A|Dependency|")
    run.task(TRAINER, TaskState.RUNNING, attempt="12.0")
    published = time.time() - 100
    event = {"kind": "published", "version": 5, "time": published}
    run.events(TRAINER, "12.0", {"kind": "task_started", **TASK}, event)
    found = snapshot(run)
    assert found.iterations.seconds == 500.0
    assert found.expected_end == pytest.approx(published + 15 * 500)
    times = {one.what.split()[0]: one.at for one in found.upcoming}
    assert times["iteration"] == pytest.approx(published + 500)
    assert times[TRAINER] == pytest.approx(time.time() + 900, abs=5)
    assert times[EVALUATION] == pytest.approx(published + 15 * 500)
    assert [one.at or float("inf") for one in found.upcoming] == sorted(
        one.at or float("inf") for one in found.upcoming
    )


def test_a_start_that_slurm_expects_is_told(run: CannedRun) -> None:
    limit = run.plan.job(TRAINER).resources.time_limit_minutes * 60
    run.submitted(trainer="12")
    run.queue(f"12|PENDING|{2_000_000_000}|Resources|")
    found = snapshot(run)
    assert [one.at for one in found.upcoming if one.what.startswith(TRAINER)] == [2_000_000_000 - limit]
    assert found.expected_end is None, "nothing runs"


def test_a_run_that_has_stopped_needs_a_command(run: CannedRun) -> None:
    trained(run, 5)
    found = snapshot(run)
    assert [one.what for one in found.upcoming] == ["nothing, until the same submit command is typed again"]
    assert found.expected_end is None


def test_results_and_faults_of_a_finished_run_are_there(tmp_path: Path) -> None:
    layout = SyntheticRun(tmp_path / "run", Shape(4, 2, problems=2, paragraphs=1)).write()
    found = SnapshotReader.of(layout, read_plan(layout.plan)).read()
    assert [(one.benchmark, one.version) for one in found.evaluations.results] == [
        ("aime24", 0), ("aime24", 2), ("aime24", 4), ("math500", 0), ("math500", 2), ("math500", 4),
    ]  # fmt: skip
    assert len(found.measured) == 4
    assert all(one.reward is not None and one.progress is not None for one in found.measured)
    assert {fault.what for fault in found.faults} == {
        "attempt ended: stopped", "attempt lost: it recorded no end", "resumed from a checkpoint", "set aside",
    }  # fmt: skip


def test_metrics_that_are_written_again_are_read_again(run: CannedRun) -> None:
    (metrics,) = trained(run, 1)
    reader = SnapshotReader.of(run.layout, run.plan)
    assert snapshot(run, reader).measured[0].reward == pytest.approx(metrics.reward_mean)  # type: ignore[attr-defined]
    metrics.model_copy(update={"reward_mean": 0.75}).write(run.layout.metrics(0))  # type: ignore[attr-defined]
    os.utime(run.layout.metrics(0), (1.0, 1.0))
    assert snapshot(run, reader).measured[0].reward == 0.75


def test_a_queue_that_is_not_reached_is_named(run: CannedRun) -> None:
    run.submitted(trainer="12")
    run.command("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert "squeue refused" in snapshot(run).unreached["Slurm"]


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_status_of_5000_tasks_takes_less_than_two_seconds_and_two_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: list[str]
) -> None:
    """Seconds of the processor: other tests share the machine."""
    large = many_tasks(tmp_path, QUICKSTART)
    assert large.tasks > 5000
    monkeypatch.setenv("PATH", f"{large.commands}:{os.environ['PATH']}")
    began = time.process_time()
    result = CliRunner().invoke(main, ["status", str(large.layout.root), *option])
    took = time.process_time() - began
    assert result.exit_code == 0, result.output
    assert took < 2.0
    assert sorted((large.commands / "calls").read_text().split()) == ["sacct", "squeue"]
    if option:
        found = Snapshot.model_validate_json(result.output)
        assert sum(job.states[TaskState.DONE] for job in found.jobs if TaskState.DONE in job.states) > 3000
        assert len(found.tasks) == sum(task.alive for task in found.tasks) > 50
