"""``mrt-hpc explain``: in a sentence why a run or a task waits or has failed, and what to type next."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from canned_queue import EVALUATION, INFERENCE, PREPARE, TRAINER, CannedRun, canned_run
from click.testing import CliRunner
from many_tasks import many_tasks

from mrt_hpc.attempt.end import STOPPED
from mrt_hpc.cli.main import main
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.retries import PAUSED, SHORTAGES, Shortage
from mrt_hpc.run.task_state import TaskState

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = Path(__file__).parents[1] / "data"
TRACEBACK = """starting
Traceback (most recent call last):
  File "a.py", line 3, in train
    raise ValueError("loss is not finite")
ValueError: loss is not finite
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    """A run whose first job is done and whose others are submitted."""
    run = canned_run(tmp_path, monkeypatch, "resources.inference.tasks=4")
    run.submitted(prepare="11", inference="12", trainer="13", evaluation="14", report="15")
    run.done(PREPARE)
    return run


def explain(run: CannedRun, *task: str) -> str:
    """What is printed, with the run directory as RUN."""
    result = CliRunner().invoke(main, ["explain", str(run.layout.root), *task])
    assert result.exit_code == 0, result.output
    return result.output.replace(str(run.layout.root), "RUN")


def first(text: str) -> tuple[str, str]:
    """The sentence, and what to type next."""
    sentence, command, *_ = text.splitlines()
    assert command.startswith("  next:     ")
    return sentence, command.removeprefix("  next:     ")


@pytest.mark.parametrize(
    ("reason", "sentence", "command"),
    [
        (
            "Priority",
            "The run is queued: segment-000.trainer (job 13) is queued, because other jobs in its partition have a "
            "higher priority (Priority).",
            "nothing: it starts by itself; `sprio -j 13` shows its priority, and `squeue --start -j 13` when Slurm "
            "expects it",
        ),
        (
            "JobHeldUser",
            "The run waits: segment-000.trainer (job 13) is queued, because a user has held it (JobHeldUser).",
            "scontrol release 13",
        ),
        (
            "SomethingNew",
            "The run is queued: segment-000.trainer (job 13) is queued, for the reason SomethingNew.",
            "nothing: it starts by itself",
        ),
    ],
)
def test_the_reason_of_the_queue_is_told_in_a_sentence(
    run: CannedRun, reason: str, sentence: str, command: str
) -> None:
    run.done(INFERENCE, EVALUATION, "report")
    run.queue(f"13|PENDING|N/A|{reason}|")
    assert first(explain(run)) == (sentence, command)


def test_a_job_that_can_never_start_comes_before_one_that_waits_for_its_turn(run: CannedRun) -> None:
    run.queue(*(f"12_{n}|PENDING|N/A|Priority|" for n in range(4)), "13|PENDING|N/A|PartitionTimeLimit|")
    text = explain(run)
    sentence, command = first(text)
    assert "segment-000.trainer (job 13) is queued, because its time limit is longer" in sentence
    assert "mrt-hpc cancel RUN" in command
    assert "segment-000.inference (4 of 4 tasks) is queued" in text


def test_a_dependency_names_the_job_and_what_it_does(run: CannedRun) -> None:
    run.queue("13|RUNNING|1|None|node1", "14_0|PENDING|N/A|Dependency|", "12_0|RUNNING|1|None|node2")
    run.task(TRAINER, TaskState.RUNNING, attempt="13.0")
    sentence, command = first(explain(run, f"{EVALUATION}[0]"))
    assert sentence == f"{EVALUATION}[0] (job 14_0) is queued; it waits for {TRAINER}, which runs."
    assert command == "nothing: it starts by itself"


def test_a_job_that_waits_for_a_failed_one_leads_to_it(run: CannedRun) -> None:
    run.task(TRAINER, TaskState.FAILED, message="no")
    run.queue("14_0|PENDING|N/A|Dependency|")
    sentence, command = first(explain(run, f"{EVALUATION}[0]"))
    assert f"it waits for {TRAINER}, which has failed" in sentence
    assert command == f"mrt-hpc explain RUN {TRAINER}"


def test_a_job_that_waits_for_jobs_of_another_run_says_how_to_find_them(run: CannedRun) -> None:
    run.queue("13|PENDING|N/A|Dependency|")
    sentence, command = first(explain(run, TRAINER))
    assert sentence == f"{TRAINER} (job 13) is queued; it waits for other jobs."
    assert command == "nothing: it starts by itself; `scontrol show job 13` names these jobs"


def test_a_failure_is_told_with_its_reason_and_the_last_traceback(run: CannedRun) -> None:
    run.task(TRAINER, TaskState.FAILED, message="ValueError: loss is not finite\n  next:     lower the learning rate")
    run.task(INFERENCE, TaskState.FAILED, 1, message="it has failed", awaited=(TRAINER,))
    run.log(f"{TRAINER}/13_0_log.out", TRACEBACK)
    text = explain(run)
    sentence, command = first(text)
    assert sentence == f"The run has failed: {TRAINER} has failed: ValueError: loss is not finite."
    assert command.startswith("lower the learning rate; then the same submit command again")
    assert 'raise ValueError("loss is not finite")\nValueError: loss is not finite' in text
    assert f"{INFERENCE}[1] has failed because it waits for {TRAINER}." in text


def test_the_first_failure_is_told_first(run: CannedRun) -> None:
    run.task(TRAINER, TaskState.FAILED, message="the first")
    run.task(INFERENCE, TaskState.FAILED, message="the second")
    assert "the first" in first(explain(run))[0]


@pytest.mark.parametrize(
    ("state", "fields", "words"),
    [
        (
            TaskState.GAVE_BACK,
            {"message": f"gave the nodes back: {INFERENCE} has not run for 10.0 minutes\n  next:     nothing"},
            f"returned its nodes ({INFERENCE} has not run for 10.0 minutes) and is queued again",
        ),
        (
            TaskState.STOPPED,
            {"message": STOPPED},
            "was stopped from outside (preempted, cancelled or interrupted) and is",
        ),
        (
            TaskState.RETRYING,
            {"message": "no memory", "failures": 2},
            "has failed 2 time(s) in a row (no memory) and is",
        ),
        (
            TaskState.RUNNING,
            {"attempt": "13.0"},
            "was lost without a record (its node failed, or it was killed) and is",
        ),
    ],
)
def test_a_task_that_is_queued_again_says_why(
    run: CannedRun, state: TaskState, fields: dict[str, object], words: str
) -> None:
    run.task(TRAINER, state, **fields)
    run.queue("13|PENDING|N/A|BeginTime|")
    sentence, _ = first(explain(run, TRAINER))
    assert words in sentence
    assert "because Slurm starts a job that was queued again only after a pause (BeginTime)" in sentence


def test_a_task_that_the_queue_lost_says_how_it_ended(run: CannedRun) -> None:
    run.task(TRAINER, TaskState.RUNNING, attempt="13.0")
    run.command("sacct", "echo '13|OUT_OF_MEMORY|0:125|node1|60'")
    sentence, command = first(explain(run, TRAINER))
    assert sentence == f"{TRAINER} was lost: it recorded no end, and it does not run (the queue says: out of memory)."
    assert command.startswith("the same submit command again")


def test_a_trainer_without_inference_waits_for_it(run: CannedRun) -> None:
    run.queue("13|RUNNING|1|None|node1", *(f"12_{n}|PENDING|N/A|Resources|" for n in range(4)))
    run.task(TRAINER, TaskState.RUNNING, attempt="13.0")
    sentence, command = first(explain(run, TRAINER))
    assert sentence.startswith(f"{TRAINER} (job 13) runs on node1 since ")
    assert sentence.endswith(f"and waits for {INFERENCE}, of which no task runs.")
    assert command == f"mrt-hpc explain RUN {INFERENCE}"


@pytest.mark.parametrize("lacking", SHORTAGES, ids=lambda one: one.shown_by)
def test_a_task_that_waits_for_room_on_the_disk_says_so(run: CannedRun, lacking: Shortage) -> None:
    run.queue("13|RUNNING|1|None|node1")
    run.task(TRAINER, TaskState.RUNNING, attempt="13.0")
    run.log(f"{TRAINER}/13_0_log.err", f"working\n2026 WARNING {PAUSED}: {lacking.what} (no space). The task waits\n")
    sentence, command = first(explain(run))
    assert sentence.startswith("The run is paused: ")
    assert lacking.what in sentence
    assert f"`{lacking.shown_by} RUN`" in command
    assert lacking.what in CliRunner().invoke(main, ["status", str(run.layout.root)]).output
    run.log(f"{TRAINER}/13_0_log.err", f"{PAUSED}: {lacking.what}\nworking again\n")
    assert lacking.what not in explain(run)


def test_set_aside_files_and_attempts_are_told(run: CannedRun) -> None:
    started = {"kind": "task_started", "job": TRAINER, "task": 0, "rank": 0, "attempt": "13.0", "world_size": 1}
    aside = {"kind": "set_aside", "path": "weights/v000003", "reason": "checksum"}
    ended = {"kind": "task_ended", "job": TRAINER, "task": 0, "rank": 0, "outcome": "stopped"}
    run.events(TRAINER, "13.0", started, aside, ended)
    run.task(TRAINER, TaskState.STOPPED, message=STOPPED)
    assert "1 file(s) or folder(s) were set aside" in explain(run)
    text = explain(run, TRAINER)
    assert "1 attempt(s) have begun." in text
    assert "set aside (path: weights/v000003; reason: checksum)" in text
    assert "attempt ended: stopped" in text


def test_where_the_queue_is_not_reached_the_files_speak(run: CannedRun) -> None:
    run.command("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    text = explain(run)
    assert "was submitted as job 12, and the queue was not reached" in text
    assert "The queue was not reached (Slurm: squeue refused" in text


def test_a_finished_run_and_a_done_task(run: CannedRun) -> None:
    run.done()
    sentence, command = first(explain(run))
    assert sentence.startswith("The run is finished: all ")
    assert command == "mrt-hpc report RUN"
    assert first(explain(run, PREPARE))[0].startswith("prepare is done since ")


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("segment-000.traner", ["segment-000.trainer is the nearest"]),
        ("segment-000.inference[9]", ["an index from 0 to 3"]),
        ("segment-000.inference[x]", ["no such job", "segment-000.inference is the nearest"]),
    ],
)
def test_a_task_that_is_not_there_is_refused(run: CannedRun, task: str, words: list[str]) -> None:
    result = CliRunner().invoke(main, ["explain", str(run.layout.root), task])
    assert result.exit_code == 2
    for word in words:
        assert word in result.stderr


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        yield started


def test_a_local_run_says_what_its_tasks_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: subprocess.Popen[bytes]
) -> None:
    run = canned_run(tmp_path, monkeypatch)
    started = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
    claim = {"pid": process.pid, "started": started, "host": socket.gethostname()}
    (run.layout.jobs / "local-00001.json").write_text(json.dumps(claim))
    run.task(PREPARE, TaskState.RUNNING, attempt="ab")
    assert first(explain(run, PREPARE))[0].startswith("prepare runs since ")
    assert first(explain(run, TRAINER))[0] == f"{TRAINER} waits for prepare, which runs."
    run.done(PREPARE)
    run.task(INFERENCE, TaskState.RUNNING, attempt="cd")
    assert "waits for free cores, memory or GPUs of the machine" in first(explain(run, TRAINER))[0]


def test_a_run_that_was_killed_here_needs_the_same_command(tmp_path: Path) -> None:
    """A real run of an earlier version, killed after the first of two iterations."""
    layout = tmp_path / "begun"
    layout.mkdir()
    shutil.unpack_archive(DATA / "begun_run.tar.xz", layout)
    result = CliRunner().invoke(main, ["explain", str(layout)])
    assert result.exit_code == 0, result.output
    sentence, command = first(result.output)
    assert sentence == (
        "The run has stopped: segment-000.inference was stopped from outside (preempted, cancelled or interrupted), "
        "and is not queued."
    )
    assert command.startswith("the same submit command again")


def test_a_task_of_another_machine_runs_while_its_heart_is_there(run: CannedRun) -> None:
    run.command("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    run.task(TRAINER, TaskState.RUNNING, attempt="13.0")
    write_json(run.layout.heart(TRAINER, 0), {"attempt": "13.0", "beat": 1})
    assert f"{TRAINER} runs since" in explain(run, TRAINER)


def test_5000_tasks_are_explained_in_a_few_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = many_tasks(tmp_path, Path(__file__).parents[2] / "recipes" / "quickstart.yaml")
    monkeypatch.setenv("PATH", f"{large.commands}:{os.environ['PATH']}")
    result = CliRunner().invoke(main, ["explain", str(large.layout.root)])
    assert result.exit_code == 0
    assert len(result.output.splitlines()) < 20
    assert "(608 of 640 tasks) is queued" in result.output
    assert sorted((large.commands / "calls").read_text().split()) == ["sacct", "squeue"]
