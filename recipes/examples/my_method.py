"""An algorithm, a credit and a prover of a user's own, as they lie beside a recipe. Nothing of the package names them.

docs/extending.md explains both; tests/unit/test_own_classes.py runs them.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from mrt_hpc import (
    Batch,
    Branches,
    Estimate,
    GradedBoundary,
    Learnt,
    MonteCarlo,
    MrtOnline,
    ProverTools,
    Recipe,
    RolloutAlgorithm,
    SamplingProver,
    misfit,
    rollout_sequences,
    spread_over_tokens,
)


class LastEpisode(RolloutAlgorithm):
    """Every token gets the outcome reward, less the value that the trace had before its last episode."""

    needs_prover: ClassVar[bool] = True
    type: str
    weight: Annotated[float, Field(ge=0)] = 1.0
    """The weight of the value that is subtracted."""

    def learnt(self, batch: Batch) -> Learnt:
        """Every rollout with one advantage for all of its tokens."""
        advantages = [
            np.full(len(rollout.token_ids), rollout.reward - self.weight * values[-2])
            for rollout, values in zip(batch.rollouts, batch.value_arrays, strict=True)
        ]
        return Learnt(rollout_sequences(batch, advantages))

    def check(self, recipe: Recipe) -> None:
        """Refuse a thought without a second episode."""
        if recipe.episodes.max_episodes < 2:
            raise misfit("episodes.max_episodes", "at least 2 with this algorithm: it looks at the last episode")


class GainsOnly(MrtOnline):
    """MRT-online whose credit is the progress of episodes that gain value; a loss of value costs nothing."""

    type: str

    def token_credits(self, batch: Batch) -> list[NDArray[np.float64]]:
        """Return B arrays [T_i]: what alpha multiplies on each token."""
        traces = zip(batch.value_arrays, batch.credit_bounds, batch.lengths, strict=True)
        return [spread_over_tokens(np.diff(values).clip(min=0), bounds, n) for values, bounds, n in traces]


class Cautious(SamplingProver):
    """The mean reward of the branches, drawn towards one half as if there had been a right and a wrong one more."""

    type: str

    def estimator(self, tools: ProverTools) -> CautiousMean:
        """G branches at each boundary."""
        return CautiousMean(Branches(tools.fork), self.branches)


class CautiousMean(MonteCarlo):
    """Laplace's rule of succession."""

    def estimate(self, graded: GradedBoundary) -> Estimate:
        """(right + 1) / (G + 2)"""
        rewards = [branch.reward for branch in graded.branches]
        return Estimate((sum(rewards) + 1) / (len(rewards) + 2), float("nan"))
