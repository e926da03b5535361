"""An arm against another one while both learn: credit and cost, by hand, and as the stored study has them."""

from math import exp
from pathlib import Path

import numpy as np
import pytest
from learning_curves import RESAMPLES, Draws, LearningCurve, contrast
from learnt import Learnt, Spending

STORED = Path(__file__).parents[2] / "benchmarks" / "results" / "learning" / "runs"
EVENLY, EACH_OF_250 = np.full((1, 20), 1 / 20), np.full((1, 250), 1 / 250)


def share(log_odds: float) -> float:
    return 1 / (1 + exp(-log_odds))


def curve(per_update: float, cost: float, start: float = 0.0) -> LearningCurve:
    """The log-odds of 20 problems rise by as much in each of 10 updates, which cost as much."""
    updates = np.array([0.0, 5.0, 10.0])
    shares = np.array([share(start + per_update * update) for update in updates])
    return LearningCurve(updates, cost * updates, np.tile(shares[:, None], 20))


def test_a_difference_is_what_is_learnt_and_what_it_costs() -> None:
    """The arm learns twice as fast and pays four times as much: 10 updates of the other buy 2.5 of its own."""
    one, other = curve(0.1, 1.0), curve(0.2, 4.0)
    found = contrast([one], [other], np.array([0.5, 1.0]), EVENLY)
    for place, (bought, paid) in enumerate([(5.0, 1.25), (10.0, 2.5)]):
        wanted = share(0.1 * bought), share(0.1 * paid) - share(0.1 * bought), share(0.2 * paid) - share(0.1 * paid)
        parts = found.reference_SFR, found.cost_SFR, found.credit_SFR
        assert [part[0, place, 0] for part in parts] == pytest.approx(wanted)
    assert found.cost_SFR[0, 1, 0] < 0 < found.credit_SFR[0, 1, 0]
    assert found.total_SFR[0, 1, 0] == pytest.approx(share(0.5) - share(1.0))
    dearer = contrast([other], [one], np.array([1.0]), EVENLY)
    assert dearer.total_SFR == pytest.approx(-found.total_SFR[:, 1:]), "the pair has one budget, whoever is first"


def test_a_curve_is_read_within_its_neighbours_and_where_all_are_right() -> None:
    """Between equal evaluations a monotone curve is level, and no share of 1 makes it infinite."""
    levels = LearningCurve(np.array([0.0, 1.0, 2.0]), np.arange(3.0), np.array([[0.2, 0.4], [1.0, 1.0], [1.0, 1.0]]))
    read = levels.mean_at(np.array([0.0, 0.5, 1.5]), np.array([[0.5, 0.5]]))[:, 0]
    assert read[0] == pytest.approx(0.3)
    assert 0.3 < read[1] < read[2] == pytest.approx(0.75), "half of one of two problems is taken off"


def test_both_intervals_by_hand() -> None:
    """Seeds 1, 2 and 6 of mean 3: a deviation of sqrt(7), t(2) = 4.30265. Draws take 1 to 6; without problems that
    differ, the quantiles are those of means of three draws of three.
    """
    draws = Draws.of(3, 4)
    found = draws.estimate(np.tile([[1.0], [2.0], [6.0]], (1, RESAMPLES + 1)))
    half = 4.30265 * 7**0.5 / 3**0.5
    assert (found.over_seeds.mean, found.over_seeds.low) == pytest.approx((3, 3 - half), rel=1e-5)
    assert (found.drawn.mean, found.drawn.low, found.drawn.high) == pytest.approx((3, 1, 6)), "1 of 27 is each extreme"
    assert np.allclose(draws.weights_RP.sum(axis=1), 1) and np.all(draws.weights_RP[0] == 0.25)


def stored(arm: str, spending: Spending, *, regret: bool = False) -> list[LearningCurve]:
    """The curves of an arm's seeds by accuracy, or by regret within 128 tokens."""
    runs = [Learnt.read(STORED / f"{arm}-{seed}.parquet") for seed in range(5)]
    return [run.curve(run.regrets_EP[128] if regret else run.accuracies_EP, spending) for run in runs]


@pytest.mark.parametrize(("arm", "accuracy", "regret"), [
    ("mrt_online", (3.5, 6.4, 1.3, 1.1, 1.2), -2.98), ("mrt_online_look_ahead", (4.7, 4.3, -0.4, 2.4, 2.5), -3.03)
])  # fmt: skip
def test_the_stored_study_at_equal_updates(arm: str, accuracy: tuple[float, ...], regret: float) -> None:
    """The means over the four evaluations of trained weights, which need no curve: the evaluations themselves."""
    gains = []
    for by_regret in (False, True):
        first, second = (stored(name, Spending.STEPS, regret=by_regret) for name in ("grpo", arm))
        found = contrast(first, second, np.array([0.25, 0.5, 0.75, 1.0]), EACH_OF_250)
        assert np.allclose(found.cost_SFR, 0), "as many updates cost as many"
        gains.append(100 * found.total_SFR[..., 0].mean(axis=1))
    assert gains[0] == pytest.approx(accuracy, abs=0.06) and gains[0].mean() == pytest.approx(2.7, abs=0.04)
    assert gains[1].mean() == pytest.approx(regret, abs=0.02)


def test_the_stored_study_at_the_budget_of_the_pair() -> None:
    """GRPO's budget pays for 15.1 updates of the arm, as the straight line between its evaluations has it: the arm is
    2 points behind, and 5 points of cost hide 3 of credit.
    """
    first, second = (stored(name, Spending.GENERATED) for name in ("grpo", "mrt_online"))
    paid = [b.updates_for(a.spent_E[-1:])[0] for a, b in zip(first, second, strict=True)]
    assert np.mean(paid) == pytest.approx(15.1, abs=0.05)
    found = contrast(first, second, np.array([1.0]), EACH_OF_250)
    parts = [100 * part[..., 0].mean() for part in (found.total_SFR, found.cost_SFR, found.credit_SFR)]
    assert parts == pytest.approx([-2.0, -4.8, 2.8], abs=0.06)
