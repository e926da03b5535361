"""How wrong estimates of progress are: tables and the figure of the variance study.

An estimate is of all boundaries of all traces; it is repeated R times, with other seeds. N episodes in all.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarking import csv_text, written
from benchmarking import table as markdown

from mrt_hpc.analysis.figures import Line, LineFigure, Panel
from mrt_hpc.analysis.figures import draw as draw_figure
from mrt_hpc.analysis.intervals import IntervalEstimate
from mrt_hpc.mrt.progress import progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

SMALLEST_SHOWN = 1e-5  # of an error, in the figure; what is exact has none
RESAMPLES = 2000


@dataclass(frozen=True)
class Valued:
    """One trace with the values of its prefixes."""

    problem: str
    reward: float  # of the trace itself, with its own ending
    values: NDArray[np.float64]  # [k + 1]
    told: NDArray[np.float64]  # [k] the variance of progress, as the prover's branches tell it; NaN where they do not
    generated: int
    prefilled: int  # prompt tokens that were not in the cache


@dataclass(frozen=True)
class Measured:
    """One estimate of all traces; tokens are those of a boundary, and N episodes have progress."""

    traces: list[Valued]

    @property
    def generated(self) -> float:
        return sum(t.generated for t in self.traces) / self.boundaries

    @property
    def prefilled(self) -> float:
        return sum(t.prefilled for t in self.traces) / self.boundaries

    @property
    def boundaries(self) -> int:
        return len(self.values)

    @property
    def values(self) -> NDArray[np.float64]:
        return np.concatenate([t.values for t in self.traces])

    @property
    def gains(self) -> NDArray[np.float64]:
        """[N] progress."""
        return np.concatenate([progress(t.values) for t in self.traces])

    @property
    def problems(self) -> list[str]:
        """[N] whose episodes they are."""
        return [t.problem for t in self.traces for _ in range(len(t.values) - 1)]

    @property
    def told(self) -> NDArray[np.float64]:
        return np.concatenate([t.told for t in self.traces])


@dataclass(frozen=True)
class Row:
    name: str
    generated: float  # tokens a boundary
    prefilled: float  # tokens a boundary
    error: IntervalEstimate
    """Mean squared error of progress against `forced_answer`'s true values, over episodes and repeats."""
    own: IntervalEstimate
    """The same against the prover's own: what is left when repeats agree in what they are wrong about."""
    told: float  # the variance that branches told of, mean over those progress values that have one; NaN where none has
    bias: float  # mean error of a value
    correlation: float  # of estimated with true progress
    ranks: float  # spearman's, of estimated with true progress
    ratio: IntervalEstimate  # the error against the reference's, had it spent as many tokens as that
    ratio_generated: IntervalEstimate  # the same with the tokens that were generated alone

    @property
    def tokens(self) -> float:
        return self.generated + self.prefilled


Squares = dict[str, tuple[float, int]]  # of each problem the sum of squared errors of progress, and their number


def by_problem(problems: Sequence[str], squares_N: NDArray[np.float64]) -> Squares:
    """Summed up: the traces of a problem are alike, so it is problems that are drawn for an interval."""
    found: Squares = {}
    for problem, square in zip(problems, squares_N, strict=True):
        total, count = found.get(problem, (0.0, 0))
        found[problem] = (total + float(square), count + 1)
    return found


def against_truth(runs: Sequence[Measured], truth: Measured, samples: int) -> Squares:
    """Errors against the truth, less what that is uncertain by: each of its values is the mean of so many branches."""
    gains_RN = np.array([run.gains for run in runs])
    uncertain = np.concatenate([progress_noise(t.values, samples) for t in truth.traces])
    return by_problem(truth.problems, ((gains_RN - truth.gains) ** 2).mean(axis=0) - uncertain)


def against_own(runs: Sequence[Measured]) -> Squares:
    """Errors against the mean over repeats, unbiased."""
    gains_RN = np.array([run.gains for run in runs])
    return by_problem(runs[0].problems, gains_RN.var(axis=0, ddof=1))


def progress_noise(truth: NDArray[np.float64], samples: int) -> NDArray[np.float64]:
    """Variance of the true progress, each value of which is the mean of so many independent branches."""
    variance = truth * (1 - truth) / samples
    return variance[1:] + variance[:-1]


def measure(name: str, runs: Sequence[Measured], reference: Sequence[Measured], truth: Measured, samples: int) -> Row:
    """The error of a contender against the truth, and against the reference's at equal tokens."""
    mine, its, own = against_truth(runs, truth, samples), against_truth(reference, truth, samples), against_own(runs)
    gains_RN, true = np.array([run.gains for run in runs]), np.tile(truth.gains, len(runs))
    told = np.concatenate([run.told for run in runs])
    generated, prefilled = cost_of(runs)
    of_reference = cost_of(reference)

    def ratio(tokens: float) -> IntervalEstimate:
        """Noise falls as one over the tokens, as the rows of one prover show; what repeats agree in does not."""

        def scaled(drawn: Sequence[str]) -> float:
            noise, both = error_of(own, drawn), error_of(mine, drawn)
            return (noise * tokens + max(0.0, both - noise)) / error_of(its, drawn)

        return resampled(mine, scaled)

    return Row(
        name,
        generated,
        prefilled,
        error=resampled(mine, lambda drawn: error_of(mine, drawn)),
        own=resampled(own, lambda drawn: error_of(own, drawn)),
        told=float(np.nanmean(told)) if np.isfinite(told).any() else float("nan"),
        bias=float(np.mean([run.values for run in runs]) - truth.values.mean()),
        correlation=float(np.corrcoef(gains_RN.ravel(), true)[0, 1]),
        ranks=float(np.corrcoef(ranks(gains_RN.ravel()), ranks(true))[0, 1]),
        ratio=ratio((generated + prefilled) / sum(of_reference)),
        ratio_generated=ratio(generated / of_reference[0]),
    )


def cost_of(runs: Sequence[Measured]) -> tuple[float, float]:
    return float(np.mean([run.generated for run in runs])), float(np.mean([run.prefilled for run in runs]))


def ranks(numbers_N: NDArray[np.float64]) -> NDArray[np.float64]:
    """[N] their places in ascending order; equal ones share the mean of theirs."""
    _, place, counts = np.unique(numbers_N, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def error_of(parts: Squares, problems: Sequence[str]) -> float:
    return sum(parts[p][0] for p in problems) / sum(parts[p][1] for p in problems)


def resampled(parts: Squares, measure: Callable[[Sequence[str]], float]) -> IntervalEstimate:
    """A measure of all problems, with a 95 % interval by drawing problems."""
    rng, problems = np.random.default_rng(0), sorted(parts)
    drawn = [measure([problems[i] for i in rng.integers(len(problems), size=len(problems))]) for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return IntervalEstimate(measure(problems), float(low), float(high))


# -- what is written --------------------------------------------------------------------------------------------------


HEAD = (
    "prover", "generated", "prefilled", "squared error of progress (95 %)", "against its own values", "as told",
    "bias of V", "correlation", "of ranks", "error at equal tokens (95 %)", "at equal generated tokens",
)  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    cells = [
        (
            r.name, f"{r.generated:.1f}", f"{r.prefilled:.1f}", told(r.error, 4), short(r.own.mean, 4),
            short(r.told, 4), f"{r.bias:+.3f}", f"{r.correlation:.2f}", f"{r.ranks:.2f}", told(r.ratio, 3),
            told(r.ratio_generated, 3),
        ) for r in rows
    ]  # fmt: skip
    return "\n".join(markdown(HEAD, cells))


def told(estimate: IntervalEstimate, digits: int) -> str:
    return f"{short(estimate.mean, digits)} ({short(estimate.low, digits)} to {short(estimate.high, digits)})"


def short(number: float, digits: int) -> str:
    """To so many decimals, or its order where these were all zero."""
    return f"{number:.0e}" if 0 < abs(number) < 0.5 * 10**-digits else f"{number:.{digits}f}"


def write(rows: Sequence[Row], heading: str, into: Path) -> None:
    written(f"{heading}\n\n{table(rows)}", into)
    head = ["name", *PLAIN, *(f"{name}{end}" for name in ESTIMATES for end in ENDS)]
    lines = [
        [r.name, *(getattr(r, name) for name in PLAIN), *(x for n in ESTIMATES for x in ends_of(getattr(r, n)))]
        for r in rows
    ]
    written(csv_text(head, lines), into, "table.csv")
    draw(rows, into / "error.png")


PLAIN = ("generated", "prefilled", "told", "bias", "correlation", "ranks")
ESTIMATES = ("error", "own", "ratio", "ratio_generated")
ENDS = ("", "_low", "_high")


def ends_of(estimate: IntervalEstimate) -> tuple[float, float, float]:
    return estimate.mean, estimate.low, estimate.high


def read_row(line: dict[str, str]) -> Row:
    fields: dict[str, Any] = {name: float(line[name]) for name in PLAIN}
    fields |= {name: IntervalEstimate(*(float(line[f"{name}{end}"]) for end in ENDS)) for name in ESTIMATES}
    return Row(line["name"], **fields)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Error against tokens, a line a prover."""
    lines: dict[str, list[Row]] = {}
    for row in rows:
        lines.setdefault(row.name.partition(", G")[0], []).append(row)
    panel = Panel(
        "Error of progress by what it costs", "tokens a boundary, generated and prefilled", "mean squared error",
        tuple(series(name, of) for name, of in lines.items()), logarithmic=True, logarithmic_heights=True,
    )  # fmt: skip
    draw_figure(LineFigure(path.stem, (panel,)), path)


def series(name: str, rows: Sequence[Row]) -> Line:
    """One prover with several numbers of branches."""

    def shown(error: IntervalEstimate) -> IntervalEstimate:
        return IntervalEstimate(*(max(end, SMALLEST_SHOWN) for end in ends_of(error)))

    return Line(name, tuple(r.tokens for r in rows), tuple(shown(r.error) for r in rows))


if __name__ == "__main__":
    for folder in map(Path, sys.argv[1:]):  # makes tables and figures again from what was measured
        with (folder / "table.csv").open(newline="") as stream:
            found = [read_row(line) for line in csv.DictReader(stream)]
        write(found, (folder / "table.md").read_text().partition("\n")[0], folder)
