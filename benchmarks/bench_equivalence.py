"""How often does ``mrt-hpc analyze scaling`` call a vote at an earlier episode as good as the last one, wrongly and
rightly? Simulated evaluations, of which the true loss of every episode is known.

    python benchmarks/bench_equivalence.py

Problems are drawn from populations that resemble benchmarks. Votes at ten prefixes have a true accuracy each, and each
trace of a problem votes right or wrong at each prefix by itself. A claim is false where the vote that it names loses
the margin of 2 points or more. Beside the rule in use stands the one before it: the first vote that was not shown to be
worse was said to do as well. All seeds are fixed: the same table comes out again. Takes three
minutes on one core.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from benchmarking import RESULTS, csv_text, options, table, written
from simulated import AIME, MATH500, Mixture

from mrt_hpc.analysis.findings import Point
from mrt_hpc.analysis.intervals import detectable
from mrt_hpc.analysis.scaling import MARGIN, EarlierVote, ScalingCurve, earlier_votes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

PREFIXES = 10
SIZES = ((AIME, 8, 2), (AIME, 30, 4), (AIME, 30, 16), (MATH500, 200, 16), (MATH500, 500, 16))
"""Population, problems and traces."""


def rising(last: FloatArray) -> FloatArray:
    """[prefixes, problems] evenly from 0.6 to 1 of the last accuracy."""
    return np.linspace(0.6, 1.0, PREFIXES)[:, None] * last


def even(last: FloatArray) -> FloatArray:
    """No loss at any episode."""
    return np.tile(last, (PREFIXES, 1))


def at_margin(last: FloatArray) -> FloatArray:
    """Every problem loses the same share of its accuracy, all together the margin."""
    return np.vstack([np.tile(last * (1 - MARGIN / last.mean()), (PREFIXES - 1, 1)), last])


def few_lose_all(last: FloatArray) -> FloatArray:
    """A few problems that are nearly always right at the end are never right before, all together the margin."""
    often = np.flatnonzero(last > 0.9)
    few = often[np.cumsum(last[often]) <= MARGIN * len(last)]
    before = last.copy()
    before[few] = 0.0
    return np.vstack([np.tile(before, (PREFIXES - 1, 1)), last])


TRUTHS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "rises from 0.6": rising,
    "no loss": even,
    "2 points lost by all": at_margin,
    "2 points lost by few": few_lose_all,
}


def named_now(votes: Sequence[EarlierVote]) -> EarlierVote | None:
    """The vote that is called as good."""
    return next((vote for vote in votes if vote.as_good), None)


def named_before(votes: Sequence[EarlierVote]) -> EarlierVote | None:
    """The vote that was said to do as well: the first one that is not shown to be worse, if any loss can be shown."""
    vote = next((vote for vote in votes if not vote.is_beaten), None)
    if vote is None or vote.is_better or detectable(vote.gain.error, vote.gain.degrees, len(votes)) > 1:
        return None
    return vote


RULES = {"before": named_before, "now": named_now}


@dataclass(frozen=True)
class Claims:
    """What a rule said in some trials."""

    trials: int
    losses: list[float]
    """[claims] the true loss of each vote that was named, a share."""

    @property
    def false(self) -> int:
        """The claims whose vote loses the margin or more; those at the margin are made to lose it but for rounding."""
        return sum(loss > 0.95 * MARGIN for loss in self.losses)

    def cells(self) -> list[str]:
        """Claims, false claims, and the true loss, mean and largest, in points."""
        loss = f"{100 * np.mean(self.losses):.1f} ({100 * max(self.losses):.1f})" if self.losses else ""
        return [f"{len(self.losses) / self.trials:.1%}", f"{self.false / self.trials:.1%}", loss]


def simulated(mixture: Mixture, truth: str, problems: int, traces: int, trials: int) -> dict[str, Claims]:
    """What both rules say, in the same trials."""
    rng = np.random.default_rng(0)
    chances = TRUTHS[truth](mixture.chances(rng, 20000))
    accuracy = chances.mean(axis=1)
    losses: dict[str, list[float]] = {name: [] for name in RULES}
    for _ in range(trials):
        drawn = chances[:, rng.choice(chances.shape[1], problems, replace=False)]
        means = rng.binomial(traces, drawn) / traces
        points = [Point((j, 100 * j), by_number(row)) for j, row in enumerate(means)]
        votes = earlier_votes(ScalingCurve(("m", "maj@8 at prefix"), tuple(points), 8))
        for name, named in RULES.items():
            if (vote := named(votes)) is not None:
                losses[name].append(float(accuracy[-1] - accuracy[vote.episode]))
    return {name: Claims(trials, found) for name, found in losses.items()}


def by_number(values: FloatArray) -> dict[str, float]:
    return {str(number): float(value) for number, value in enumerate(values)}


def main() -> None:
    given = options(__doc__, trials=1000, into=RESULTS / "equivalence")
    lines, rows = [], []
    for mixture, problems, traces in SIZES:
        for truth in TRUTHS:
            found = simulated(mixture, truth, problems, traces, given.trials)
            lines.append(
                [f"{problems} x {traces}, {mixture.name}", truth, *found["before"].cells(), *found["now"].cells()]
            )
            print(*lines[-1], sep=" | ", flush=True)
            rows += [
                (problems, traces, mixture.name, truth, rule, claims.trials, len(claims.losses), claims.false)
                for rule, claims in found.items()
            ]
    told = ("told before", "false", "true loss", "told now", "false", "true loss")
    text = (
        f"The share of {given.trials:,} trials in which a vote at an earlier episode was said to do as well, and in "
        "which the vote so named loses 2 points or more; the true loss of the named votes in points, mean (largest)."
    )
    written("\n".join([text, "", *table(("problems x traces", "truth", *told), lines, words=2)]), given.into)
    head = ("problems", "traces", "population", "truth", "rule", "trials", "claims", "false")
    written(csv_text(head, rows), given.into, "table.csv")


if __name__ == "__main__":
    main()
