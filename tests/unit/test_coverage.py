"""95 % intervals hold a known truth about as often as they say, in simulated evaluations.

Each interval is tried 400 times. If its coverage is from 93 to 97 %, then from 352 to 398 of the trials hold the truth
but in 2 of 10,000 such tests; the seeds are fixed. `tests/benchmarks/bench_coverage.py` tries more.
"""

from __future__ import annotations

import numpy as np
import pytest
import simulated
from scipy.stats import binom
from simulated import AIME, BUDGET, KEPT, MAKERS, MATH500, Mixture

from mrt_hpc.analysis.intervals import IntervalEstimate, t_quantile
from mrt_hpc.mrt.regret import TraceCurve, area_of_episodes, regret_by_problem

TRIALS = 400
FEWEST, MOST = 352, 398


@pytest.mark.parametrize("mixture", [AIME, MATH500], ids=lambda mixture: mixture.name)
@pytest.mark.parametrize("measure", ["pass@1", "maj@4", "paired difference", "regret", "area ratio", "progress"])
@pytest.mark.parametrize("problems", [30, 500])
def test_intervals_hold_the_truth(measure: str, mixture: Mixture, problems: int) -> None:
    coverage = MAKERS[measure](mixture, 4).covered(TRIALS, problems, seed=0)
    assert FEWEST <= round(coverage.share * TRIALS) <= MOST
    assert coverage.width < 0.4


def test_intervals_of_tokens_to_an_accuracy_hold_the_truth() -> None:
    """Percentiles of a bootstrap hold it a little less often than they say with 30 problems: in 92 to 94 %."""
    coverage = MAKERS["tokens to an accuracy"](MATH500, 4).covered(TRIALS, 30, seed=0)
    assert FEWEST <= round(coverage.share * TRIALS) <= MOST


def test_these_tests_can_fail() -> None:
    """The bounds follow from the binomial law, and a t interval would hold the truth less often, for 30 problems of
    which nearly all are easy.
    """
    assert binom.cdf(FEWEST - 1, TRIALS, 0.93) < 1.2e-4
    assert binom.sf(MOST, TRIALS, 0.97) < 1.2e-4
    assert binom.cdf(FEWEST - 1, TRIALS, 0.85) > 0.94, "an interval that covers 85 % is found out"
    experiment = MAKERS["pass@1"](Mixture("easy", ((0.95, 60, 0.5), (0.05, 0.3, 5))), 20)

    def t_interval(values_P: np.ndarray) -> IntervalEstimate:
        mean, half = values_P.mean(), t_quantile(len(values_P) - 1) * values_P.std(ddof=1) / np.sqrt(len(values_P))
        return IntervalEstimate(mean, mean - half, mean + half)

    rng = np.random.default_rng(0)
    drawn = [experiment.values(rng, 30) for _ in range(TRIALS)]
    by_t = sum(t.low <= experiment.truth <= t.high for t in map(t_interval, drawn))
    assert by_t < FEWEST <= sum(e.low <= experiment.truth <= e.high for e in map(experiment.interval, drawn))


def test_the_true_majority_by_hand() -> None:
    """Right or wrong with 1/2 each and four voters: 4 or 3 right of 4 in 5 of 16, and a tie in 6 of 16."""
    assert simulated.true_majority(np.array([[0.5, 0.5, 0.0, 0.0, 0.0]])) == pytest.approx(5 / 16 + 3 / 16)
    assert simulated.true_majority(np.array([[0.5, 0.0, 0.0, 0.0, 0.5]])) == pytest.approx(15 / 16)
    assert simulated.answer_shares(AIME).sum(axis=1) == pytest.approx(1.0)


def test_the_truth_of_simulated_regret_is_that_of_its_curves() -> None:
    """The weights of a pool give the same regret as the curves themselves."""
    rng = np.random.default_rng(4)
    chances = AIME.chances(rng, 3)
    curves: dict[str, list[TraceCurve]] = {
        str(i): [simulated.random_curve(rng, chance, 9) for _ in range(simulated.POOL)]
        for i, chance in enumerate(chances)
    }
    pool = simulated.valued_pool(AIME, 3)
    areas = (pool.values * pool.weights).sum(axis=2).mean(axis=1)
    assert 1 - areas == pytest.approx(list(regret_by_problem(curves, BUDGET).values()))
    stopped = [np.mean([area_of_episodes(curve, KEPT, BUDGET) for curve in mine]) for mine in curves.values()]
    assert (pool.values * pool.stopped).sum(axis=2).mean(axis=1) == pytest.approx(stopped)
