"""What the machinery against faults costs an undisturbed run.

    python benchmarks/bench_resilience_overhead.py --pairs 30

One run on this machine in which every other iteration goes without: no leases, no checksums, nothing synced to the
disk, no look at peers and none at the server's counters. Neighbouring iterations meet the same machine and the same
servers, so their wall times are compared pair by pair, the order changing from pair to pair. Heartbeats go on in both:
one small file every few seconds. The goal is 1.03 at most.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarking import ROOT, options, submit
from run_of import read_events

from mrt_hpc.analysis.measures import IterationMetrics
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.layout import RunLayout

if TYPE_CHECKING:
    from collections.abc import Callable

WARM_UP = 4
SITECUSTOMIZE = """
import sys
if "mrt_hpc.attempt.entry" in sys.orig_argv:
    from bench_resilience_overhead import go_without_by_turns
    go_without_by_turns()
"""


def goes_without(iteration: int) -> bool:
    pair, second = divmod(iteration, 2)
    return bool(second) != bool(pair % 2)


class Turn:
    without = False


def go_without_by_turns() -> None:
    """Change the modules of this process: each part of the machinery asks first whose turn it is."""
    from mrt_hpc.roles import inference, trainer
    from mrt_hpc.roles.sampling import serving, verified_weights
    from mrt_hpc.roles.task import peers
    from mrt_hpc.run import atomic, groups, leases, manifest

    def take_turns(owner: type, name: str, iteration_of: object) -> None:
        method = getattr(owner, name)

        def turn(self, *arguments):  # type: ignore[no-untyped-def]
            Turn.without = goes_without(iteration_of(self, *arguments))  # type: ignore[operator]
            return method(self, *arguments)

        setattr(owner, name, turn)

    def leave_out(owner: object, name: str, instead: Callable[..., object]) -> None:
        whole = getattr(owner, name)

        def either(*arguments, **named):  # type: ignore[no-untyped-def]
            return (instead if Turn.without else whole)(*arguments, **named)

        setattr(owner, name, either)

    def verify_all(directory: Path, *_: object) -> manifest.Manifest:
        """The whole work of it; but a version that was written in a turn without has no checksums to find."""
        found = manifest.read_manifest(directory)
        for name in found.files:
            real_checksum(directory / name)
        return found

    async def no_watch(*_: object) -> None:
        """Never ends the server."""

    real_checksum = atomic.checksum
    setattr(verified_weights, "verify", verify_all)  # noqa: B010 - it is the name there that is looked up
    take_turns(inference.Worker, "has_weights", lambda _, work, __: work.iteration)
    take_turns(trainer.Trainer, "go_on", lambda self: self.iteration)
    leave_out(leases.Leases, "claim", lambda *_: True)
    leave_out(leases.Leases, "free", lambda _, positions: positions)
    leave_out(manifest, "checksums", lambda paths: ["" for _ in paths])
    leave_out(verified_weights, "verify", lambda directory, *_: manifest.read_manifest(directory))
    leave_out(groups, "verify", manifest.read_manifest)
    leave_out(atomic, "sync_file", lambda _: None)
    leave_out(peers.PeerWait, "check", lambda _: None)
    leave_out(serving, "restart_when_hung", no_watch)


def walls(root: Path, iterations: int) -> list[float]:
    found = [IterationMetrics.read(RunLayout(root).metrics(i)).wall_seconds for i in range(iterations)]
    return [seconds for seconds in found if seconds is not None]


def run(root: Path, iterations: int) -> None:
    """The quickstart in one segment, without evaluations; the policy stays as it is, so that iterations are alike."""
    hooks = root / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(SITECUSTOMIZE)
    changes = {
        "schedule.iterations": iterations,
        "schedule.iterations_per_job": iterations,
        "evaluation.benchmarks": "[]",
        "training.learning_rate": 1e-9,
    }
    submit(
        ROOT / "recipes/quickstart.yaml", root / "run", changes, [hooks, Path(__file__).parent],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip


def main() -> None:
    given = options(__doc__, pairs=30, keep=Path)  # an empty folder in which the run is kept
    pairs, iterations = given.pairs, WARM_UP + 2 * given.pairs
    with tempfile.TemporaryDirectory() as folder:
        root = given.keep or Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        run(root, iterations)
        seconds = walls(root / "run", iterations)
        damaged = read_events(RunLayout(root / "run").events, EventKind.SET_ASIDE)
    both = {
        without: [s for i, s in enumerate(seconds) if i >= WARM_UP and goes_without(i) is without]
        for without in (False, True)
    }
    ratios = [w / wo for w, wo in zip(both[False], both[True], strict=True)]
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    print(f"{pairs} pairs: {statistics.mean(both[False]):.3f} s with, {statistics.mean(both[True]):.3f} s without")
    if damaged:
        raise SystemExit(f"not undisturbed: {damaged[0]}")
    for without, wall in both.items():
        slowest = ", ".join(f"{s:.1f}" for s in sorted(wall)[-5:])
        print(f"{'without' if without else 'with'}: median {statistics.median(wall):.3f} s, the slowest {slowest} s")
    print(f"ratio of the sums {sum(both[False]) / sum(both[True]):.3f}, median of the pairs' ratios "
          f"{statistics.median(ratios):.3f} (95 %: {medians[50]:.3f} to {medians[-51]:.3f})")  # fmt: skip


if __name__ == "__main__":
    main()
