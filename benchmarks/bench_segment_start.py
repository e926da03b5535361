"""The start of a segment: from the start of an inference job to its first token, by phase, with vLLM's engine forked
from its API server and, in turn, spawned as vLLM does by default. The first job has prepared the run directory.

    python benchmarks/bench_segment_start.py --repeats 3 --output benchmarks/results/segment-start
"""

from __future__ import annotations

import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarking import ROOT, environment, options, sets, table, turns, written
from run_of import read_events

from mrt_hpc.attempt.placement import Placement
from mrt_hpc.plan.jobs import Role, read_plan
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

SHRUNK = {"schedule.iterations": 1, "schedule.iterations_per_job": 1, "evaluation.benchmarks": "[]"}
DEADLINE_S = 600
SPAWNING = """
import sys
if "mrt_hpc.inference.server_main" in sys.orig_argv:
    from mrt_hpc.inference import vllm_on_cpu
    vllm_on_cpu.fork_engines = lambda: None
"""
"""A module that Python imports first; it leaves vLLM's way of starting its engine as it is."""


@dataclass(frozen=True)
class Start:
    imports: float  # from the start of the process to the first event of the task: the role and what it imports
    before_server: float  # until the server is given its model: weights verified, tokenizer read, graders started
    server: float  # to the server's answer; its process has loaded vLLM meanwhile
    first_token: float  # to the first token

    @property
    def whole(self) -> float:
        return sum(astuple(self))


def main() -> None:
    given = options(__doc__, repeats=3, output=Path)
    with tempfile.TemporaryDirectory() as folder:
        written(report(measured(Path(folder), given.repeats)), given.output)


def measured(folder: Path, repeats: int) -> dict[str, list[Start]]:
    patches = folder / "spawning"
    patches.mkdir()
    (patches / "sitecustomize.py").write_text(SPAWNING)
    run, template = folder / "run", folder / "template"
    prepare(run)
    run.rename(template)

    def start(*first: Path) -> Start:
        shutil.copytree(template, run)
        found = start_of(run, f"attempt-{time.time()}", first)
        shutil.rmtree(run)
        return found

    return turns({"spawned": lambda: start(patches), "forked": start}, repeats)


def prepare(run: Path) -> None:
    """Make a run directory whose first job has ended, and in which nothing is sampled."""
    command = [sys.executable, "-m", "mrt_hpc", "submit", str(ROOT / "recipes/quickstart.yaml"), "--run", str(run)]
    command += ["--site", "local", *sets(SHRUNK)]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL) as process:
        await_event(RunLayout(run), EventKind.TASK_STARTED, process, Role.INFERENCE)
        process.send_signal(signal.SIGINT)


def start_of(run: Path, attempt: str, first: Sequence[Path]) -> Start:
    """Run the inference task until its first token, and end it; modules of ``first`` are imported before all others."""
    layout = RunLayout(run)
    job = next(job.name for job in read_plan(layout.plan).jobs if job.role is Role.INFERENCE)
    command = [sys.executable, "-m", "mrt_hpc.attempt.entry", str(run), job, "0"]
    placed = Placement(rank=0, world_size=1, local_rank=0, attempt=attempt).environment()
    before, began = len(read_events(layout.events)), time.time()
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(*first) | placed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            await_event(layout, EventKind.FIRST_TOKEN, process)
        finally:
            process.terminate()
    events = {event["kind"]: event for event in read_events(layout.events)[before:]}
    answers, token = events[EventKind.SERVER_STARTED], events[EventKind.FIRST_TOKEN]["time"]
    task, asked = events[EventKind.TASK_STARTED]["time"], answers["time"] - answers["seconds"]
    return Start(task - began, asked - task, answers["seconds"], token - answers["time"])


def await_event(layout: RunLayout, kind: EventKind, process: subprocess.Popen[bytes], role: str = "") -> None:
    """Wait for an event, of a role where one is named, as long as a process lives."""

    def has_come() -> bool:
        events = read_events(layout.events, kind) if layout.events.is_dir() else []
        return any(event.get("job", "").endswith(role) for event in events)

    def still_running() -> None:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")

    wait_until(has_come, reason=kind, deadline_s=DEADLINE_S, check=still_running)


def report(found: dict[str, list[Start]]) -> str:
    """Seconds of each phase, best and median, and what a fork takes of the time of a spawn."""
    rows = []
    for name in (*(field.name for field in fields(Start)), "whole"):
        spawned, forked = ([getattr(start, name) for start in found[kind]] for kind in ("spawned", "forked"))
        a, b = statistics.median(spawned), statistics.median(forked)
        words = name.replace("_", " ") if name != "whole" else "**whole**"
        rows.append((words, f"{min(spawned):.1f}, {a:.1f}", f"{min(forked):.1f}, {b:.1f}", f"{b / a:.2f}"))
    head = ("s", "spawned: best, median", "forked: best, median", "forked / spawned, medians")
    return "\n".join(table(head, rows))


if __name__ == "__main__":
    main()
