"""Simulated evaluations with a known truth: problems are drawn from a population, and samples from each problem.

A population has finitely many problems, so that the truth, a mean over all of them, is computed and not sampled.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from math import factorial, prod

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.analysis import intervals
from mrt_hpc.analysis.efficiency import ModelEfficiency, tokens_to
from mrt_hpc.analysis.intervals import IntervalEstimate
from mrt_hpc.mrt.regret import TraceCurve, area_of_episodes, first_reached
from mrt_hpc.mrt.votes import AnswerCounts, majority_at_k

FloatArray = NDArray[np.float64]
Drawn = tuple[NDArray[np.int64], NDArray[np.int64]]

SIZE = 2000  # problems of a population
POOL = 8  # the traces that a problem may have, where they are valued
LENGTHS = 64  # completions that a problem may have, where only their lengths count
BUDGET = 8192
BRANCHES = 4
KEPT = 2  # episodes of a trace that is stopped
LONGEST = 16384
VOTERS = 4
STEPS = 64  # in which the allowed tokens grow


@dataclass(frozen=True)
class Mixture:
    """How hard problems are: a mixture of beta distributions of the chance that a sample is right."""

    name: str
    parts: tuple[tuple[float, float, float], ...]  # (weight, alpha, beta)

    def chances(self, rng: np.random.Generator, size: int = SIZE) -> FloatArray:
        weights, alphas, betas = np.array(self.parts).T
        part = rng.choice(len(weights), size, p=weights)
        return rng.beta(alphas[part], betas[part])


AIME = Mixture("like AIME", ((0.5, 0.3, 8), (0.3, 1, 1.5), (0.2, 5, 1)))
AMC = Mixture("like AMC", ((0.25, 0.5, 4), (0.25, 2, 1), (0.5, 8, 0.6)))
MATH500 = Mixture("like MATH500", ((0.1, 0.4, 5), (0.2, 1.5, 1), (0.7, 20, 0.6)))
VERY_HARD = Mixture("very hard", ((0.75, 0.3, 20), (0.2, 1, 3), (0.05, 6, 2)))
HARD = Mixture("hard", ((0.9, 0.3, 20), (0.1, 1, 3)))  # its mean is 4 %
REALISTIC = (AIME, AMC, MATH500)


@dataclass(frozen=True)
class Experiment:
    measure: str
    population: str
    samples: int  # of each problem
    truth: float
    values: Callable[[np.random.Generator, int], FloatArray]
    """Draws so many problems and their samples, and gives the measure of each; for a difference, its gain."""
    interval: Callable[[FloatArray], IntervalEstimate] = field(default=intervals.share_interval)

    def by(self, interval: Callable[[FloatArray], IntervalEstimate]) -> "Experiment":
        return replace(self, interval=interval)

    def covered(self, trials: int, problems: int, seed: int) -> "Coverage":
        rng = np.random.default_rng([seed, problems, self.samples])
        estimates = [self.interval(self.values(rng, problems)) for _ in range(trials)]
        low, high = np.array([[e.low, e.high] for e in estimates]).T
        widths = np.subtract(high, low, out=np.full_like(high, np.inf), where=np.isfinite(high))
        return Coverage(float((self.truth < low).mean()), float((self.truth > high).mean()), float(widths.mean()))


@dataclass(frozen=True)
class Coverage:
    """Shares of the trials."""

    below: float  # in which the truth lies below the interval
    above: float
    width: float  # of the interval, mean; infinite where an interval has no end

    @property
    def share(self) -> float:
        return 1.0 - self.below - self.above


def gain_interval(gains_P: FloatArray) -> IntervalEstimate:
    after = dict(enumerate(gains_P.tolist()))
    return intervals.paired_difference({str(i): 0.0 for i in after}, {str(i): gain for i, gain in after.items()})


def pass_1(mixture: Mixture, samples: int) -> Experiment:
    chances = mixture.chances(np.random.default_rng(1))

    def values(rng: np.random.Generator, problems: int) -> FloatArray:
        return rng.binomial(samples, rng.choice(chances, problems)) / samples

    return Experiment("pass@1", mixture.name, samples, float(chances.mean()), values)


def pass_k(mixture: Mixture, samples: int) -> Experiment:
    chances = mixture.chances(np.random.default_rng(1))
    by_count = np.array([intervals.pass_at_k(samples, right, VOTERS) for right in range(samples + 1)])

    def values(rng: np.random.Generator, problems: int) -> FloatArray:
        return by_count[rng.binomial(samples, rng.choice(chances, problems))]

    truth = float((1 - (1 - chances) ** VOTERS).mean())
    return Experiment(f"pass@{VOTERS}", mixture.name, samples, truth, values)


def difference(mixture: Mixture, samples: int) -> Experiment:
    """Paired difference of pass@1: the log-odds of a problem change by 0.2 on average, with a spread of 0.8."""
    rng = np.random.default_rng(2)
    before = mixture.chances(rng).clip(1e-6, 1 - 1e-6)
    after = 1 / (1 + np.exp(-np.log(before / (1 - before)) - rng.normal(0.2, 0.8, SIZE)))

    def values(rng: np.random.Generator, problems: int) -> FloatArray:
        drawn = rng.integers(SIZE, size=problems)
        return (rng.binomial(samples, after[drawn]) - rng.binomial(samples, before[drawn])) / samples

    truth = float((after - before).mean())
    return Experiment("paired difference", mixture.name, samples, truth, values, gain_interval)


# -- votes


def maj_k(mixture: Mixture, samples: int) -> Experiment:
    """maj@4, with three wrong answers, of which one is more frequent, and samples without an answer."""
    shares = answer_shares(mixture)

    def values(rng: np.random.Generator, problems: int) -> FloatArray:
        counts = rng.multinomial(samples, shares[rng.integers(SIZE, size=problems)])
        return np.array([majority_at_k(_counts(row), VOTERS) for row in counts.tolist()])

    return Experiment(f"maj@{VOTERS}", mixture.name, samples, true_majority(shares), values)


def _counts(row: Sequence[int]) -> AnswerCounts:
    right, *wrong, none = row
    return AnswerCounts(right, tuple(sorted((w for w in wrong if w), reverse=True)), none)


def answer_shares(mixture: Mixture) -> FloatArray:
    """[SIZE, 5] the chances of the right answer, of three wrong ones, and of none."""
    rng = np.random.default_rng(3)
    right = mixture.chances(rng)[:, None]
    return np.hstack([right, (1 - right) * rng.dirichlet([1.5, 0.7, 0.4, 0.5], SIZE)])


def true_majority(shares: FloatArray) -> float:
    """The mean chance that a vote of new samples is right, by all that so many samples can answer."""
    total = np.zeros(len(shares))
    for votes in product(range(VOTERS + 1), repeat=shares.shape[1]):
        if sum(votes) == VOTERS and votes[0]:
            ways = factorial(VOTERS) / prod(map(factorial, votes))
            most = max(votes[:-1])
            outcome = (votes[0] == most) / votes[:-1].count(most)
            total += outcome * ways * np.prod(shares ** np.array(votes), axis=1)
    return float(total.mean())


# -- regret and tokens


@dataclass(frozen=True)
class ValuedPool:
    values: FloatArray  # [size, POOL, K] true values; K is the most that a trace has
    weights: FloatArray  # [size, POOL, K] what each value adds to the area
    stopped: FloatArray  # [size, POOL, K] what it adds to the area of the first ``KEPT`` episodes
    episodes: NDArray[np.int64]  # [size, POOL] the episodes of each trace

    def drawn(self, rng: np.random.Generator, problems: int, samples: int) -> tuple[Drawn, FloatArray]:
        """Problems and traces, as an index of [problems, samples], and their values as the branches show them."""
        problem = np.repeat(rng.integers(len(self.values), size=problems), samples).reshape(problems, samples)
        trace = rng.integers(POOL, size=problem.shape)
        return (problem, trace), rng.binomial(BRANCHES, self.values[problem, trace]) / BRANCHES


def regret(mixture: Mixture, samples: int) -> Experiment:
    """Normalised regret; each value is the mean of four branches."""
    pool = valued_pool(mixture)

    def values(rng: np.random.Generator, problems: int) -> FloatArray:
        drawn, seen = pool.drawn(rng, problems, samples)
        return 1 - (seen * pool.weights[drawn]).sum(axis=2).mean(axis=1)

    truth = 1 - float((pool.values * pool.weights).sum(axis=2).mean())
    return Experiment("regret", mixture.name, samples, truth, values)


def area_ratio(mixture: Mixture, samples: int) -> Experiment:
    """The area of the first episodes, divided by that of whole traces."""
    pool = valued_pool(mixture)

    def values(rng: np.random.Generator, problems: int) -> FloatArray:
        drawn, seen = pool.drawn(rng, problems, samples)
        areas = [(seen * weights[drawn]).sum(axis=2).mean(axis=1) for weights in (pool.stopped, pool.weights)]
        return np.stack(areas, axis=1)

    truth = float((pool.values * pool.stopped).sum() / (pool.values * pool.weights).sum())
    return Experiment(
        "area ratio", mixture.name, samples, truth, values, lambda areas_P2: intervals.ratio_interval(*areas_P2.T)
    )


def later_progress(mixture: Mixture, samples: int) -> Experiment:
    """The progress of the third episode, which not all traces have."""
    pool = valued_pool(mixture)
    missing = pool.episodes <= KEPT

    def values(rng: np.random.Generator, problems: int) -> FloatArray:
        drawn, seen = pool.drawn(rng, problems, samples)
        return np.where(missing[drawn], np.nan, seen[:, :, KEPT + 1] - seen[:, :, KEPT])

    def interval(gains_Pn: FloatArray) -> IntervalEstimate:
        found = [gains[~np.isnan(gains)].tolist() for gains in gains_Pn]
        return intervals.clustered_mean([gains for gains in found if gains])

    truth = float((pool.values[:, :, KEPT + 1] - pool.values[:, :, KEPT])[~missing].mean())
    return Experiment("progress", mixture.name, samples, truth, values, interval)


@cache
def valued_pool(mixture: Mixture, size: int = 500) -> ValuedPool:
    rng = np.random.default_rng(4)
    most = 9
    values, weights, stopped = np.zeros((3, size, POOL, most))
    episodes = np.zeros((size, POOL), int)
    for i, chance in enumerate(mixture.chances(rng, size)):
        for t in range(POOL):
            curve = random_curve(rng, chance, most)
            k = len(curve.tokens)
            units = [TraceCurve(curve.tokens, unit) for unit in np.eye(k)]
            values[i, t, :k], episodes[i, t] = curve.values, k - 1
            weights[i, t, :k] = [area_of_episodes(unit, k, BUDGET) for unit in units]
            stopped[i, t, :k] = [area_of_episodes(unit, KEPT, BUDGET) for unit in units]
    return ValuedPool(values, weights, stopped, episodes)


def random_curve(rng: np.random.Generator, chance: float, most: int) -> TraceCurve:
    episodes = int(min(most - 1, 1 + rng.poisson(2 + 4 * (1 - chance))))
    tokens = np.concatenate([[0.0], np.cumsum(rng.lognormal(6.5, 0.6, episodes))])
    found = rng.integers(1, episodes + 1) if rng.random() < chance else most
    return TraceCurve(tokens, np.where(np.arange(episodes + 1) >= found, 0.95, 0.4 * chance))


def tokens(mixture: Mixture, samples: int) -> Experiment:
    """The length of a completion, cut at its limit; harder problems have longer ones."""
    rng = np.random.default_rng(5)
    mean = 7.0 + 1.5 * (1 - mixture.chances(rng)) + rng.normal(0, 0.3, SIZE)
    lengths = np.minimum(LONGEST, rng.lognormal(mean[:, None], 0.5, (SIZE, LENGTHS)))

    def values(rng: np.random.Generator, problems: int) -> FloatArray:
        drawn = lengths[rng.integers(SIZE, size=problems)[:, None], rng.integers(LENGTHS, size=(problems, samples))]
        return drawn.mean(axis=1)

    return Experiment("tokens", mixture.name, samples, float(lengths.mean()), values, intervals.mean_interval)


def tokens_to_accuracy(mixture: Mixture, samples: int) -> Experiment:
    """The tokens within which half of the best accuracy is reached; a trace that is cut is wrong."""
    rng = np.random.default_rng(6)
    chances = mixture.chances(rng)
    mean = 7.0 + 1.5 * (1 - chances) + rng.normal(0, 0.3, SIZE)
    lengths = np.minimum(LONGEST, rng.lognormal(mean[:, None], 0.5, (SIZE, LENGTHS)))
    allowed = np.linspace(0.0, LONGEST, STEPS + 1)
    within = chances[:, None] * (lengths[:, :, None] <= allowed).mean(axis=1)  # [SIZE, STEPS + 1]
    level = float(chances.mean()) / 2

    def values(rng: np.random.Generator, problems: int) -> FloatArray:
        problem = np.repeat(rng.integers(SIZE, size=problems), samples).reshape(problems, samples)
        right = rng.random(problem.shape) < chances[problem]
        ended = lengths[problem, rng.integers(LENGTHS, size=problem.shape)][:, :, None] <= allowed
        return np.asarray((right[:, :, None] & ended).mean(axis=1))

    def interval(accuracy_PC: FloatArray) -> IntervalEstimate:
        (found,) = tokens_to([ModelEfficiency("model", allowed, accuracy_PC)], level, seed=0)
        return found.tokens

    truth = float(first_reached(allowed, within.mean(axis=0)[None], level)[0])
    return Experiment("tokens to an accuracy", mixture.name, samples, truth, values, interval)


MAKERS = {
    "pass@1": pass_1, "pass@4": pass_k, "maj@4": maj_k, "paired difference": difference, "regret": regret,
    "area ratio": area_ratio, "progress": later_progress, "tokens": tokens,
    "tokens to an accuracy": tokens_to_accuracy,
}  # fmt: skip


def experiments(mixtures: Sequence[Mixture] = REALISTIC, samples: Sequence[int] = (64, 20, 4)) -> Iterator[Experiment]:
    """Every measure on every population with every number of samples; those that are dear, with few."""
    for make, mixture, count in product(MAKERS.values(), mixtures, samples):
        if make not in (regret, area_ratio, later_progress, tokens_to_accuracy) or count <= 20:
            yield make(mixture, count)
