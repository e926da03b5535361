"""Does the quickstart learn? Runs it for several seeds and compares the last weights version with the first.

    python tests/benchmarks/bench_quickstart_learning.py --seeds 0 1 2 --into runs/learning

For each seed: accuracy on the 500 held-out problems before and after, the paired 95 % interval of the gain, how much
well-formed traces and right checks changed, and the wall time. The goal: every interval clear of zero, neither share
down by more than 5 points, 12 minutes at most. A run that is there already is read, not repeated.
"""

from __future__ import annotations

from pathlib import Path

from benchmarking import ROOT, options, submit

from mrt_hpc.analysis.intervals import paired_difference
from mrt_hpc.analysis.measures import EvaluationSummary
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.run.events import read_events
from mrt_hpc.run.layout import RunLayout

BENCHMARK = "held-out"


def row(seed: int, layout: RunLayout) -> str:
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
    given = options(__doc__, seeds=[0, 1, 2], into=Path("runs/learning"))
    layouts = {seed: RunLayout((given.into / f"seed-{seed}").absolute()) for seed in given.seeds}
    for seed, layout in layouts.items():
        submit(ROOT / "recipes" / "quickstart.yaml", layout.root, {"seed": seed})
    print("seed  accuracy, %     gain, points (95 %)      right checks, %   well formed, %   tokens       minutes")
    for seed, layout in layouts.items():
        print(row(seed, layout))


if __name__ == "__main__":
    main()
