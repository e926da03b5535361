"""Do 95 % intervals hold the truth in 95 % of the cases? Simulated evaluations, of which the truth is known.

    python tests/benchmarks/bench_coverage.py

Problems are drawn from populations that resemble benchmarks: many problems are always right or always wrong. Each trial
draws problems and samples, and makes the interval. The second table makes other intervals from the same trials. All
seeds are fixed: the same tables come out again. Needs no model; takes about half an hour on one core.
"""

from __future__ import annotations

import argparse
import csv
import sys
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import bootstrap

from mrt_hpc.analysis.intervals import IntervalEstimate, t_quantile
from mrt_hpc.run.atomic import write_text

sys.path.append(str(Path(__file__).parents[1] / "support"))  # the simulated evaluations are a test's as well

from simulated import MAKERS, MATH500, REALISTIC, VERY_HARD, Coverage, Experiment, experiments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

RESULTS = Path(__file__).parent / "results" / "coverage"
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


def row(experiment: Experiment, found: Sequence[Coverage]) -> str:
    """A line of the first table."""
    cells = [experiment.measure, experiment.population, str(experiment.samples), f"{experiment.truth:.4g}"]
    cells += [text for coverage in found for text in (shown(coverage), f"{coverage.width:.3g}")]
    return f"| {' | '.join(cells)} |"


def other_rows(trials: int, seed: int) -> Iterator[str]:
    """The second table: 30 problems like MATH500 with 20 samples."""
    for measure in ("pass@1", "maj@4", "paired difference", "regret", "tokens"):
        experiment = MAKERS[measure](MATH500, 20)
        ways = {"in use": experiment.interval, **OTHERS}
        found = [experiment.by(way).covered(trials, PROBLEMS[0], seed) for way in ways.values()]
        print(measure, *(shown(coverage) for coverage in found), flush=True)
        yield f"| {measure} | {' | '.join(shown(coverage) for coverage in found)} |"


def main() -> None:
    """Measure and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--into", type=Path, default=RESULTS)
    options = parser.parse_args()
    lines, rows = [], []
    for experiment in experiments((*REALISTIC, VERY_HARD)):
        found = [experiment.covered(options.trials, problems, options.seed) for problems in PROBLEMS]
        lines.append(row(experiment, found))
        print(lines[-1], flush=True)
        rows += [as_row(experiment, problems, one) for problems, one in zip(PROBLEMS, found, strict=True)]
    others = list(other_rows(options.trials, options.seed))
    options.into.mkdir(parents=True, exist_ok=True)
    write_text(options.into / "table.md", document(options.trials, lines, others))
    write_text(options.into / "table.csv", as_csv(rows))


def document(trials: int, lines: Sequence[str], others: Sequence[str]) -> str:
    """Both tables as Markdown."""
    head = [
        f"Coverage of 95 % intervals in {trials:,} trials, per cent; in brackets the trials in which the truth lies "
        "below and above the interval; bold outside 93 to 97. Width is the mean width of the interval.",
        "",
        "| measure | problems | samples | truth | 30 problems | width | 500 problems | width |",
        "|---|---|---:|---:|---|---:|---|---:|",
    ]
    second = [
        "",
        "Other intervals from the same trials: 30 problems like MATH500, 20 samples.",
        "",
        f"| measure | in use | {' | '.join(OTHERS)} |",
        f"|---|---|{'---|' * len(OTHERS)}",
    ]
    return "\n".join([*head, *lines, *second, *others]) + "\n"


def as_row(experiment: Experiment, problems: int, coverage: Coverage) -> list[object]:
    """A line of the CSV file."""
    named = [experiment.measure, experiment.population, experiment.samples, problems, experiment.truth]
    return [*named, coverage.share, coverage.below, coverage.above, coverage.width]


def as_csv(rows: Sequence[Sequence[object]]) -> str:
    """The numbers of the first table."""
    stream = StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["measure", "population", "samples", "problems", "truth", "coverage", "below", "above", "width"])
    writer.writerows(rows)
    return stream.getvalue()


if __name__ == "__main__":
    main()
