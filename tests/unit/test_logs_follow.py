"""``mrt-hpc logs --follow``: all logs of a run, with their tasks, until the run has ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from canned_queue import EVALUATION, INFERENCE, TRAINER, CannedRun, canned_run
from click.testing import CliRunner

from mrt_hpc.cli.main import main
from mrt_hpc.run.task_state import TaskState
from mrt_hpc.view.logs import AT_ONCE, LogFollower, last_traceback, log_files, traceback_in

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = Path(__file__).parents[1] / "data"
SERVER = f"{INFERENCE}.00003.12_3.0.server.log"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    return canned_run(tmp_path, monkeypatch, "resources.inference.tasks=4")


def follow(run: CannedRun, *arguments: str) -> str:
    result = CliRunner().invoke(main, ["logs", str(run.layout.root), "--follow", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (f"{TRAINER}.00000.6806a73c.rank1.log", (TRAINER, 0, "6806a73c", "rank1")),
        (SERVER, (INFERENCE, 3, "12_3.0", "server")),
        (f"{EVALUATION}-1.00012.77.10.server.log", (f"{EVALUATION}-1", 12, "77.10", "server")),
        (f"{TRAINER}/12_0_log.out", (TRAINER, 0, None, "rank0")),
        (f"{TRAINER}/12_1_log.err", (TRAINER, 0, None, "rank1.err")),
        (f"{INFERENCE}/12_3_0_log.out", (INFERENCE, 3, None, "rank0")),
    ],
)
def test_the_name_of_a_log_tells_its_task(run: CannedRun, name: str, told: tuple[object, ...]) -> None:
    run.log(name, "text\n")
    run.log(f"{TRAINER}/12_submission.sh", "#!/bin/sh\n")
    (log,) = log_files(run.layout)
    assert (log.job, log.index, log.attempt, log.what) == told


def test_logs_of_one_role_are_those_of_its_jobs(run: CannedRun) -> None:
    for name in (
        f"{TRAINER}.00000.a.rank0.log",
        SERVER,
        f"{INFERENCE}-1.00000.a.rank0.log",
        "prepare.00000.a.rank0.log",
    ):
        run.log(name, "text\n")
    assert {log.job for log in log_files(run.layout, "inference")} == {INFERENCE, f"{INFERENCE}-1"}
    assert {log.job for log in log_files(run.layout, "prepare")} == {"prepare"}


def test_every_line_names_task_attempt_and_process(run: CannedRun) -> None:
    run.log(SERVER, "first\nsecond\n")
    run.log(f"{TRAINER}/13_0_log.out", "third\n")
    run.task(TRAINER, TaskState.STOPPED, attempt="13.2")
    text = follow(run)
    assert f"{INFERENCE}[3] 12_3.0 server | first\n" in text
    assert f"{INFERENCE}[3] 12_3.0 server | second\n" in text
    assert f"{TRAINER}[0] 13.2 rank0 | third\n" in text
    assert "the run has stopped; next: mrt-hpc explain" in text


def test_only_the_last_lines_of_each_log_are_shown_at_the_begin(run: CannedRun) -> None:
    run.log(SERVER, "".join(f"line {n}\n" for n in range(100)))
    text = follow(run, "inference", "-n", "2")
    assert [line.partition("| ")[2] for line in text.splitlines() if "| " in line] == ["line 98", "line 99"]


def test_a_last_line_without_its_end_is_shown_when_the_run_has_ended(run: CannedRun) -> None:
    run.log(SERVER, "first\nKilled")
    assert f"{INFERENCE}[3] 12_3.0 server | Killed\n" in follow(run)


def test_what_has_failed_comes_first_with_its_traceback(run: CannedRun) -> None:
    run.task(TRAINER, TaskState.FAILED, message="ValueError: no")
    told = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\nValueError: no\n'
    run.log(f"{TRAINER}.00000.a.rank0.log", f"begin\n{told}")
    text = follow(run)
    assert text.startswith(f"{TRAINER} has failed: ValueError: no.\n")
    assert text.index("ValueError: no") < text.index(told) < text.index("rank0 | begin")
    assert not follow(run, "inference").startswith(TRAINER), "it is of another role"


def test_the_follower_returns_whole_lines_once(run: CannedRun) -> None:
    path = run.log(SERVER, "old\n")
    follower = LogFollower(run.layout, None, 30)

    def new() -> list[str]:
        return [line.text for line in follower.new_lines()]

    assert new() == ["old"]
    with path.open("a") as stream:
        stream.write("one\ntw")
    assert new() == ["one"]
    with path.open("a") as stream:
        stream.write("o\n")
    run.log(f"{TRAINER}.00000.b.rank0.log", "from a new attempt\n")
    assert sorted(new()) == ["from a new attempt", "two"]
    path.write_text("new\n")
    assert new() == ["new"], "the file was replaced"
    assert new() == []


def test_a_log_that_grows_fast_is_read_in_parts(run: CannedRun) -> None:
    path = run.log(SERVER, "")
    follower = LogFollower(run.layout, None, 30)
    assert list(follower.new_lines()) == []
    lines = AT_ONCE // 10 + 5
    path.write_text("".join(f"{n:09d}\n" for n in range(lines)))
    first = [line.text for line in follower.new_lines()]
    assert len(first) < lines
    rest = [line.text for line in follower.last_lines()]
    assert [int(text) for text in (*first, *rest)] == list(range(lines))


def test_a_log_may_be_removed_at_any_time(run: CannedRun) -> None:
    path = run.log(SERVER, "old\n")
    follower = LogFollower(run.layout, None, 30)
    (log,) = log_files(run.layout)
    path.unlink()
    assert last_traceback([log]) is None
    run.log(SERVER, "old\n")
    assert [line.text for line in follower.new_lines()] == ["old"]
    path.unlink()
    assert list(follower.new_lines()) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("all is well\n", None),
        (
            "Traceback (most recent call last):\n  File a\nOldError: 1\nTraceback (most recent call last):\n  File b\n"
            "NewError: 2\n2026-11-24 10:00:00 node INFO next\n",
            "Traceback (most recent call last):\n  File b\nNewError: 2",
        ),
        (
            "(Engine pid=1) Traceback (most recent call last):\n(Engine pid=1)   File b\n(Engine pid=1) NewError: 2\n",
            "Traceback (most recent call last):\n  File b\nNewError: 2",
        ),
        (
            "Traceback (most recent call last):\n  File b\nUserError: what\n  where:    here\n  next:     go\n\nmore\n",
            "Traceback (most recent call last):\n  File b\nUserError: what\n  where:    here\n  next:     go",
        ),
        ("Traceback (most recent call last):\n  File b\n", "Traceback (most recent call last):\n  File b"),
    ],
)
def test_the_last_traceback_of_a_text(text: str, told: str | None) -> None:
    assert traceback_in(text) == told


def test_the_log_that_was_written_last_has_the_traceback(run: CannedRun) -> None:
    for number, name in enumerate((SERVER, f"{INFERENCE}.00003.12_3.1.server.log")):
        path = run.log(name, f"Traceback (most recent call last):\n  File x\nError{number}\n")
        os.utime(path, (1000.0 + number, 1000.0 + number))
    found = last_traceback(list(log_files(run.layout)))
    assert found is not None
    assert found[0].attempt == "12_3.1"
    assert found[1].endswith("Error1")


def following(run: CannedRun) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mrt_hpc.cli.main", "logs", str(run.layout.root), "--follow"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=take_interrupts
    )


def take_interrupts() -> None:
    """Take SIGINT as from a terminal; a shell lets what it starts in the background ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def until(process: subprocess.Popen[str], wanted: Callable[[str], bool]) -> str:
    """The lines that a process prints, up to one that is wanted."""
    assert process.stdout is not None
    printed = ""
    for line in process.stdout:
        printed += line
        if wanted(line):
            return printed
    raise AssertionError(printed)


def test_lines_come_while_the_run_goes_on_and_it_ends_with_the_run(run: CannedRun) -> None:
    run.submitted(trainer="13")
    run.queue("13|RUNNING|1|None|node1")
    run.task(TRAINER, TaskState.RUNNING, attempt="13.0")
    path = run.log(f"{TRAINER}/13_0_log.out", "one\n")
    with following(run) as process:
        until(process, lambda line: line == f"{TRAINER}[0] 13.0 rank0 | one\n")
        with path.open("a") as stream:
            stream.write("two\n")
        until(process, lambda line: line == f"{TRAINER}[0] 13.0 rank0 | two\n")
        run.done()
        until(process, lambda line: "the run is finished; next: mrt-hpc report" in line)
        assert process.wait(30) == 0


def test_ctrl_c_ends_the_reading_and_not_the_run(run: CannedRun) -> None:
    run.submitted(trainer="13")
    run.queue("13|RUNNING|1|None|node1")
    run.log(f"{TRAINER}/13_0_log.out", "one\n")
    with following(run) as process:
        until(process, lambda line: "| one" in line)
        process.send_signal(signal.SIGINT)
        until(process, lambda line: "the run was not touched" in line)
        assert process.wait(30) == 0


def test_a_real_run_that_was_killed_is_followed_to_its_end(tmp_path: Path) -> None:
    layout = tmp_path / "begun"
    layout.mkdir()
    shutil.unpack_archive(DATA / "begun_run.tar.xz", layout)
    began = time.monotonic()
    result = CliRunner().invoke(main, ["logs", str(layout), "--follow"])
    assert result.exit_code == 0
    assert "the run has stopped; next: mrt-hpc explain" in result.output
    assert time.monotonic() - began < 20
