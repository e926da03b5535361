"""Whether runs go on, what ``mrt-hpc status`` and ``mrt-hpc runs`` show of them on terminals of several widths, and
that all that they and ``explain``, ``cancel`` and ``plan`` say is true at that moment.
"""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from basics import EVALUATION, INFERENCE, QUICKSTART, TRAINER
from canned_queue import PREPARE, CannedRun, canned_run, submitted_run
from commands import typed
from many_tasks import many_tasks
from rich.console import Console
from run_of import publish_some, task_of
from samples import rollout, sampled
from synthetic_run import SyntheticEvaluation, made_up_metrics
from tables import tables
from terminals import on_a_terminal

from mrt_hpc.analysis.measures import IterationMetrics
from mrt_hpc.attempt.entry import _say_started
from mrt_hpc.backends.queued_jobs import look_at_queues
from mrt_hpc.backends.slurm import queue as slurm_queue
from mrt_hpc.cli.run_view import LineDisplay, one_line, view
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.groups import commit_group
from mrt_hpc.run.leases import BEATS_A_LIMIT, Heart
from mrt_hpc.run.task_state import TaskState, read_task
from mrt_hpc.view.run_look import RunLook
from mrt_hpc.view.snapshot import Snapshot
from mrt_hpc.view.snapshot_reader import SnapshotReader

STARTED = {"kind": "task_started", "job": TRAINER, "task": 0, "rank": 0, "attempt": "12.0", "world_size": 1}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    return canned_run(tmp_path, monkeypatch, "resources.inference.tasks=8")


def snapshot(run: CannedRun, reader: SnapshotReader | None = None) -> Snapshot:
    reader = reader or SnapshotReader.of(run.layout, run.plan)
    return reader.read(look_at_queues(run.layout, 3.0))


def trained(run: CannedRun, iterations: int) -> list[IterationMetrics]:
    """Write the metrics of finished iterations, and the weights version that the last one published."""
    random = np.random.default_rng(0)
    written = [made_up_metrics(iteration, 20, random) for iteration in range(iterations)]
    for metrics in written:
        metrics.write(run.layout.metrics(metrics.iteration))
    run.layout.weights_version(iterations).mkdir(parents=True, exist_ok=True)
    return written


def said(run: CannedRun, *words: str, columns: int | None = None) -> str:
    return typed(*words, run.layout.root, columns=columns).output.replace(str(run.layout.root), "RUN")


def test_the_weights_of_a_server_are_those_that_its_latest_attempt_loaded_last(run: CannedRun) -> None:
    """The latest attempt is the one of its name, whatever the clock of its node says."""
    run.task(INFERENCE, TaskState.STOPPED, attempt="13_0.1")
    reader = SnapshotReader.of(run.layout, run.plan)
    started = {**STARTED, "job": INFERENCE}
    for attempt, begun, version in (("13_0.0", 9000.0, 9), ("13_0.1", 5000.0, 2)):
        events = [started, {"kind": "server_started", "version": version}]
        run.events(INFERENCE, attempt, *events, begun=begun)
        assert snapshot(run, reader).tasks[0].weights_version == version
    run.events(INFERENCE, "13_0.1", *events, {"kind": "weights_loaded", "version": 3}, begun=5000.0)
    assert snapshot(run, reader).tasks[0].weights_version == 3


def test_throughput_follows_from_the_last_groups_until_an_iteration_has_ended(run: CannedRun) -> None:
    for position in (1, 2):
        group = sampled(rollout("p", 0))
        seconds = {"generation": 2.0 * position}
        cost = replace(group.statistics, rollout_tokens=100 * position, branch_tokens=50, seconds=seconds)
        commit_group(run.layout.group(0, position), replace(group, statistics=cost))
    found = snapshot(run)
    assert (found.iterations.groups_done, found.iterations.groups_planned) == (2, 32)
    assert found.throughput.sampling == pytest.approx((100 + 200 + 2 * 50) / 4.0)


def test_what_comes_next_is_timed_by_the_measured_iterations(run: CannedRun) -> None:
    trained(run, 5)  # of 500 seconds each
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


def test_status_of_5000_tasks_takes_two_seconds_and_two_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert "the disk is full\n  next: buy one" in said(run, "status")
    trained(run, 1)
    run.layout.report.write_text("report")
    assert "mrt-hpc report" not in said(run, "status")
    os.utime(run.layout.report, (1.0, 1.0))
    assert "mrt-hpc report" in said(run, "status"), "it is older than the newest results"


def test_a_job_that_slurm_has_forgotten_is_known_by_its_files(run: CannedRun) -> None:
    run.submitted(trainer="12")
    run.command("squeue", "echo 'Invalid job id specified' >&2; exit 1")
    run.command("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    run.task(TRAINER, TaskState.RUNNING, attempt="12.0")
    assert "1 lost" in said(run, "status")
    run.done(TRAINER)
    shown = said(run, "status")
    assert "1 done" in shown and "unknown" not in shown
    assert slurm_queue.queue_states(["12"])["12"].has_ended


@pytest.mark.parametrize("width", [100, 60])
def test_a_run_fits_the_terminal_with_all_that_is_known(run: CannedRun, width: int) -> None:
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
    live = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    live.print(view(snapshot(run), width))
    shown = live.export_text()
    assert max(map(len, shown.splitlines())) <= width and "…" not in shown
    facts = ("5 running", "QOSMaxJobsPerUserLimit", "+2", f"{TRAINER}[0] retrying: the disk is on fire", "1:01 h")
    assert [fact for fact in (*facts, "0 of 32 groups") if fact not in " ".join(shown.split())] == []
    lines = said(run, "status", columns=width).splitlines()
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
    assert [line.partition("] ")[2].split("; ") for line in capsys.readouterr().out.splitlines()] == [
        ["iterations done 0/20", "evaluations 0/2", "running inference x2", "1 FAILED"],
        ["iterations done 0/20", "evaluations 0/2", "nothing runs"],
    ]


def test_a_line_has_the_reward_of_the_iteration_that_it_counts(run: CannedRun) -> None:
    for iteration, reward in enumerate((0.25, 0.75)):
        metrics = IterationMetrics(iteration=iteration, reward_mean=reward, tokens_per_rollout=1.0)
        metrics.write(run.layout.metrics(iteration))
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
    for number, (state, *lines) in enumerate(tables("status")["queue"], start=1):
        run.queue(*lines)
        assert (look(run)[1], sorted(run.calls)) == (state, [*["sacct"] * number, *["squeue"] * number])


def test_where_the_queue_was_not_reached_the_hearts_decide(run: CannedRun) -> None:
    run.submitted(trainer="12")
    run.unreached()
    assert look(run)[1] == "queued", "it may be queued"
    assert "Slurm" in snapshot(run).unreached
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
    assert found["running"].items() >= {"kind": "mrt_online", "iterations_planned": 20, "bytes": None}.items()
    assert sorted(several[0].calls) == ["sacct", "squeue"]
    several[1].queue()
    several[1].task(TRAINER, TaskState.FAILED, message="no")
    for at, run in ((10.0, several[1]), (20.0, several[0])):
        run.events(TRAINER, "a", {"kind": "checkpoint", "time": at})
    found = listed()
    assert [*found] == ["running", "queued", "finished"], "the newest event comes first"
    assert (found["queued"]["state"], found["running"]["newest_event_kind"]) == ("failed", "checkpoint")


def test_an_evaluation_is_listed_with_its_suite_and_damage_with_its_reason(
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


# -- what is said is true at that moment, or it is not said


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    return submitted_run(tmp_path, monkeypatch)


def trains(sent: CannedRun, *, since: float) -> None:
    """The trainer and a server run, and one iteration of 500 s has ended at a time."""
    trained(sent, 1)
    sent.queue("13|RUNNING|1|None|node1", "12_0|RUNNING|1|None|node2")
    sent.task(TRAINER, TaskState.RUNNING, attempt="13.0")
    sent.task(INFERENCE, TaskState.RUNNING, attempt="12_0.0")
    sent.events(TRAINER, "13.0", {**STARTED, "attempt": "13.0"}, {"kind": "published", "version": 1, "time": since})


def beats_until(sent: CannedRun, ago: float) -> None:
    """A real heart of the trainer, which has beaten last some seconds ago."""
    heart = Heart(sent.layout.heart(TRAINER, 0), "13.0", limit_s=BEATS_A_LIMIT * 12.0)
    heart.beat()
    os.utime(heart.path, (time.time() - ago,) * 2)


def test_a_heart_that_stands_still_is_said_with_its_age(sent: CannedRun) -> None:
    trains(sent, since=time.time() - 100)
    beats_until(sent, 20)
    assert "sign of life" not in said(sent, "explain"), "the next beat may just be late"
    beats_until(sent, 35)
    text = said(sent, "explain")
    assert f"{TRAINER} (job 13) runs on node1" in text and "no sign of life for 35 s" in text
    assert "no sign of life" in said(sent, "status")
    assert snapshot(sent).expected_end is None, "it may be lost"


def test_nothing_is_forecast_of_what_stands_still_or_has_failed(sent: CannedRun) -> None:
    trains(sent, since=time.time() - 900)
    found = snapshot(sent)
    assert found.expected_end is not None
    waits = next(event for event in found.upcoming if event.what.startswith("report"))
    assert (waits.at, waits.what) == (None, f"report may start, after {TRAINER}, {EVALUATION}")
    trains(sent, since=time.time() - 1100)  # an iteration took 500 s
    found = snapshot(sent)
    assert found.expected_end is None
    assert [event.at for event in found.upcoming if event.what.startswith("iteration")] == [None]
    trains(sent, since=time.time() - 100)
    sent.queue("13|RUNNING|1|None|node1")
    sent.task(INFERENCE, TaskState.WAITING)
    assert snapshot(sent).expected_end is None, "no server runs"
    sent.task(TRAINER, TaskState.FAILED, attempt="13.0", message="no memory")
    sent.queue("12_0|RUNNING|1|None|node2")
    sent.task(INFERENCE, TaskState.RUNNING, attempt="12_0.0")
    found = snapshot(sent)
    assert found.expected_end is None
    told = [event.what for event in found.upcoming]
    assert not any("may start" in what or what.startswith("iteration") for what in told)
    assert any(what.startswith("no iteration ends, until mrt-hpc submit") for what in told)


def job_line(sent: CannedRun, job: str) -> str:
    return next(line for line in said(sent, "status").splitlines() if line.startswith(f"{job} "))


def test_a_task_is_counted_once_whatever_its_record_and_the_queue_say(sent: CannedRun) -> None:
    sent.queue("13|RUNNING|1|None|node1")
    assert "1 starting" in job_line(sent, TRAINER) and "waiting" not in job_line(sent, TRAINER)
    sent.task(TRAINER, TaskState.RETRYING, attempt="13.0", failures=1, message="no memory")
    sent.queue("13|RUNNING|1|None|node1", "12_0|RUNNING|1|None|node2")
    assert "1 retrying and running in the queue " in job_line(sent, TRAINER)
    sent.queue()
    sent.accounts("13|CANCELLED|0:0|node1|60", "12_0|FAILED|1:0|node2|60")
    assert "1 retrying and cancelled in the queue " in job_line(sent, TRAINER)
    assert "  1 failed in the queue, 3 waiting " in job_line(sent, INFERENCE)
    sent.task(INFERENCE, TaskState.FAILED, attempt="12_0.0", message="no memory")
    assert "  1 failed, 3 waiting " in job_line(sent, INFERENCE)


def test_a_task_that_slurm_has_started_again_is_not_at_work_before_it_says_so(sent: CannedRun) -> None:
    trains(sent, since=time.time() - 100)
    assert snapshot(sent).expected_end is not None
    sent.task(INFERENCE, TaskState.GAVE_BACK, attempt="12_0.0", message="gave the nodes back: preempted")
    ends = int(time.time()) + 9  # a preempted job's end is near
    sent.queue("13|RUNNING|1|None|node1", f"12_0|RUNNING|{ends}|None|node2")
    found = snapshot(sent)
    assert found.expected_end is None
    assert not any("limit" in event.what for event in found.upcoming if event.at == ends)
    text = said(sent, "explain")
    assert "returned its nodes (preempted); the queue says that it runs on node2" in text
    assert f"waits for {INFERENCE}, of which no task is at work" in text


def test_an_attempt_is_not_lost_while_the_event_of_its_end_is_written(sent: CannedRun) -> None:
    trains(sent, since=time.time() - 100)
    sent.task(TRAINER, TaskState.GAVE_BACK, attempt="13.0", message="gave the nodes back: preempted")
    assert "recorded no end" not in said(sent, "status")
    sent.task(TRAINER, TaskState.RUNNING, attempt="13.1")
    assert "recorded no end" in said(sent, "status")


def test_a_start_in_the_past_is_no_forecast(sent: CannedRun) -> None:
    """The time limit of a queued job was lowered, so its end says another start than the plan's limit."""
    limit = 60 * sent.plan.job(TRAINER).resources.time_limit_minutes
    for begins_in, is_said in ((-900, False), (900, True)):
        sent.queue(f"13|PENDING|{int(time.time()) + begins_in + limit}|BeginTime|")
        assert ("starts, as the queue expects" in said(sent, "status")) is is_said


def test_a_job_neither_waits_for_itself_nor_was_queued_again_as_it_begins_later(sent: CannedRun) -> None:
    sent.queue("15|PENDING|N/A|BeginTime|")
    sentence = typed("explain", sent.layout.root, "report").output.splitlines()[0]
    assert "earliest time" in sentence and "again" not in sentence
    (sent.layout.root / "tasks" / PREPARE / "00000.json").unlink()
    sent.queue("11|PENDING|N/A|Dependency|")
    (line,) = [line for line in said(sent, "explain").splitlines() if "wait for these" in line]
    assert PREPARE not in line


def test_a_finished_run_has_nothing_to_cancel(sent: CannedRun) -> None:
    for command in ("scontrol", "scancel"):
        sent.command(command, "exit 0")
    sent.done()
    text = said(sent, "cancel")
    assert "nothing to cancel" in text and "continues" not in text and "cancelled" not in text


def test_an_attempt_after_failed_ones_says_why_they_failed(sent: CannedRun) -> None:
    failed = "the time limit came\n  next:     raise X"
    sent.task(TRAINER, TaskState.RETRYING, attempt="12.9", failures=2, message=failed)
    _say_started(task_of(sent.layout, TRAINER), None, None)
    assert read_task(sent.layout, TRAINER, 0).state is TaskState.RUNNING
    sent.queue("13|RUNNING|1|None|node1", "12_0|RUNNING|1|None|node2")
    text = typed("explain", sent.layout.root, TRAINER).output
    assert "after 2 attempt(s) that failed (the time limit came)" in text and "raise X" in text
    assert "the time limit came" in said(sent, "status")


def test_a_time_limit_that_is_too_short_for_a_try_is_said_by_plan(tmp_path: Path) -> None:
    profile = tmp_path / "lab.yaml"
    profile.write_text("type: slurm\nname: lab\n")
    words = ("plan", QUICKSTART, "--site", profile)
    assert "leaves a try" not in typed(*words).output
    text = typed(*words, "--set", "resources.trainer.time_limit_minutes=2").output
    assert f"{TRAINER}: the time limit of 2 minute(s) leaves a try 30 s" in " ".join(text.split())


def test_a_full_disk_is_seen_where_no_log_can_say_it(sent: CannedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    (sent.layout.root / "tasks" / PREPARE / "00000.json").unlink()
    sent.queue("11|RUNNING|1|None|node1")
    sent.log(f"{PREPARE}/11_0_log.err", "")
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda _: os.statvfs_result((4096, 4096, 100, 0, 0, 100, 50, 50, 0, 255)))
        for command in ("explain", "status"):
            assert "the disk is full" in said(sent, command)
    assert "the disk is full" not in said(sent, "explain")
