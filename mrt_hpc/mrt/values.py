"""The value of a prefix: the mean reward of the prover mu from it, its probability of success where rewards are 0 or 1
(paper, Section 4).

Each estimator works on one prefix, whatever its tokens; :mod:`mrt_hpc.inference` samples the branches. The authors'
is ``monte_carlo``; ``majority`` estimates maj@p, not V. The page of the method has the formulas.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Estimate:
    value: float
    variance: float
    """Over repeated draws of the branches; NaN where a single branch gives no estimate of it."""
    terms: tuple[float, ...] = ()
    """[G] the term of each branch, in their order: the value is their mean plus the exact part."""


@dataclass(frozen=True)
class KnownAnswer:
    """An answer fixed before the branches were drawn."""

    probability: float
    """p(a) under mu, of exactly this sequence of tokens, including its end."""
    reward: float
    """r(a)."""


@dataclass(frozen=True)
class Vote:
    """One branch of a majority."""

    answer: str | None
    """Equal answers vote together, None votes for nothing."""
    reward: float
    weight: float
    """The mean probability of its tokens."""


def monte_carlo(rewards: Sequence[float]) -> Estimate:
    """V as the mean reward of G branches.

    Args:
        rewards: [G]

    Raises:
        ValueError: there is no branch.

    Source: paper, Section 4 (J_r of the meta-prover), with the G branches of the authors' code.
    """
    if not rewards:
        raise ValueError("a value needs at least one branch")
    return _mean_estimate(rewards)


def likelihood(known: Iterable[KnownAnswer]) -> Estimate:
    """V as the probability that mu gives to the right ones among the answers known beforehand.

    A lower bound of mu's success: right answers written in other ways are left out.

    Source: not in the paper.
    """
    return Estimate(sum(a.probability * a.reward for a in known), 0.0)


def confident_likelihood(gold: float, confidences: Sequence[float]) -> Estimate:
    """The potential 1.5 a c + 0.5 a - c of a prefix, from -1 to 1.

    Args:
        gold: a, the probability of the gold answer.
        confidences: [G] c of each branch, the geometric mean of its tokens' probabilities.

    Raises:
        ValueError: there is no branch.

    Source: SPAE (arXiv 2601.03823), the authors' example of a probe, whose c is exp(-mean entropy): the mean
    log-probability estimates it.
    """
    if not confidences:
        raise ValueError("a confidence needs at least one branch")
    return _mean_estimate([(1.5 * gold - 1.0) * c for c in confidences], 0.5 * gold)


def rao_blackwell(known: Sequence[KnownAnswer], unknown_rewards: Sequence[float | None], baseline: float) -> Estimate:
    """V, exactly for the set S of known answers and by branches for the rest of the mass.

        V = sum_{a in S} p(a) r(a) + b (1 - p(S)) + mean over branches of 1[a not in S] (r(a) - b)

    Unbiased when S and b were fixed before the branches, and their number was chosen independently of them.

    Args:
        known: S, each a different sequence of tokens.
        unknown_rewards: [G] for each branch r(a), or None where a is in S.
        baseline: b, the expected reward outside S.

    Raises:
        ValueError: there is no branch, and S leaves probability mass.

    Source: not in the paper (Rao-Blackwell with a control variate).
    """
    mass = min(1.0, sum(a.probability for a in known))
    exact = likelihood(known).value + baseline * (1.0 - mass)
    if not unknown_rewards:
        if mass < 1.0 - NEGLIGIBLE_MASS:
            raise ValueError(
                f"{1 - mass:.3g} of the probability mass is unknown, and there is no branch to estimate it"
            )
        return Estimate(exact, 0.0)
    terms = [0.0 if r is None else r - baseline for r in unknown_rewards]
    return _mean_estimate(terms, exact)


NEGLIGIBLE_MASS = 1e-3
"""The most mass outside S that needs no branch; also the largest bias that this can cause."""


@dataclass(frozen=True)
class BranchStep:
    """One token of a branch, with the candidates that look-ahead examined."""

    probabilities: NDArray[np.float64]
    """[C] of the examined candidates; their sum may be below 1."""
    forecasts: NDArray[np.float64]
    """[C] h, the forecast reward of each candidate, fixed before the token was drawn."""
    taken: int | None
    """The index of the drawn candidate; None for a token that was not examined, whose forecast is 0."""


def look_ahead(steps: Sequence[BranchStep]) -> float:
    """The correction of a branch's reward: the sum over its tokens of E[h] - h(token drawn).

    Each term has mean zero given the tokens before it, whatever h is, so the mean of r + this over branches is an
    unbiased V. The better h predicts the reward, the smaller the variance: with the right forecast at the deciding
    token, the drawn reward is replaced by its exact expectation there.

    Source: not in the paper (a control variate along the branch).
    """
    return float(sum(s.probabilities @ s.forecasts - (0.0 if s.taken is None else s.forecasts[s.taken]) for s in steps))


def majority(votes: Sequence[Vote]) -> Estimate:
    """maj@p: the reward of the answer with the greatest weight; tied answers share. A tie between right and wrong
    counts one half, as in the authors' code.

    Args:
        votes: [p] the branches.

    Raises:
        ValueError: there is no branch.

    Source: paper, Section 5 (maj@p at a prefix).
    """
    if not votes:
        raise ValueError("a majority needs at least one branch")
    weights: dict[str, float] = {}
    rewards: dict[str, float] = {}
    for vote in votes:
        if vote.answer is not None:
            weights[vote.answer] = weights.get(vote.answer, 0.0) + vote.weight
            rewards[vote.answer] = vote.reward
    if not weights:
        return Estimate(0.0, float("nan"))
    most = max(weights.values())
    winners = {rewards[answer] for answer, weight in weights.items() if np.isclose(weight, most)}
    return Estimate(winners.pop() if len(winners) == 1 else 0.5, float("nan"))


def variance_of_progress(before: Estimate, after: Estimate) -> float:
    """The variance of the difference ``after`` - ``before`` over repeated draws of their branches.

    Branches with the same index may share their random numbers, and the common part of their noise cancels; for
    independent draws it is the sum of the two variances. An unbiased estimate, so it may be negative for one pair; NaN
    where one of the variances is.

    Source: not in the paper.
    """
    sizes = len(before.terms), len(after.terms)
    pairs = min(sizes)
    shared = 0.0
    if pairs > 1:
        covariance = float(np.cov(before.terms[:pairs], after.terms[:pairs])[0, 1])
        shared = covariance * pairs / (sizes[0] * sizes[1])
    return before.variance + after.variance - 2.0 * shared


def _mean_estimate(terms: Sequence[float], exact: float = 0.0) -> Estimate:
    count = len(terms)
    variance = float(np.var(terms, ddof=1) / count) if count > 1 else float("nan")
    return Estimate(exact + float(np.mean(terms)), variance, tuple(terms))
