"""``mrt-hpc logs --follow``: all logs of a run, with their tasks, until the run has ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from basics import INFERENCE, TRAINER
from canned_queue import CannedRun, canned_run
from commands import typed

from mrt_hpc.run.task_state import TaskState
from mrt_hpc.view.logs import AT_ONCE, LogFollower, last_traceback, log_files, traceback_in

SERVER, RANK = f"{INFERENCE}.00003.12_3.0.server.log", f"{TRAINER}.00000.a.rank0.log"
TRACEBACK = "Traceback (most recent call last):\n  File b\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    return canned_run(tmp_path, monkeypatch, "resources.inference.tasks=4")


def follow(run: CannedRun, *arguments: str) -> str:
    return typed("logs", run.layout.root, "--follow", *arguments).output


def test_the_name_of_a_log_holds_its_task_and_logs_of_one_role_are_those_of_its_jobs(run: CannedRun) -> None:
    names = {
        f"{TRAINER}.00000.6806a73c.rank1.log": (TRAINER, 0, "6806a73c", "rank1"),
        SERVER: (INFERENCE, 3, "12_3.0", "server"),
        f"{INFERENCE}-1.00012.77.10.server.log": (f"{INFERENCE}-1", 12, "77.10", "server"),
        f"{TRAINER}/12_1_log.err": (TRAINER, 0, None, "rank1.err"),
        f"{INFERENCE}/12_3_0_log.out": (INFERENCE, 3, None, "rank0"),
    }
    for name in names:
        run.log(name, "text\n")
    run.log(f"{TRAINER}/12_submission.sh", "#!/bin/sh\n")
    found = {log.path: (log.job, log.index, log.attempt, log.what) for log in log_files(run.layout)}
    assert found == {run.layout.logs / name: task for name, task in names.items()}
    assert {log.job for log in log_files(run.layout, "inference")} == {INFERENCE, f"{INFERENCE}-1"}


def test_every_line_names_task_attempt_and_process(run: CannedRun) -> None:
    run.log(SERVER, "first\nKilled")
    run.log(f"{TRAINER}/13_0_log.out", "third\n")
    run.task(TRAINER, TaskState.STOPPED, attempt="13.2")
    *lines, last = follow(run).splitlines()
    server = f"{INFERENCE}[3] 12_3.0 server |"
    assert sorted(lines) == [f"{server} Killed", f"{server} first", f"{TRAINER}[0] 13.2 rank0 | third"]
    assert last.startswith("the run has stopped; next: mrt-hpc explain")


def test_what_has_failed_comes_first_with_its_traceback_and_then_the_last_lines(run: CannedRun) -> None:
    run.task(TRAINER, TaskState.FAILED, message="ValueError: no")
    run.log(RANK, f"begin\n{TRACEBACK}ValueError: no\n")
    text = follow(run)
    assert text.startswith(f"{TRAINER} has failed")
    assert text.index("ValueError: no") < text.index(TRACEBACK) < text.index("rank0 | begin")
    run.log(SERVER, "".join(f"line {n}\n" for n in range(100)))
    text = follow(run, "inference", "-n", "2")
    assert not text.startswith(TRAINER), "it is of another role"
    assert [line.partition("| ")[2] for line in text.splitlines() if "| " in line] == ["line 98", "line 99"]


def test_the_follower_returns_whole_lines_once(run: CannedRun) -> None:
    path = run.log(SERVER, "old\n")
    follower = LogFollower(run.layout, None, 30)

    def new() -> list[str]:
        return [line.text for line in follower.new_lines()]

    assert new() == ["old"]
    with path.open("a") as stream:
        stream.write("one\ntw")
        stream.flush()
        assert new() == ["one"]
        stream.write("o\n")
    run.log(f"{TRAINER}.00000.b.rank0.log", "from a new attempt\n")
    assert sorted(new()) == ["from a new attempt", "two"]
    path.write_text("new\n")
    assert new() == ["new"], "the file was replaced"
    path.unlink()
    assert new() == [], "a log may be removed at any time"


def test_a_log_that_grows_fast_is_read_in_parts(run: CannedRun) -> None:
    path = run.log(SERVER, "")
    follower = LogFollower(run.layout, None, 30)
    assert list(follower.new_lines()) == []
    lines = AT_ONCE // 10 + 5
    path.write_text("".join(f"{n:09d}\n" for n in range(lines)))
    first, rest = ([line.text for line in read()] for read in (follower.new_lines, follower.last_lines))
    assert len(first) < lines
    assert [int(text) for text in (*first, *rest)] == list(range(lines))


def test_the_last_traceback_of_a_text() -> None:
    user_error = f"{TRACEBACK}UserError: what\n  where:    here\n  next:     go"
    for text, found in (
        ("all is well\n", None),
        (f"{TRACEBACK}OldError: 1\n{TRACEBACK}NewError: 2\n2026 INFO\n", f"{TRACEBACK}NewError: 2"),
        ("".join(f"(Engine pid=1) {line}\n" for line in [*TRACEBACK.splitlines(), "E: 2"]), f"{TRACEBACK}E: 2"),
        (f"{user_error}\n\nmore\n", user_error),
        (TRACEBACK, TRACEBACK.rstrip()),  # which was cut off
    ):
        assert traceback_in(text) == found


def test_the_log_that_was_written_last_has_the_traceback(run: CannedRun) -> None:
    for number, name in enumerate((SERVER, f"{INFERENCE}.00003.12_3.1.server.log")):
        path = run.log(name, f"{TRACEBACK}Error{number}\n")
        os.utime(path, (1000.0 + number, 1000.0 + number))
    logs = list(log_files(run.layout))
    found = last_traceback(logs)
    assert found is not None and (found[0].attempt, found[1].splitlines()[-1]) == ("12_3.1", "Error1")
    path.unlink()
    older = last_traceback(logs)
    assert older is not None and older[1].endswith("Error0"), "one that was removed is passed over"


@pytest.mark.parametrize("interrupted", [False, True])
def test_lines_come_while_the_run_goes_on_until_it_ends_or_the_reader_stops(run: CannedRun, interrupted: bool) -> None:
    run.submitted(trainer="13")
    run.queue("13|RUNNING|1|None|node1")
    run.task(TRAINER, TaskState.RUNNING, attempt="13.0")
    path = run.log(f"{TRAINER}/13_0_log.out", "one\n")
    command = [sys.executable, "-m", "mrt_hpc", "logs", str(run.layout.root), "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        until(process, f"{TRAINER}[0] 13.0 rank0 | one\n")
        if interrupted:
            process.send_signal(signal.SIGINT)
            until(process, "the run was not touched")
        else:
            with path.open("a") as stream:
                stream.write("two\n")
            until(process, "| two\n")
            run.done()
            until(process, "next: mrt-hpc report")
        assert process.wait(30) == 0


def until(process: subprocess.Popen[str], wanted: str) -> None:
    """Wait for a line with this text."""
    assert process.stdout is not None
    printed = ""
    while wanted not in printed:
        printed += (line := process.stdout.readline())
        assert line, printed
