"""A run as terminals of several widths show it, and the live view."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from canned_queue import INFERENCE, TRAINER, CannedRun, canned_run
from click.testing import CliRunner
from rich.console import Console
from synthetic_run import Shape, SyntheticRun

from mrt_hpc.backends.queued_jobs import look_at_queues
from mrt_hpc.cli.display import LineDisplay
from mrt_hpc.cli.main import main
from mrt_hpc.cli.run_view import duration, moment, sparkline, view
from mrt_hpc.plan.jobs import read_plan
from mrt_hpc.run.task_state import TaskState
from mrt_hpc.view.snapshot_reader import SnapshotReader

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.run.layout import RunLayout

WIDTHS = [100, 60]


def picture(layout: RunLayout, width: int) -> str:
    reader = SnapshotReader.of(layout, read_plan(layout.plan))
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(view(reader.read(look_at_queues(layout, 3.0)), width))
    return console.export_text()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    return canned_run(tmp_path, monkeypatch, "resources.inference.tasks=8")


@pytest.mark.parametrize("width", WIDTHS)
def test_a_run_with_everything_fits_the_terminal(tmp_path: Path, width: int) -> None:
    text = picture(SyntheticRun(tmp_path / "run", Shape(4, 2, problems=2, paragraphs=1)).write(), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    words = " ".join(text.split())
    for told in ("long-run (mrt_online)", "stopped", "reward", "progress", "tokens/s sampling 950", "aime24", "v4",
                 "resumed from a checkpoint", "checkpoint: step000012", "nothing, until the same submit"):  # fmt: skip
        assert told in words


@pytest.mark.parametrize("width", WIDTHS)
def test_a_run_at_work_shows_states_nodes_and_what_comes_next(run: CannedRun, width: int) -> None:
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
    text = picture(run.layout, width)
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    for told in ("running", "5 running", "QOSMaxJobsPerUserLimit", "+2", f"{TRAINER}[0] retrying: the disk is on fire"):
        assert told in words
    assert ("1:01 h" in words) == (width >= 80)
    assert "iteration 0 ends (0 of 32 groups are sampled)" in words


def test_a_run_without_a_terminal_is_shown_as_a_line_for_each_change(
    run: CannedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run.submitted(inference="13")
    run.queue("13_0|RUNNING|1|None|node2", "13_1|RUNNING|1|None|node3")
    run.task(TRAINER, TaskState.FAILED, message="no")
    with LineDisplay(run.layout, lambda: look_at_queues(run.layout, 3.0)) as display:
        display.look()
        display.look()
        run.queue()
        run.done()
    lines = [line.partition("] ")[2] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "iteration 0/20; evaluations 0/2; running inference x2; 1 FAILED",
        "iteration 0/20; evaluations 0/2; nothing runs",
    ]


def test_an_unreached_queue_is_told(run: CannedRun) -> None:
    run.submitted(trainer="12")
    run.command("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert "the queue was not reached (Slurm" in picture(run.layout, 100)


def test_a_task_that_was_lost_is_called_lost(run: CannedRun) -> None:
    run.submitted(trainer="12")
    run.task(TRAINER, TaskState.RUNNING, attempt="12.0")
    assert "1 lost" in picture(run.layout, 100)


@pytest.mark.parametrize(
    ("series", "width", "line"),
    [
        ([], 10, ""),
        ([1.0], 10, "▅"),
        ([2.0, 2.0], 10, "▅▅"),
        ([0, 1, 2, 3, 4, 5, 6, 7], 10, "▁▂▃▄▅▆▇█"),
        ([0, 0, 7, 7], 2, "▁█"),
        ([-1.0, 1.0, -1.0], 3, "▁█▁"),
        ([0, 1, 2, 3, 4], 2, "▁█"),
    ],
)
def test_a_sparkline(series: list[float], width: int, line: str) -> None:
    assert sparkline(series, width) == line


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (45, "45 s"), (500, "8:20 min"), (7500, "2:05 h"), (3 * 86400, "3.0 days")],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_moments_have_a_day_where_it_is_another() -> None:
    noon = time.mktime((2026, 3, 4, 12, 0, 0, 0, 0, -1))
    assert moment(noon + 5, noon) == "12:00:05"
    assert moment(noon + 7200, noon) == "14:00"
    assert moment(noon + 86400, noon) == "Thu 05 Mar 12:00"


def test_watch_needs_a_terminal(run: CannedRun) -> None:
    result = CliRunner().invoke(main, ["status", str(run.layout.root), "--watch"])
    assert result.exit_code == 2
    assert "--json" in result.stderr


def on_a_terminal(*command: str) -> str:
    """What a command prints to a terminal of 100 columns, until it ends."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "100", "LINES": "50", "TERM": "xterm"}
    with subprocess.Popen([sys.executable, "-m", "mrt_hpc.cli.main", *command], stdin=theirs, stdout=theirs,
                          stderr=theirs, env=environment, close_fds=True) as process:  # fmt: skip
        os.close(theirs)
        printed = b""
        while True:
            try:
                printed += os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
        assert process.wait(30) == 0, printed.decode()
    os.close(ours)
    return printed.decode()


def test_the_live_view_ends_with_the_run_and_says_what_to_type(run: CannedRun) -> None:
    run.done()
    printed = on_a_terminal("status", str(run.layout.root), "--watch")
    assert "finished" in printed
    assert f"next: mrt-hpc report {run.layout.root}" in " ".join(printed.split())
