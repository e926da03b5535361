"""mu is stopped by a short text and samples an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from mrt_hpc.provers.base import SamplingProver
from mrt_hpc.provers.branches import Branches
from mrt_hpc.provers.monte_carlo import MonteCarlo

if TYPE_CHECKING:
    from mrt_hpc.provers.base import ProverTools


class ForcedAnswer(SamplingProver):
    """mu stops the thought with a short text and samples an answer; V is the mean reward of the branches.

    Source: paper, Section 5 and 6 (the prover mu).
    """

    answers_freely: ClassVar[bool] = True
    rewards_each_branch: ClassVar[bool] = True
    type: Literal["forced_answer"] = "forced_answer"

    def estimator(self, tools: ProverTools) -> MonteCarlo:
        """G branches at each boundary."""
        return MonteCarlo(Branches(tools.fork), self.branches)
