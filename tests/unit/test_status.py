"""Whether runs go on, and what ``mrt-hpc status`` and ``mrt-hpc runs`` show of them on terminals of several widths."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from basics import EVALUATION, INFERENCE, TRAINER
from canned_queue import CannedRun, canned_run
from commands import typed
from many_tasks import many_tasks
from rich.console import Console
from run_of import publish_some
from samples import rollout, sampled
from synthetic_run import Shape, SyntheticEvaluation, SyntheticRun, made_up_metrics
from terminals import on_a_terminal

from mrt_hpc.analysis.measures import IterationMetrics
from mrt_hpc.backends.queued_jobs import look_at_queues
from mrt_hpc.backends.slurm import queue as slurm_queue
from mrt_hpc.cli.run_view import LineDisplay, one_line, view
from mrt_hpc.plan.jobs import read_plan
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.groups import commit_group
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskState
from mrt_hpc.view.run_look import RunLook
from mrt_hpc.view.snapshot import Snapshot
from mrt_hpc.view.snapshot_reader import SnapshotReader

TASK = {"job": TRAINER, "task": 0, "rank": 0, "attempt": "12.0", "world_size": 1}
STARTED = {"kind": "task_started", **TASK}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    return canned_run(tmp_path, monkeypatch, "resources.inference.tasks=8")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    return SyntheticRun(tmp_path_factory.mktemp("finished") / "run", Shape(4, 2, problems=2, paragraphs=1)).write()


def snapshot(run: CannedRun, reader: SnapshotReader | None = None) -> Snapshot:
    reader = reader or SnapshotReader.of(run.layout, run.plan)
    return reader.read(look_at_queues(run.layout, 3.0))


def trained(run: CannedRun, iterations: int) -> list[IterationMetrics]:
    """Write the metrics of finished iterations, and the weights version that the last one published."""
    random = np.random.default_rng(0)
    written = [made_up_metrics(iteration, 20, random) for iteration in range(iterations)]
    for metrics in written:
        metrics.write(run.layout.metrics(metrics.iteration))
    run.layout.weights_version(iterations).mkdir(parents=True)
    return written


def status(run: CannedRun, *options: str, columns: int | None = None) -> str:
    return typed("status", run.layout.root, *options, columns=columns).output


def test_the_weights_of_a_server_are_those_that_its_latest_attempt_loaded_last(run: CannedRun) -> None:
    """The latest attempt is the one of its name, whatever the clock of its node says."""
    started, server = {**STARTED, "job": INFERENCE}, {"kind": "server_started"}
    run.task(INFERENCE, TaskState.STOPPED, attempt="13_0.1")
    run.events(INFERENCE, "13_0.0", {**started, "time": 9000.0}, {**server, "version": 9, "time": 9001.0})
    reader = SnapshotReader.of(run.layout, run.plan)
    assert snapshot(run, reader).tasks[0].weights_version == 9
    begun = [{**started, "time": 5000.0}, {**server, "version": 2, "time": 5001.0}]
    run.events(INFERENCE, "13_0.1", *begun)
    assert snapshot(run, reader).tasks[0].weights_version == 2
    run.events(INFERENCE, "13_0.1", *begun, {"kind": "weights_loaded", "version": 3, "time": 5002.0})
    assert snapshot(run, reader).tasks[0].weights_version == 3


def test_throughput_follows_from_the_last_groups_until_an_iteration_has_ended(run: CannedRun) -> None:
    for position, group in enumerate((sampled(rollout("p", 0)), sampled(rollout("q", 0))), start=1):
        seconds = {"generation": 2.0 * position}
        cost = replace(group.statistics, rollout_tokens=100 * position, branch_tokens=50, seconds=seconds)
        commit_group(run.layout.group(0, position), replace(group, statistics=cost))
    found = snapshot(run)
    assert (found.iterations.groups_done, found.iterations.groups_planned) == (2, 32)
    assert found.throughput.sampling == pytest.approx((100 + 200 + 2 * 50) / 4.0)


def test_what_comes_next_is_timed_by_the_measured_iterations(run: CannedRun) -> None:
    trained(run, 5)  # of 500 seconds each
    assert [one.what for one in snapshot(run).upcoming] == [f"nothing, until {run.layout.again} continues the run"]
    assert snapshot(run).expected_end is None
    limit = run.plan.job(TRAINER).resources.time_limit_minutes * 60
    run.submitted(trainer="12", evaluation="13", inference="14")
    run.queue(f"12|PENDING|{2_000_000_000}|Resources|")
    found = snapshot(run)
    assert [one.at for one in found.upcoming if one.what.startswith(TRAINER)] == [2_000_000_000 - limit]
    assert found.expected_end is None, "nothing runs"
    server = f"14_0|RUNNING|{int(time.time()) + 999}|None|node8"
    run.queue(f"12|RUNNING|{int(time.time()) + 900}|None|node7", "13_0|PENDING|N/A|Dependency|", server)
    run.task(TRAINER, TaskState.RUNNING, attempt="12.0")
    published = time.time() - 100
    run.events(TRAINER, "12.0", STARTED, {"kind": "published", "version": 5, "time": published})
    found = snapshot(run)
    assert (found.iterations.seconds, found.expected_end) == (500.0, pytest.approx(published + 15 * 500))
    times = {one.what.split()[0]: one.at for one in found.upcoming}
    assert times["iteration"] == pytest.approx(published + 500)
    assert times[TRAINER] == pytest.approx(time.time() + 900, abs=5)
    assert times[EVALUATION] == pytest.approx(published + 15 * 500)
    moments = [one.at or float("inf") for one in found.upcoming]
    assert moments == sorted(moments)


def test_metrics_that_are_written_again_are_read_again(run: CannedRun) -> None:
    (metrics,) = trained(run, 1)
    reader = SnapshotReader.of(run.layout, run.plan)
    assert snapshot(run, reader).measured[0].reward == pytest.approx(metrics.reward_mean)
    metrics.model_copy(update={"reward_mean": 0.75}).write(run.layout.metrics(0))
    os.utime(run.layout.metrics(0), (1.0, 1.0))
    assert snapshot(run, reader).measured[0].reward == 0.75


def test_status_of_5000_tasks_takes_less_than_two_seconds_and_two_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds of the processor: other tests share the machine."""
    large = many_tasks(tmp_path, monkeypatch)
    assert large.plan.tasks > 5000
    for option in ([], ["--json"]):
        began, asked = time.process_time(), len(large.calls)
        output = typed("status", large.layout.root, *option).output
        assert time.process_time() - began < 2.0
        assert sorted(large.calls[asked:]) == ["sacct", "squeue"]
    found = Snapshot.model_validate_json(output)
    assert sum(job.states.get(TaskState.DONE, 0) for job in found.jobs) > 3000
    assert len(found.tasks) == sum(task.alive for task in found.tasks) > 50


def test_a_failure_and_the_age_of_the_report_are_shown(run: CannedRun) -> None:
    run.task(TRAINER, TaskState.FAILED, message="the disk is full\n  next: buy one")
    assert "the disk is full\n  next: buy one" in status(run)
    trained(run, 1)
    run.layout.report.parent.mkdir(parents=True, exist_ok=True)
    run.layout.report.write_text("report")
    assert "mrt-hpc report" not in status(run)
    os.utime(run.layout.report, (1.0, 1.0))
    assert "mrt-hpc report" in status(run), "it is older than the newest results"


def test_a_controller_that_does_not_answer_does_not_hold_back_what_the_files_hold(run: CannedRun) -> None:
    run.submitted(trainer="12")
    for command in ("squeue", "sacct"):
        run.command(command, "exec sleep 60")
    run.task(TRAINER, TaskState.RETRYING, message="its own words", failures=1)
    began = time.monotonic()
    shown = status(run)
    assert time.monotonic() - began < 30.0
    assert all(fact in shown for fact in ("Slurm", "its own words", "0/20"))
    assert "Slurm" in snapshot(run).unreached


def test_a_job_that_slurm_has_forgotten_is_known_by_its_files(run: CannedRun) -> None:
    run.submitted(trainer="12")
    run.command("squeue", "echo 'Invalid job id specified' >&2; exit 1")
    run.command("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    run.task(TRAINER, TaskState.RUNNING, attempt="12.0")
    assert "1 lost" in status(run)
    run.done(TRAINER)
    shown = status(run)
    assert "1 done" in shown and "unknown" not in shown
    assert slurm_queue.queue_states(["12"])["12"].has_ended


def picture(layout: RunLayout, width: int) -> str:
    """The view on a terminal of this width, which it fits; without line breaks."""
    reader = SnapshotReader.of(layout, read_plan(layout.plan))
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(view(reader.read(look_at_queues(layout, 3.0)), width))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    return " ".join(text.split())


@pytest.mark.parametrize("width", [100, 60])
def test_a_run_fits_the_terminal_with_all_that_is_known(run: CannedRun, finished: RunLayout, width: int) -> None:
    assert "step000012" in picture(finished, width)
    run.submitted(trainer="12", inference="13")
    ends = int(time.time()) + 3700
    run.queue(
        f"12|RUNNING|{ends}|None|node1",
        *(f"13_{n}|RUNNING|{ends}|None|node{n + 2}" for n in range(5)),
        *(f"13_{n}|PENDING|N/A|QOSMaxJobsPerUserLimit|" for n in range(5, 8)),
    )
    for index in range(5):
        run.task(INFERENCE, TaskState.RUNNING, index, attempt=f"13_{index}.0")
    run.task(TRAINER, TaskState.RETRYING, attempt="12.0", message="the disk is on fire\n  next: water", failures=1)
    shown = picture(run.layout, width)
    facts = ("running", "5 running", "QOSMaxJobsPerUserLimit", "+2", f"{TRAINER}[0] retrying: the disk is on fire")
    assert [fact for fact in (*facts, "0 of 32 groups") if fact not in shown] == []
    assert "1:01 h" in shown
    lines = status(run, columns=width).splitlines()
    assert max(len(line) for line in lines if str(run.layout.root)[:20] not in line) <= width
    assert EVALUATION in [line.strip() for line in lines] or width > 60, "no name is cut off"


def test_without_a_terminal_each_change_is_a_line(run: CannedRun, capsys: pytest.CaptureFixture[str]) -> None:
    run.submitted(inference="13")
    run.queue("13_0|RUNNING|1|None|node2", "13_1|RUNNING|1|None|node3")
    run.task(TRAINER, TaskState.FAILED, message="no")
    with LineDisplay(run.layout, lambda: look_at_queues(run.layout, 3.0)) as display:
        display.look()
        display.look()
        run.queue()
        run.done()
    lines = [line.partition("] ")[2].split("; ") for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["iterations done 0/20", "evaluations 0/2", "running inference x2", "1 FAILED"],
        ["iterations done 0/20", "evaluations 0/2", "nothing runs"],
    ]


def test_a_line_has_the_reward_of_the_iteration_that_it_counts(run: CannedRun) -> None:
    for iteration, reward in enumerate((0.25, 0.75)):
        IterationMetrics(iteration=iteration, reward_mean=reward, tokens_per_rollout=1.0).write(
            run.layout.metrics(iteration)
        )
    publish_some(run.layout, 0, 1)
    assert one_line(snapshot(run)).startswith("iterations done 1/20; reward 0.25; ")
    publish_some(run.layout, 2, 3)
    assert one_line(snapshot(run)).startswith("iterations done 2/20; reward 0.75; "), "version 3 has no figures yet"


def test_the_live_view_ends_with_the_run_and_says_what_to_type(run: CannedRun) -> None:
    run.done()
    printed = on_a_terminal(["status", run.layout.root, "--watch"], here=run.layout.root.parent, columns=100)[0].text
    assert "finished" in printed
    assert f"next: mrt-hpc report {run.layout.root}" in " ".join(printed.split())


def look(run: CannedRun) -> tuple[set[tuple[str, int]], str]:
    found = RunLook.load_records(run.layout, run.plan, look_at_queues(run.layout, 3.0))
    return {*found.running_tasks}, found.state.value


def beat(run: CannedRun, attempt: str, job: str = TRAINER) -> None:
    write_json(run.layout.heart(job, 0), {"attempt": attempt, "beat": 1})


def test_the_records_of_tasks_decide_where_nothing_is_queued(run: CannedRun) -> None:
    assert look(run) == (set(), "stopped")
    run.submitted(trainer="12")
    run.task(TRAINER, TaskState.RUNNING, attempt="12.0")
    assert look(run) == (set(), "stopped"), "Slurm has lost the attempt"
    run.task(TRAINER, TaskState.FAILED, message="no")
    assert look(run) == (set(), "failed")
    run.submitted(evaluation="14")
    run.queue("14_0|RUNNING|1|None|node1")
    assert look(run) == ({(EVALUATION, 0)}, "running")
    run.queue()
    run.done()
    assert look(run) == (set(), "finished")


def test_the_queue_decides_for_submitted_jobs_in_two_calls(run: CannedRun) -> None:
    run.submitted(trainer="12", report="13")
    for number, (state, *lines) in enumerate((
        ("running", "12|RUNNING|1|None|node1"),
        ("queued", "12|PENDING|N/A|Priority|"),
        ("queued", "12|PENDING|N/A|SomethingNew|"),
        ("waiting", "12|PENDING|N/A|Dependency|"),
        ("waiting", "12|PENDING|N/A|JobHeldUser|"),
        ("stopped", "12|FAILED|1|NonZeroExitCode|"),
        ("queued", "12|PENDING|N/A|Resources|", "13|PENDING|N/A|Dependency|"),
    ), start=1):  # fmt: skip
        run.queue(*lines)
        assert look(run)[1] == state
        assert sorted(run.calls) == [*["sacct"] * number, *["squeue"] * number]


def test_where_the_queue_was_not_reached_the_hearts_decide(run: CannedRun) -> None:
    run.submitted(trainer="12")
    run.unreached()
    assert look(run)[1] == "queued", "it may be queued"
    run.task(TRAINER, TaskState.RUNNING, attempt="12.0")
    beat(run, "12.0")
    assert look(run)[1] == "running"
    beat(run, "11.0")
    assert look(run)[0] == set(), "that is the heart of another attempt"


def test_the_process_that_runs_the_plan_decides(run: CannedRun) -> None:
    run.task(INFERENCE, TaskState.RUNNING, attempt="ab")
    beat(run, "ab", INFERENCE)
    run.claim(os.getpid())
    assert look(run) == ({(INFERENCE, 0)}, "running")
    run.claim(os.getpid(), "0")
    assert look(run) == (set(), "stopped"), "it is dead, whatever is left"
    run.claim(12, "5", "elsewhere")
    assert look(run)[1] == "stopped"
    beat(run, "elsewhere:12:5", "local")
    assert look(run)[1] == "running"


@pytest.fixture
def several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[CannedRun]:
    """Three runs: one that runs on Slurm, one that waits there, and one that is finished."""
    names = ("running", "queued", "finished")
    runs = [canned_run(tmp_path, monkeypatch, f"name={name}", name=f"runs/{name}") for name in names]
    for number, run in enumerate(runs, 12):
        run.submitted(trainer=str(number))
    runs[2].done()
    lines = ("12|RUNNING|1|None|node1", "13|PENDING|N/A|Priority|")
    runs[0].prints(*(f"{line}|{run.marks(line)}" for line, run in zip(lines, runs, strict=False)))
    monkeypatch.chdir(tmp_path)
    return runs


def listed(*arguments: object) -> dict[str, dict[str, Any]]:
    return {run["name"]: run for run in json.loads(typed("runs", *arguments, "--json").output)}


def test_runs_have_states_from_one_question_to_the_queue(several: list[CannedRun], tmp_path: Path) -> None:
    found = listed(tmp_path)
    assert {name: run["state"] for name, run in found.items()} == {name: name for name in found}
    (kind, planned, size) = (found["running"][key] for key in ("kind", "iterations_planned", "bytes"))
    assert (kind, planned, size) == ("mrt_online", 20, None)
    assert sorted(several[0].calls) == ["sacct", "squeue"]
    several[1].queue()
    several[1].task(TRAINER, TaskState.FAILED, message="no")
    for at, run in ((10.0, several[1]), (20.0, several[0])):
        run.events(TRAINER, "a", {"kind": "checkpoint", "time": at})
    found = listed()
    assert [*found] == ["running", "queued", "finished"], "the newest event comes first"
    assert (found["queued"]["state"], found["running"]["newest_event_kind"]) == ("failed", "checkpoint")


def test_an_evaluation_is_listed_with_its_suite_and_a_damaged_run_with_the_reason(
    several: list[CannedRun], tmp_path: Path
) -> None:
    SyntheticEvaluation(tmp_path / "alone").write()
    (found,) = listed(tmp_path / "alone").values()
    assert (found["kind"], found["iterations_planned"]) == ("suite small_world", 0)
    several[0].layout.plan.write_text("{")
    several[2].layout.recipe_lock.write_text("a: [")
    found = listed()
    assert found["running"]["state"] is None
    assert "plan" in found["running"]["trouble"]
    assert (found["queued"]["state"], found["finished"]["kind"]) == ("queued", "mrt_online")
    assert "damaged" in typed("runs").output


def test_the_size_counts_blocks_on_disk_once(several: list[CannedRun]) -> None:
    before = listed("--size")
    data = several[0].layout.root / "large"
    data.write_bytes(b"x" * 1_000_000)
    os.link(data, several[0].layout.root / "the same")
    more = {name: run["bytes"] - before[name]["bytes"] for name, run in listed("--size").items()}
    assert 1_000_000 <= more["running"] < 1_100_000
