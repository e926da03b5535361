"""A whole shrunk run under a seeded random schedule of faults, audited afterwards.

    python tests/chaos/chaos_run.py --seed 3 --faults 10

Faults strike at random moments between two events that stay (a group, a checkpoint, a weights version), so that they
hit every phase. As root the run lies on a small filesystem of its own, which can be filled.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chaos_auditor import Audit, audit
from chaos_faults import FaultKind, Target, strike

from mrt_hpc.run.events import PROGRESS, read_events
from mrt_hpc.run.layout import RunLayout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[2]
ITERATIONS = 6
SHRUNK = (
    "model.warm_start_steps=30",
    "sampling.problems_per_iteration=6",
    "sampling.rollouts_per_problem=4",
    f"schedule.iterations={ITERATIONS}",
    f"schedule.iterations_per_job={ITERATIONS // 2}",
    "serving.stall_limit_s=10.0",
    "evaluation.benchmarks.0.problems.problems=8",
    "resources.inference.tasks=2",
    "resources.inference.cpus=1",
    "resources.trainer.cpus=1",
    "resources.evaluation.max_parallel=1",
    "resilience.heartbeat_limit_s=5.0",
)
DISK_MIB = 256
RUN_DEADLINE_S = 2400.0
LONGEST_QUIET_S = 300.0
"""Without progress: a run that hangs is a violation."""


@dataclass(frozen=True)
class Strike:
    """One fault, and how long it took until something was done again that stays."""

    kind: FaultKind
    hit: str
    time: float
    recovered_s: float | None


@dataclass(frozen=True)
class Outcome:
    """One run under faults."""

    seed: int
    strikes: list[Strike]
    audit: Audit
    exit_code: int
    seconds: float


@contextlib.contextmanager
def small_disk(mib: int) -> Iterator[Path | None]:
    """A small filesystem for the length of the block; None where it cannot be mounted."""
    with tempfile.TemporaryDirectory(prefix="mrt-hpc-chaos-") as folder:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", folder], capture_output=True, check=False
        )
        try:
            yield Path(folder) if mounted.returncode == 0 else None
        finally:
            if mounted.returncode == 0:
                subprocess.run(["umount", "--lazy", folder], check=True)


def start(run: Path, changes: Sequence[str]) -> subprocess.Popen[bytes]:
    """`mrt-hpc submit`, as the leader of a process group."""
    sets = [word for change in (*SHRUNK, *changes) for word in ("--set", change)]
    command = [
        sys.executable,
        "-m",
        "mrt_hpc.cli.main",
        "submit",
        str(ROOT / "recipes/quickstart.yaml"),
        "--run",
        str(run),
    ]
    return subprocess.Popen(
        [*command, *sets],
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )


def run_under_faults(
    seed: int, count: int, kinds: Sequence[FaultKind], folder: Path, disk: Path | None, changes: Sequence[str] = ()
) -> Outcome:
    """A run from its beginning to its end, with ``count`` faults on the way, each kind before any comes twice."""
    rng, layout = random.Random(seed), RunLayout(folder / "run")
    began = time.monotonic()
    process, strikes, schedule = start(layout.root, changes), [], _schedule(rng, kinds, count)
    try:
        while time.monotonic() - began < RUN_DEADLINE_S:
            if process.poll() is not None:
                if not _was_killed(process, strikes):
                    break
                process = start(layout.root, changes)
            if schedule and _moment_has_come(rng, layout, process):
                struck = time.time()
                hit = strike(schedule[0], Target(layout, process.pid, disk), rng)
                if hit is not None:
                    strikes.append((schedule.pop(0), hit, struck))
                else:
                    schedule.append(schedule.pop(0))
            time.sleep(0.05)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    code = process.wait()
    recovered = [Strike(kind, hit, at, recovery(layout, at)) for kind, hit, at in strikes]
    return Outcome(seed, recovered, audit(layout.root), code, time.monotonic() - began)


def _schedule(rng: random.Random, kinds: Sequence[FaultKind], count: int) -> list[FaultKind]:
    rounds = [rng.sample(list(kinds), len(kinds)) for _ in range(count // len(kinds) + 1)]
    return [kind for kinds_once in rounds for kind in kinds_once][:count]


def _was_killed(process: subprocess.Popen[bytes], strikes: Sequence[tuple[FaultKind, str, float]]) -> bool:
    return process.returncode == -signal.SIGKILL and bool(strikes) and strikes[-1][0] is FaultKind.KILL_ALL


def _moment_has_come(rng: random.Random, layout: RunLayout, process: subprocess.Popen[bytes]) -> bool:
    """After a random number of things done that stay, and a random part of a second; False when the run ends."""
    wanted, end = _progress(layout) + rng.randint(1, 6), time.monotonic() + LONGEST_QUIET_S
    while _progress(layout) < wanted:
        if process.poll() is not None or time.monotonic() > end:
            return False
        time.sleep(0.1)
    time.sleep(rng.uniform(0.0, 0.5))  # to fall anywhere in what comes next
    return process.poll() is None


def _progress(layout: RunLayout) -> int:
    return sum(event["kind"] in PROGRESS for event in read_events(layout.events))


def recovery(layout: RunLayout, at: float) -> float | None:
    """Seconds from a fault to the next thing done that stays."""
    later = [e["time"] for e in read_events(layout.events) if e["kind"] in PROGRESS and e["time"] > at]
    return min(later) - at if later else None


def table(outcomes: Sequence[Outcome]) -> str:
    """A line a run, and a line a kind of fault."""
    lines = ["seed  faults  exit  minutes  steps redone  discarded  set aside  violations"]
    for o in outcomes:
        a = o.audit
        lines.append(
            f"{o.seed:4d}  {len(o.strikes):6d}  {o.exit_code:4d}  {o.seconds / 60:7.1f}  {a.steps_redone:12d}  "
            f"{a.groups_discarded:9d}  {a.set_aside:9d}  {len(a.violations):10d}"
        )
    lines += ["", "seconds to work again: median  worst   faults  kind"]
    for kind in FaultKind:
        times = sorted(
            s.recovered_s for o in outcomes for s in o.strikes if s.kind is kind and s.recovered_s is not None
        )
        if times:
            lines.append(f"{'':22s} {times[len(times) // 2]:6.1f} {times[-1]:6.1f} {len(times):8d}  {kind}")
    return "\n".join(lines)


def main() -> int:
    """Run the seeds one after another and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--faults", type=int, default=10)
    parser.add_argument("--kinds", nargs="+", choices=[k.name for k in FaultKind], default=[k.name for k in FaultKind])
    parser.add_argument("--keep", type=Path, help="where to copy run directories with violations")
    arguments = parser.parse_args()
    outcomes = []
    for seed in arguments.seed:
        with small_disk(DISK_MIB) as disk, tempfile.TemporaryDirectory() as folder:
            kinds = [FaultKind[name] for name in arguments.kinds]
            outcomes.append(run_under_faults(seed, arguments.faults, kinds, disk or Path(folder), disk))
            if arguments.keep and (outcomes[-1].audit.violations or outcomes[-1].exit_code):
                subprocess.run(["cp", "-r", (disk or folder), str(arguments.keep / f"seed{seed}")], check=True)
        print(table(outcomes), flush=True)
        for violation in outcomes[-1].audit.violations:
            print(f"  {violation}")
        for s in outcomes[-1].strikes:
            print(f"  {s.kind}: {s.hit}, {'no work after it' if s.recovered_s is None else f'{s.recovered_s:.1f} s'}")
    return any(o.audit.violations or o.exit_code for o in outcomes)


if __name__ == "__main__":
    sys.exit(main())
