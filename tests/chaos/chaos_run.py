"""A whole shrunk run under a seeded random schedule of faults, audited afterwards.

    python tests/chaos/chaos_run.py --seed 3 --faults 10
    python tests/chaos/chaos_run.py --seed 4 --faults 10 --slurm partition        # or qos, plain, rules
    python tests/chaos/chaos_run.py --seed 9 --faults 5 --slurm partition --set resources.inference.nodes=2
    python tests/chaos/chaos_run.py --seed 1 --set schedule.weight_swap=keep --set schedule.max_staleness=1
    python tests/chaos/chaos_run.py --seed 4 --set schedule.coupling=colocated --set resources.inference.tasks=1

Faults strike at random moments between two events that stay (a group, a checkpoint), so that they hit every phase. As
root the run lies on a small filesystem of its own, which can be filled; with ``--slurm`` it runs on a one-host cluster
of its own. A plain cluster has no accounting and cancels what it preempts; one with rules is plain besides, and its
plugin writes comments, lets no job start again and shortens limits. On both the same command is typed once more where
jobs have left the queue before the run is done.
"""

import argparse
import contextlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("slurm", "support")]  # their cluster is used here

from collections.abc import Iterator, Sequence

from chaos_auditor import audit
from chaos_backends import LocalRun, Run, SlurmRun
from chaos_faults import FaultKind, possible, strike
from invariants import Audit
from run_of import read_events
from slurm_session import running_cluster

from mrt_hpc.run.events import PROGRESS, EventKind
from mrt_hpc.run.layout import RunLayout

DISK_MIB, RUN_DEADLINE_S = 256, 3000.0
LONGEST_QUIET_S = 300.0  # without progress: a run that hangs is a violation
CLUSTERS = {
    "partition": {"ONEHOST_PREEMPT": "partition", "ONEHOST_PREEMPT_SIGNAL": "1"},
    "qos": {"ONEHOST_PREEMPT": "qos", "ONEHOST_PREEMPT_SIGNAL": "0"},
    "plain": {"ONEHOST_SHAPE": "plain"},
    "rules": {"ONEHOST_SHAPE": "plain", "ONEHOST_RULES": "1"},
}

NEVER = {"plain": {FaultKind.KILL_ACCOUNTING}, "rules": {FaultKind.KILL_ACCOUNTING, FaultKind.REQUEUE}}
"""What cannot be done to them: there is no accounting, and nothing starts again."""


@dataclass(frozen=True)
class Strike:
    """One fault, when it was felt, and how long it took until something was done again that stays."""

    kind: FaultKind
    hit: str
    time: float  # in seconds since the epoch
    started_s: float | None = None  # to the next start of a task: what Slurm, or the local backend, takes
    recovered_s: float | None = None


@dataclass(frozen=True)
class Outcome:
    seed: int
    where: str
    strikes: list[Strike]
    audit: Audit
    exit_code: int
    seconds: float

    @property
    def is_good(self) -> bool:
        return not self.audit.violations and not self.exit_code


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


def run_under_faults(seed: int, count: int, kinds: Sequence[FaultKind], run: Run) -> Outcome:
    """A run from its beginning to its end, with ``count`` faults on the way, each kind before any comes twice."""
    rng = random.Random(seed)
    rounds = [rng.sample(list(kinds), len(kinds)) for _ in range(count // len(kinds) + 1)]
    schedule = [kind for kinds_once in rounds for kind in kinds_once][:count]
    due, hits, began = False, list[Strike](), time.monotonic()
    run.submit()
    try:
        while run.exit_code() is None and time.monotonic() - began < RUN_DEADLINE_S:
            due = due or (bool(schedule) and _moment_has_come(rng, run))
            if due:
                kind, before = schedule.pop(0), time.time()
                if (hit := strike(kind, run.target(), rng)) is None:
                    schedule.append(kind)  # nothing to hit just now, and the moment stays: a run may wait for none
                else:
                    hits.append(Strike(kind, hit, _felt(kind, before)))
                    due = False
            time.sleep(0.05)
    finally:
        code = run.end()
    layout = run.target().layout
    again = frozenset({EventKind.TASK_STARTED})
    strikes = [
        replace(
            hit, started_s=_seconds_to(layout, again, hit.time), recovered_s=_seconds_to(layout, PROGRESS, hit.time)
        )
        for hit in hits
    ]
    return Outcome(seed, run.where, strikes, audit(layout.root), code, time.monotonic() - began)


def _felt(kind: FaultKind, before: float) -> float:
    """A time limit is felt when its signal has come, a cancelled run when it is submitted again, the rest at once."""
    return time.time() if kind in (FaultKind.TIME_LIMIT, FaultKind.RESUBMIT) else before


def _moment_has_come(rng: random.Random, run: Run) -> bool:
    """After a random number of things done that stay, and a random part of a second; False when the run ends."""
    layout = run.target().layout
    wanted, end = _progress(layout) + rng.randint(1, 6), time.monotonic() + LONGEST_QUIET_S
    while _progress(layout) < wanted:
        if run.exit_code() is not None or time.monotonic() > end:
            return False
        time.sleep(0.1)
    time.sleep(rng.uniform(0.0, 0.5))  # to fall anywhere in what comes next
    return run.exit_code() is None


def _progress(layout: RunLayout) -> int:
    return sum(event["kind"] in PROGRESS for event in read_events(layout.events))


def _seconds_to(layout: RunLayout, kinds: frozenset[EventKind], at: float) -> float | None:
    later = [event["time"] for event in read_events(layout.events) if event["kind"] in kinds and event["time"] > at]
    return min(later) - at if later else None


def table(outcomes: Sequence[Outcome]) -> str:
    lines = ["seed  where            faults  exit  minutes  steps redone  discarded  set aside  violations"]
    for o in outcomes:
        a = o.audit
        lines.append(
            f"{o.seed:4d}  {o.where:15s}  {len(o.strikes):6d}  {o.exit_code:4d}  {o.seconds / 60:7.1f}  "
            f"{a.steps_redone:12d}  {a.groups_discarded:9d}  {a.set_aside:9d}  {len(a.violations):10d}"
        )
    lines += ["", "seconds to the next start of a task, and to useful work: median, worst; faults, kind"]
    for kind in FaultKind:
        struck = [s for o in outcomes for s in o.strikes if s.kind is kind]
        if struck:
            started = _median_and_worst([s.started_s for s in struck])
            recovered = _median_and_worst([s.recovered_s for s in struck])
            lines.append(f"  {started}   {recovered}   {len(struck):3d}  {kind}")
    return "\n".join(lines)


def _median_and_worst(times: Sequence[float | None]) -> str:
    known = sorted(t for t in times if t is not None)
    return f"{known[len(known) // 2]:6.1f} {known[-1]:6.1f}" if known else f"{'-':>6s} {'-':>6s}"


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a time limit leaves no cluster running
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--faults", type=int, default=10)
    parser.add_argument("--kinds", nargs="+", choices=[k.name for k in FaultKind])
    parser.add_argument("--slurm", choices=sorted(CLUSTERS), help="on a one-host cluster of this kind")
    parser.add_argument("--set", action="append", default=[], help="a further change of the recipe")
    parser.add_argument("--keep", type=Path, help="where to copy run directories with violations")
    arguments = parser.parse_args()
    outcomes: list[Outcome] = []
    for seed in arguments.seed:
        with small_disk(DISK_MIB) as disk, prepared(arguments, disk) as run:
            kinds = [FaultKind[name] for name in arguments.kinds or ()] or possible(
                slurm=arguments.slurm is not None,
                disk=disk is not None,
                ray=any(re.fullmatch("resources.inference.nodes=([2-9]|1.+)", change) for change in arguments.set),
                never=NEVER.get(arguments.slurm, ()),
            )
            outcome = None
            try:
                outcome = run_under_faults(seed, arguments.faults, kinds, run)
            finally:
                if arguments.keep is not None and (outcome is None or not outcome.is_good):
                    run.keep(arguments.keep / f"seed{seed}")
            outcomes.append(outcome)
            print(table(outcomes), *outcome.audit.violations, sep="\n  ", flush=True)
            for s in outcome.strikes:
                recovered = "no work after it" if s.recovered_s is None else f"{s.recovered_s:.1f} s"
                print(f"  {s.kind}: {s.hit}, {recovered}", flush=True)
    return not all(outcome.is_good for outcome in outcomes)


@contextlib.contextmanager
def prepared(arguments: argparse.Namespace, disk: Path | None) -> Iterator[Run]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        if arguments.slurm is None:
            yield LocalRun((disk or Path(folder)) / "run", disk, tuple(arguments.set))
        else:
            cluster = stack.enter_context(running_cluster(CLUSTERS[arguments.slurm], own=True))
            yield SlurmRun(cluster, disk, tuple(arguments.set))


if __name__ == "__main__":
    sys.exit(main())
