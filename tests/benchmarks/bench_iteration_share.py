"""The share of an iteration's wall time outside generation (branching included) and optimisation.

Reads a finished run, e.g. the quickstart's:

    python tests/benchmarks/bench_iteration_share.py runs/quickstart

Warm-up iterations are left out. The goal at quickstart size is 0.15 at most.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from mrt_hpc.analysis.measures import IterationMetrics, Phase
from mrt_hpc.run.layout import RunLayout

USEFUL = (Phase.GENERATION, Phase.OPTIMISATION)


def outside(metrics: IterationMetrics) -> float:
    """Share of one iteration's wall time that is neither generation nor optimisation."""
    assert metrics.wall_seconds is not None
    return 1 - sum(metrics.seconds.get(phase, 0.0) for phase in USEFUL) / metrics.wall_seconds


def main() -> None:
    """Print the shares of one or more runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--warm-up", type=int, default=2, help="iterations to leave out at the start")
    arguments = parser.parse_args()
    for run in arguments.runs:
        layout = RunLayout(run)
        paths = sorted(layout.root.glob("iterations/*/metrics.json"))[arguments.warm_up :]
        measured = [IterationMetrics.read(path) for path in paths]
        shares = [outside(m) for m in measured]
        wall = sum(m.wall_seconds or 0.0 for m in measured)
        spent = {phase: sum(m.seconds.get(phase, 0.0) for m in measured) / wall for phase in Phase}
        print(f"{run}: {len(shares)} iterations, {wall / len(shares):.2f} s each")
        whole = 1 - sum(spent[p] for p in USEFUL)
        print(f"  outside: whole {whole:.3f}, median {statistics.median(shares):.3f}, max {max(shares):.3f}")
        print("  by phase: " + ", ".join(f"{phase} {share:.3f}" for phase, share in spent.items() if share))


if __name__ == "__main__":
    main()
