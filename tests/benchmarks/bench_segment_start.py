"""The start of a segment: from the start of an inference job to its first token, by phase.

The job runs in a run directory that the first job has prepared, and is ended at its first token. It is measured with
vLLM's engine forked from its API server and, in turn, spawned as vLLM does by default.

    python tests/benchmarks/bench_segment_start.py --repeats 3 --output tests/benchmarks/results/segment-start
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

from benchmarking import ROOT, environment, in_turn, options, sets, table, written

from mrt_hpc.attempt.placement import Placement
from mrt_hpc.plan.jobs import Role, read_plan
from mrt_hpc.run.events import EventKind, read_events
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.waiting import wait_until

SHRUNK = {"schedule.iterations": 1, "schedule.iterations_per_job": 1, "evaluation.benchmarks": "[]"}
DEADLINE_S = 600
SPAWNING = """
import sys
if "mrt_hpc.inference.server_main" in sys.orig_argv:
    from mrt_hpc.inference import engine_process
    engine_process.fork_engines = lambda: None
"""
"""A module that Python imports first; it leaves vLLM's way of starting its engine as it is."""


@dataclass(frozen=True)
class Start:
    """Seconds of each phase."""

    imports: float  # from the start of the process to the first event of the task: the role and what it imports
    before_server: float  # to the start of the server: weights verified, tokenizer read, graders started
    server: float  # to the server's answer
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
    found: dict[str, list[Start]] = {"spawned": [], "forked": []}
    for repeat in range(repeats):
        for kind in in_turn(found, repeat):
            shutil.copytree(template, run)
            found[kind].append(start_of(run, f"{kind}-{repeat}", [patches] if kind == "spawned" else []))
            shutil.rmtree(run)
            print(kind, found[kind][-1], f"whole={found[kind][-1].whole:.1f}", file=sys.stderr, flush=True)
    return found


def prepare(run: Path) -> None:
    """Make a run directory whose first job has ended, and in which nothing is sampled."""
    command = [sys.executable, "-m", "mrt_hpc", "submit", str(ROOT / "recipes/quickstart.yaml"), "--run", str(run)]
    command += ["--site", "local", *sets(SHRUNK)]
    layout = RunLayout(run)

    def has_begun() -> bool:
        started = read_events(layout.events, EventKind.TASK_STARTED) if layout.events.is_dir() else []
        return any(event["job"].endswith(Role.INFERENCE) for event in started)

    with subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL) as process:
        wait_until(has_begun, reason="the first job", deadline_s=DEADLINE_S, check=lambda: still_running(process))
        process.send_signal(signal.SIGINT)


def start_of(run: Path, attempt: str, patches: list[Path]) -> Start:
    """Run the inference task until its first token, and end it."""
    layout = RunLayout(run)
    job = next(job.name for job in read_plan(layout.plan).jobs if job.role is Role.INFERENCE)
    command = [sys.executable, "-m", "mrt_hpc.attempt.entry", str(run), job, "0"]
    placed = Placement(rank=0, world_size=1, local_rank=0, attempt=attempt).environment()
    before, began = len(read_events(layout.events)), time.time()
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(*patches) | placed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            wait_until(
                lambda: bool(read_events(layout.events, EventKind.FIRST_TOKEN)),
                reason="the first token",
                deadline_s=DEADLINE_S,
                check=lambda: still_running(process),
            )
        finally:
            process.terminate()
    events = {event["kind"]: event for event in read_events(layout.events)[before:]}
    answers, token = events[EventKind.SERVER_STARTED], events[EventKind.FIRST_TOKEN]["time"]
    task, asked = events[EventKind.TASK_STARTED]["time"], answers["time"] - answers["seconds"]
    return Start(task - began, asked - task, answers["seconds"], token - answers["time"])


def still_running(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        raise RuntimeError(f"{process.args!r} ended with {process.returncode}")


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
