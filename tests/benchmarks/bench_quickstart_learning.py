"""Does the quickstart learn? Runs it for several seeds and compares the last weights version with the first.

    python tests/benchmarks/bench_quickstart_learning.py --seeds 0 1 2 --into runs/learning

For each seed: accuracy on the 500 held-out problems before and after, the paired 95 % interval of the gain, how much
well-formed traces and right checks changed, and the wall time. The goal: every interval clear of zero, neither share
down by more than 5 points, 12 minutes at most. A run that is there already is read, not repeated.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from mrt_hpc.analysis.intervals import paired_difference
from mrt_hpc.analysis.measures import EvaluationSummary
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.run.events import read_events
from mrt_hpc.run.layout import RunLayout

ROOT = Path(__file__).parents[2]
BENCHMARK = "held-out"


def run_seed(seed: int, layout: RunLayout, overrides: list[str]) -> None:
    """Run the quickstart with one seed, or go on with it."""
    sets = [part for change in (f"seed={seed}", *overrides) for part in ("--set", change)]
    recipe = str(ROOT / "recipes" / "quickstart.yaml")
    command = [sys.executable, "-m", "mrt_hpc.cli.main", "submit", recipe, "--site", "local"]
    subprocess.run([*command, "--run", str(layout.root), *sets], check=True)


def row(seed: int, layout: RunLayout) -> str:
    """One line of the table."""
    last = read_recipe_lock(layout.recipe_lock).schedule.iterations
    before, after = (EvaluationSummary.read(layout.evaluation_summary(v, BENCHMARK)) for v in (0, last))
    gain = paired_difference(before.per_problem, after.per_problem)
    changes = "  ".join(
        f"{100 * before.quality[q]:5.1f} -> {100 * after.quality[q]:5.1f}" for q in sorted(before.quality)
    )
    times = [event["time"] for event in read_events(layout.events)]
    minutes = (times[-1] - times[0]) / 60
    return (
        f"{seed:4d}  {100 * before.accuracy:5.1f} -> {100 * after.accuracy:5.1f}  "
        f"{100 * gain.mean:+5.1f} ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})  {changes}  "
        f"{before.tokens_per_rollout or 0:5.0f} -> {after.tokens_per_rollout or 0:5.0f}  {minutes:5.1f}"
    )


def main() -> None:
    """Run the seeds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--into", type=Path, default=Path("runs/learning"), help="folder of the run directories")
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="as of mrt-hpc submit")
    arguments = parser.parse_args()
    layouts = {seed: RunLayout((arguments.into / f"seed-{seed}").absolute()) for seed in arguments.seeds}
    for seed, layout in layouts.items():
        run_seed(seed, layout, arguments.overrides)
    print("seed  accuracy, %     gain, points (95 %)      right checks, %   well formed, %   tokens       minutes")
    for seed, layout in layouts.items():
        print(row(seed, layout))


if __name__ == "__main__":
    main()
