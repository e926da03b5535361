"""Signal, noise and direction of gradients, from their inner products alone.

|mu|^2     mean of g_l . g_m over groups l != m
V          mean of |g_m|^2, less |mu|^2
SNR(N)   = sqrt(N |mu|^2 / V), of the mean of N groups
"""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
DRAWS = 1000
MOST_UNRESOLVED = 0.025
"""The share of draws without a signal with which a cosine is resolved."""
LEAST_NOISE = 1e-12
"""V is at least so much of |mu|^2: rounding."""


@dataclass(frozen=True)
class Interval:
    """95 %, over problems."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class GradientSignal:
    groups: int
    products: FloatArray
    """[1 + DRAWS, E, E] mu_a . mu_b, first of the groups themselves."""
    noises: FloatArray
    """[1 + DRAWS, E] V."""

    @staticmethod
    def of(gram: FloatArray, seed: int) -> "GradientSignal":
        """``gram``: [E, M, E, M] inner products of E estimators on M groups, at least 2."""
        groups = gram.shape[1]
        draws = np.random.default_rng(seed).multinomial(groups, np.full(groups, 1 / groups), DRAWS)
        weights = np.concatenate([np.ones((1, groups)), draws[(draws > 0).sum(1) > 1]])
        products = mean_products(gram, weights)
        squares = np.einsum("aiai->ai", gram) @ weights.T / groups
        return GradientSignal(groups, products, squares.T - np.einsum("kaa->ka", products))

    def snr(self, estimator: int, batch: float) -> Interval:
        return _interval(np.sqrt(batch * self._signals(estimator)))

    def snr_ratio(self, first: int, second: int, prices: tuple[float, float] = (1.0, 1.0)) -> Interval | None:
        """Where both spend the same, by the price of a group."""
        one, other = self._signals(first) / prices[0], self._signals(second) / prices[1]
        found = other > 0
        return _resolved(np.sqrt(one[found] / other[found]), found)

    def cosine(self, first: int, second: int) -> Interval | None:
        """None where it is not resolved."""
        squares = self.products[:, first, first], self.products[:, second, second]
        found = (squares[0] > 0) & (squares[1] > 0)
        cosines = self.products[found, first, second] / np.sqrt(squares[0][found] * squares[1][found])
        return _resolved(cosines.clip(-1, 1), found)

    def _signals(self, estimator: int) -> FloatArray:
        """[1 + DRAWS] |mu|^2 / V, at least 0."""
        squared = self.products[:, estimator, estimator].clip(min=0)
        noise = np.maximum(self.noises[:, estimator], LEAST_NOISE * squared)
        return np.divide(squared, noise, out=np.zeros_like(squared), where=squared > 0)


def mean_products(gram: FloatArray, weights: FloatArray) -> FloatArray:
    """[K, E, E] mu_a . mu_b, where group m counts ``weights[:, m]`` times.

    Source: not in the paper; a U-statistic.
    """
    estimators = range(len(gram))
    squares = weights**2  # a group that was drawn twice is still one group
    pairs = weights.sum(1) ** 2 - squares.sum(1)
    products = np.zeros((len(weights), len(gram), len(gram)))
    for one, other in itertools.product(estimators, estimators):
        of_groups = gram[one, :, other]
        total = ((weights @ of_groups) * weights).sum(1) - squares @ np.diagonal(of_groups)
        products[:, one, other] = total / pairs
    return (products + products.transpose(0, 2, 1)) / 2


def alignment(snr: Interval) -> Interval:
    """The cosine of a batch's gradient and mu.

    Source: not in the paper.
    """
    value, low, high = (float(x / np.sqrt(1 + x * x)) for x in (snr.value, snr.low, snr.high))
    return Interval(value, low, high)


def _resolved(values: FloatArray, found: NDArray[np.bool_]) -> Interval | None:
    return _interval(values) if found[0] and found.mean() >= 1 - MOST_UNRESOLVED else None


def _interval(values: FloatArray) -> Interval:
    low, high = np.percentile(values[1:], (2.5, 97.5))
    return Interval(float(values[0]), float(low), float(high))
