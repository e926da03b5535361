"""Signal, noise and direction of gradients: by hand, on Gaussians whose truth is known, and what a run can be asked."""

import numpy as np
import pytest
import torch
from basics import ROOT
from commands import recipe
from samples import rollout_with

from mrt_hpc import Batch, MrtOnline, Recipe
from mrt_hpc.algorithms.estimators import GradientEstimator, estimators_of
from mrt_hpc.algorithms.grpo import Grpo
from mrt_hpc.analysis.estimator_signals import MeasuredEstimators, analyse_estimators
from mrt_hpc.mrt.gradient_signal import GradientSignal, Interval, alignment
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.gradient_referee import distinct
from mrt_hpc.training.group_gradients import KEPT, WHOLE, kept_numbers

GROUPS, NUMBERS = 64, 400


def gram(gradients: np.ndarray) -> np.ndarray:
    """``gradients``: [E, M, D]."""
    return np.einsum("aid,bjd->aibj", gradients, gradients)


def gaussians(seed: int, length: float, cosine: float, noise: float) -> np.ndarray:
    """[2, M, D] two estimators whose means have this length and cosine, with common and own noise."""
    draw = np.random.default_rng(seed)
    means = np.zeros((2, 1, NUMBERS))
    means[0, 0, 0] = length
    means[1, 0, :2] = length * cosine, length * np.sqrt(1 - cosine**2)
    parts = draw.normal(size=(3, GROUPS, NUMBERS)) * noise / np.sqrt(2 * NUMBERS)
    return means + np.array([parts[0] + parts[1], parts[0] + parts[2]])


def test_two_groups_by_hand() -> None:
    """Gradients 1 and 3: |mu|^2 = 1 * 3, V = (1 + 9) / 2 - 3, and the SNR of two groups sqrt(2 * 3 / 2)."""
    signal = GradientSignal.of(gram(np.array([[[1.0], [3.0]]])), 0)
    assert (signal.products[0, 0, 0], signal.noises[0, 0]) == (3.0, 2.0)
    found = signal.snr(0, 2)
    assert (found.value, alignment(found).value) == pytest.approx((3**0.5, 0.75**0.5))


def test_estimates_of_gaussians_are_unbiased_and_their_intervals_hold_the_truth() -> None:
    """A batch of 16 has SNR 2; the noise is common by half, which no product of different groups sees."""
    signals = [GradientSignal.of(gram(gaussians(seed, 0.5, 0.6, 1.0)), seed) for seed in range(40)]
    squares = np.array([signal.products[0] for signal in signals])
    error = squares.std(0) / len(signals) ** 0.5
    assert (np.abs(squares.mean(0) - 0.25 * np.array([[1, 0.6], [0.6, 1]])) < 3 * error).all()
    assert np.mean([signal.noises[0] for signal in signals]) == pytest.approx(1.0, rel=0.02)
    snrs = [signal.snr(0, 16) for signal in signals]
    cosines = [one for signal in signals if (one := signal.cosine(0, 1)) is not None]
    ratios = [one for signal in signals if (one := signal.snr_ratio(0, 1, (4.0, 1.0))) is not None]
    cases: list[tuple[float, list[Interval]]] = [(2.0, snrs), (0.6, cosines), (0.5, ratios)]
    for truth, found in cases:
        assert len(found) == len(signals)
        assert np.mean([one.value for one in found]) == pytest.approx(truth, rel=0.03)
        assert np.mean([one.low <= truth <= one.high for one in found]) > 0.85


def test_where_there_is_no_signal_nothing_is_resolved_and_all_numbers_are_finite() -> None:
    nothing = gaussians(1, 0.0, 1.0, 1.0)
    nothing[1] = 0.0
    signal = GradientSignal.of(gram(nothing), 0)
    assert (signal.snr(0, 16).low, signal.snr(1, 16).value) == (0.0, 0.0)
    assert signal.cosine(0, 1) is None and signal.snr_ratio(0, 1) is None
    measured = MeasuredEstimators(("x", "grpo"), np.ones((3, 2)), gram(nothing), None, "run@0", (), 0)
    analysis = analyse_estimators(measured)
    assert "not resolved" in analysis.verdicts[0]
    assert all(np.isfinite(cell) for row in analysis.tables[0].rows for cell in row if isinstance(cell, float))


def test_a_dearer_estimator_gets_fewer_groups_for_the_price_of_the_runs_own() -> None:
    prices = np.array([[8.0, 8.0], [150.0, 100.0], [300.0, 100.0]])
    measured = MeasuredEstimators(("x", "grpo"), prices, gram(gaussians(0, 1.0, 1.0, 1.0)), None, "run@0", (), 0)
    rows = analyse_estimators(measured).tables[0].rows
    assert [row[3] for row in rows] == [GROUPS, GROUPS, GROUPS, GROUPS, 1.5 * GROUPS, 3 * GROUPS]


def test_estimators_are_the_own_algorithm_grpo_and_each_other_choice() -> None:
    recipe = load_recipe(ROOT / "recipes/quickstart.yaml")
    assert isinstance(recipe, Recipe)
    found, refused = estimators_of(MrtOnline(type="mrt_online", credit="to_go"), recipe)
    names = [estimator.name for estimator in found]
    assert names[:3] == ["mrt_online, the run's own", "grpo", "grpo, normalise: group_std"]
    assert {"credit: episode", "credit: permuted", "baseline: prefix", "normalise: batch_std"} < {*names}
    assert [text.partition(" is left out")[0] for text in refused] == ["credit: area"]
    assert [estimator.pays_for_branches for estimator in found[:2]] == [True, False]

    class Own(MrtOnline):
        """Of the user's own, which the package's form and its other choices follow."""

    names = [estimator.name for estimator in estimators_of(Own(type="mrt_online"), recipe)[0]]
    assert names[:2] == ["mrt_online, the run's own", "mrt_online"] and "credit: permuted" in names


def test_what_learns_the_same_of_these_groups_is_measured_once() -> None:
    """Each group has a right and a wrong trace: what ``without_outcome`` does to others changes nothing here."""
    traces = [
        rollout_with([5] * 6, problem_id=problem, sample=sample, reward=float(sample), boundaries=[0, 2, 4])
        for problem in "ab"
        for sample in (0, 1)
    ]
    batch = Batch(traces, [{0: 0.5, 1: 0.25 * n, 2: 0.5 + 0.1 * n} for n in range(4)], [], "", np.zeros(0), [])
    asked, _ = estimators_of(MrtOnline(type="mrt_online"), recipe("quickstart"))
    found, equal = distinct(asked, batch, 0)
    names = [estimator.name for estimator, _ in found]
    assert len(found) + len(equal) == len(asked)
    of_outcome = [text for text in equal if text.startswith("without_outcome: ")]
    assert len(of_outcome) == 2 and all(text.endswith("what mrt_online, the run's own does") for text in of_outcome)
    assert {"grpo", "credit: to_go", "credit: constant", "baseline: prefix"} < {*names}
    free = [GradientEstimator(name, Grpo()) for name in ("grpo", "the same")]
    paid = GradientEstimator("at another price", MrtOnline(type="mrt_online", alpha=0.0, normalise=Grpo().normalise))
    found, equal = distinct([*free, paid], batch, 0)
    assert [estimator.name for estimator, _ in found] == ["grpo", "at another price"] and len(equal) == 1


def test_a_projection_keeps_products() -> None:
    """Off by about |a| |b| / sqrt(KEPT), and the same for the same seed; a small gradient is kept whole."""
    draw = torch.Generator().manual_seed(0)
    ours = [torch.randn(shape, generator=draw) for shape in [(700, 1000), (WHOLE // 1000, 1000)]]
    theirs = [tensor + torch.randn(tensor.shape, generator=draw) for tensor in ours]
    whole = [torch.cat([tensor.flatten() for tensor in side]).double().numpy() for side in (ours, theirs)]
    kept = [kept_numbers(side, 1).astype(np.float64) for side in (ours, theirs)]
    norms = np.linalg.norm(whole[0]) * np.linalg.norm(whole[1])
    assert len(kept[0]) == KEPT and abs(kept[0] @ kept[1] - whole[0] @ whole[1]) < 3 * norms / KEPT**0.5
    assert (kept_numbers(ours, 1) == kept[0]).all() and kept_numbers(ours[:1], 1).size == 700_000
