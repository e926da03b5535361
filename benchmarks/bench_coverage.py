"""Do 95 % intervals hold the truth in 95 % of the cases? Simulated evaluations, of which the truth is known.

    python benchmarks/bench_coverage.py

Problems are drawn from populations that resemble benchmarks: many problems are always right or always wrong. Each trial
draws problems and samples, and makes the interval. The second table makes other intervals from the same trials. All
seeds are fixed: the same tables come out again. Needs no model; takes about half an hour on one core.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from benchmarking import RESULTS, csv_text, options, table, written
from scipy.stats import bootstrap
from simulated import MAKERS, MATH500, REALISTIC, VERY_HARD, Coverage, Experiment, experiments

from mrt_hpc.analysis.intervals import IntervalEstimate, t_quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

PROBLEMS = (30, 500)
WANTED = (0.93, 0.97)


def t_interval(values_P: NDArray[np.float64]) -> IntervalEstimate:
    """Student's."""
    mean, error = float(values_P.mean()), float(values_P.std(ddof=1)) / len(values_P) ** 0.5
    half = t_quantile(len(values_P) - 1) * error
    return IntervalEstimate(mean, mean - half, mean + half)


def bootstrapped(values_P: NDArray[np.float64], method: str) -> IntervalEstimate:
    """By drawing problems 999 times; values that all agree give a point."""
    mean = float(values_P.mean())
    if np.ptp(values_P) == 0:
        return IntervalEstimate(mean, mean, mean)
    found = bootstrap((values_P,), np.mean, n_resamples=999, method=method, rng=np.random.default_rng(0))
    return IntervalEstimate(mean, float(found.confidence_interval.low), float(found.confidence_interval.high))


OTHERS: dict[str, Callable[[NDArray[np.float64]], IntervalEstimate]] = {
    "t": t_interval,
    "percentile bootstrap": partial(bootstrapped, method="percentile"),
    "BCa bootstrap": partial(bootstrapped, method="BCa"),
}


def shown(coverage: Coverage) -> str:
    """Coverage in per cent, with the shares in which the truth lies below and above; bold outside the wanted range."""
    share = f"{100 * coverage.share:.1f}"
    text = share if WANTED[0] <= coverage.share <= WANTED[1] else f"**{share}**"
    return f"{text} ({100 * coverage.below:.1f}, {100 * coverage.above:.1f})"


def row(experiment: Experiment, found: Sequence[Coverage]) -> list[str]:
    cells = [experiment.measure, experiment.population, str(experiment.samples), f"{experiment.truth:.4g}"]
    return cells + [text for coverage in found for text in (shown(coverage), f"{coverage.width:.3g}")]


def other_rows(trials: int, seed: int) -> Iterator[list[str]]:
    """The second table: 30 problems like MATH500 with 20 samples."""
    for measure in ("pass@1", "maj@4", "paired difference", "regret", "tokens"):
        experiment = MAKERS[measure](MATH500, 20)
        found = [
            experiment.by(way).covered(trials, PROBLEMS[0], seed) for way in (experiment.interval, *OTHERS.values())
        ]
        print(measure, *(shown(coverage) for coverage in found), flush=True)
        yield [measure, *(shown(coverage) for coverage in found)]


def main() -> None:
    given = options(__doc__, trials=2000, seed=0, into=RESULTS / "coverage")
    lines, rows = [], []
    for experiment in experiments((*REALISTIC, VERY_HARD)):
        found = [experiment.covered(given.trials, problems, given.seed) for problems in PROBLEMS]
        lines.append(row(experiment, found))
        print(*lines[-1], sep=" | ", flush=True)
        named = (experiment.measure, experiment.population, experiment.samples)
        rows += [
            (*named, problems, experiment.truth, one.share, one.below, one.above, one.width)
            for problems, one in zip(PROBLEMS, found, strict=True)
        ]
    written(document(given.trials, lines, list(other_rows(given.trials, given.seed))), given.into)
    head = ("measure", "population", "samples", "problems", "truth", "coverage", "below", "above", "width")
    written(csv_text(head, rows), given.into, "table.csv")


def document(trials: int, lines: Sequence[Sequence[str]], others: Sequence[Sequence[str]]) -> str:
    first = ("measure", "problems", "samples", "truth", "30 problems", "width", "500 problems", "width")
    return "\n".join([
        f"Coverage of 95 % intervals in {trials:,} trials, per cent; in brackets the trials in which the truth lies "
        "below and above the interval; bold outside 93 to 97. Width is the mean width of the interval.", "",
        *table(first, lines, words=2), "",
        "Other intervals from the same trials: 30 problems like MATH500, 20 samples.", "",
        *table(("measure", "in use", *OTHERS), others, words=2 + len(OTHERS)),
    ])  # fmt: skip


if __name__ == "__main__":
    main()
