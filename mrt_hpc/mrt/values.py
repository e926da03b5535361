"""The value of a prefix: the probability that the prover mu answers correctly from it (paper, Section 4.2).

V_j = J_r(mu(. | x, c_j)), estimated here by the mean reward of G branches. The standard error of one value is sqrt(V (1
- V) / G): up to 0.25 at G = 4, hence up to 0.35 for the difference of two, which is why the estimator matters so much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


def mean_rewards(rewards: Mapping[int, Sequence[float]], boundaries: int) -> NDArray[np.float64]:
    """Monte Carlo values of all prefixes of one trace.

    Args:
        rewards: for each boundary j its G branch rewards.
        boundaries: k + 1, how many there must be.

    Returns:
        [k + 1] V_0 .. V_k.

    Raises:
        ValueError: a boundary has no branch.
    """
    missing = [j for j in range(boundaries) if not rewards.get(j)]
    if missing:
        raise ValueError(f"boundaries {missing} of {boundaries} have no branch to estimate their value from")
    return np.array([np.mean(rewards[j]) for j in range(boundaries)], dtype=np.float64)


def standard_errors(rewards: Mapping[int, Sequence[float]], boundaries: int) -> NDArray[np.float64]:
    """[k + 1] standard error of each mean reward; NaN where a single branch tells nothing of the spread."""
    return np.array([_standard_error(rewards[j]) for j in range(boundaries)], dtype=np.float64)


def _standard_error(sample: Sequence[float]) -> float:
    return float(np.std(sample, ddof=1) / np.sqrt(len(sample))) if len(sample) > 1 else float("nan")
