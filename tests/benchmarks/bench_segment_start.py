"""The start of a segment: from the start of an inference job to its first token, by phase.

The job runs in a run directory that the first job has prepared, and is ended at its first token. It is measured with
vLLM's engine forked from its API server and, in turn, spawned as vLLM does by default.

    python tests/benchmarks/bench_segment_start.py --repeats 3 --output tests/benchmarks/results/segment-start
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from mrt_hpc.attempt.placement import Placement
from mrt_hpc.plan.jobs import Role, read_plan
from mrt_hpc.run.events import EventKind, read_events
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.waiting import wait_until

ROOT = Path(__file__).parents[2]
SHRUNK = (
    "schedule.iterations=1",
    "schedule.iterations_per_job=1",
    "evaluation.benchmarks=[]",
)
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

    imports: float
    """From the start of the process to the first event of the task: the role and what it imports."""
    before_server: float
    """To the start of the server: weights verified, tokenizer read, graders started."""
    server: float
    """To the server's answer."""
    first_token: float
    """To the first token."""

    @property
    def whole(self) -> float:
        """From the start of the process to the first token."""
        return sum(astuple(self))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, help="the folder for table.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = table(measured(Path(folder), arguments.repeats))
    print(text)
    if arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "table.md").write_text(text)


def measured(folder: Path, repeats: int) -> dict[str, list[Start]]:
    """The starts of each kind, measured in turn."""
    patches = folder / "spawning"
    patches.mkdir()
    (patches / "sitecustomize.py").write_text(SPAWNING)
    run, template = folder / "run", folder / "template"
    prepare(run)
    run.rename(template)
    found: dict[str, list[Start]] = {"spawned": [], "forked": []}
    for repeat in range(repeats):
        for kind in list(found)[:: -1 if repeat % 2 else 1]:
            shutil.copytree(template, run)
            found[kind].append(start_of(run, f"{kind}-{repeat}", [patches] if kind == "spawned" else []))
            shutil.rmtree(run)
            print(kind, found[kind][-1], f"whole={found[kind][-1].whole:.1f}", file=sys.stderr, flush=True)
    return found


def prepare(run: Path) -> None:
    """Make a run directory whose first job has ended, and in which nothing is sampled."""
    command = [sys.executable, "-m", "mrt_hpc", "submit", str(ROOT / "recipes/quickstart.yaml"), "--run", str(run)]
    command += ["--site", "local", *(word for change in SHRUNK for word in ("--set", change))]
    layout = RunLayout(run)

    def has_begun() -> bool:
        started = read_events(layout.events, EventKind.TASK_STARTED) if layout.events.is_dir() else []
        return any(event["job"].endswith(Role.INFERENCE) for event in started)

    with subprocess.Popen(command, cwd=ROOT, env=environment([]), stdout=subprocess.DEVNULL) as process:
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
        command, cwd=ROOT, env=environment(patches) | placed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
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


def environment(patches: list[Path]) -> dict[str, str]:
    """The environment of a process of the project, with modules that change how its servers start."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [*patches, ROOT]))}


def still_running(process: subprocess.Popen[bytes]) -> None:
    """Raise an error when a process has ended that is waited for."""
    if process.poll() is not None:
        raise RuntimeError(f"{process.args!r} ended with {process.returncode}")


def table(found: dict[str, list[Start]]) -> str:
    """Seconds of each phase, best and median, and what a fork takes of the time of a spawn."""
    names = {field.name: field.name.replace("_", " ") for field in fields(Start)} | {"whole": "**whole**"}
    rows = ["| s | spawned: best, median | forked: best, median | forked / spawned, medians |", "|---|---:|---:|---:|"]
    for name, words in names.items():
        spawned, forked = ([getattr(start, name) for start in found[kind]] for kind in ("spawned", "forked"))
        a, b = statistics.median(spawned), statistics.median(forked)
        rows.append(f"| {words} | {min(spawned):.1f}, {a:.1f} | {min(forked):.1f}, {b:.1f} | {b / a:.2f} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
