"""How much of a batch's gradient is signal, and whether two estimators go to the same place, from inner products alone.

With g_m the gradient of group m (one problem) by one estimator, mu its mean over problems and V the trace of its
covariance, M groups measured and N groups in a batch:

    |mu|^2       mean of g_l . g_m over l != m        products of different problems alone, so without bias
    V            mean of |g_m|^2, less |mu|^2
    SNR(N)     = sqrt(N |mu|^2 / V)                   of the mean gradient of N groups
    alignment  = SNR / sqrt(1 + SNR^2)                cosine of that gradient and mu, where there are many dimensions
    cosine     = mu_a . mu_b / (|mu_a| |mu_b|)

The cosine says whether two estimators go to the same place, and the ratio of their SNR which gets there sooner. An
estimator whose group costs c times as many tokens has N / c groups for the price of N.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
DRAWS = 1000
MOST_UNRESOLVED = 0.025
"""The share of draws without a signal above which a cosine or a ratio is not resolved."""
LEAST_NOISE = 1e-12
"""V is at least so much of |mu|^2: groups whose gradients are all equal differ by rounding."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval over problems."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class GradientSignal:
    """E estimators over the same M groups, and over ``DRAWS`` bootstrap samples of these groups."""

    groups: int
    """M."""
    products: FloatArray
    """[1 + DRAWS, E, E] mu_a . mu_b; the first are of the groups themselves."""
    noises: FloatArray
    """[1 + DRAWS, E] V."""

    @staticmethod
    def of(gram: FloatArray, seed: int) -> "GradientSignal":
        """``gram``: [E, M, E, M] the inner products of all gradients; M is at least 2."""
        groups = gram.shape[1]
        draws = np.random.default_rng(seed).multinomial(groups, np.full(groups, 1 / groups), DRAWS)
        weights = np.concatenate([np.ones((1, groups)), draws[(draws > 0).sum(1) > 1]])
        products = mean_products(gram, weights)
        squares = np.einsum("aiai->ai", gram) @ weights.T / groups
        return GradientSignal(groups, products, squares.T - np.einsum("kaa->ka", products))

    def snr(self, estimator: int, batch: float) -> Interval:
        """Of the gradient of ``batch`` groups; 0 where the groups show no signal."""
        return _interval(np.sqrt(batch * self._signals(estimator)))

    def snr_ratio(self, first: int, second: int, prices: tuple[float, float] = (1.0, 1.0)) -> Interval | None:
        """SNR of the first over that of the second where both spend the same, a group of each for its price."""
        one, other = self._signals(first) / prices[0], self._signals(second) / prices[1]
        found = other > 0
        return _resolved(np.sqrt(one[found] / other[found]), found)

    def cosine(self, first: int, second: int) -> Interval | None:
        """None where one of the two shows no signal that stands clear of its noise."""
        squares = self.products[:, first, first], self.products[:, second, second]
        found = (squares[0] > 0) & (squares[1] > 0)
        cosines = self.products[found, first, second] / np.sqrt(squares[0][found] * squares[1][found])
        return _resolved(cosines.clip(-1, 1), found)

    def _signals(self, estimator: int) -> FloatArray:
        """[1 + DRAWS] |mu|^2 / V, and 0 where |mu|^2 is not above 0."""
        squared = self.products[:, estimator, estimator].clip(min=0)
        noise = np.maximum(self.noises[:, estimator], LEAST_NOISE * squared)
        return np.divide(squared, noise, out=np.zeros_like(squared), where=squared > 0)


def mean_products(gram: FloatArray, weights: FloatArray) -> FloatArray:
    """[K, E, E] mu_a . mu_b from products of different groups, of which group m counts ``weights[:, m]`` times.

    Source: not in the paper; a U-statistic.
    """
    estimators, groups = gram.shape[:2]
    by_pair = gram.transpose(0, 2, 1, 3).reshape(estimators**2, groups**2)
    found = []
    for drawn in weights:
        pairs = np.outer(drawn, drawn)
        np.fill_diagonal(pairs, 0.0)  # a group that was drawn twice is still one group
        found.append((by_pair @ pairs.ravel() / pairs.sum()).reshape(estimators, estimators))
    products = np.array(found)
    return (products + products.transpose(0, 2, 1)) / 2


def alignment(snr: Interval) -> Interval:
    """The expected cosine of a batch's gradient and the mean gradient.

    Source: not in the paper.
    """
    value, low, high = (float(x / np.sqrt(1 + x * x)) for x in (snr.value, snr.low, snr.high))
    return Interval(value, low, high)


def _resolved(values: FloatArray, found: NDArray[np.bool_]) -> Interval | None:
    return _interval(values) if found[0] and found.mean() >= 1 - MOST_UNRESOLVED else None


def _interval(values: FloatArray) -> Interval:
    """Of the first value, by the percentiles of the others."""
    low, high = np.percentile(values[1:], (2.5, 97.5))
    return Interval(float(values[0]), float(low), float(high))
