"""The prover whose mu continues the thought freely from the prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from mrt_hpc.provers.base import SamplingProver
from mrt_hpc.provers.branches import Branches
from mrt_hpc.provers.monte_carlo import MonteCarlo
from mrt_hpc.recipe.base import Count

if TYPE_CHECKING:
    from mrt_hpc.provers.base import ProverTools


class Continuation(SamplingProver):
    """No forced text: mu continues freely from the prefix. The backtracking data need this value of a step.

    Source: paper, Appendix (backtracking).
    """

    thinks_on: ClassVar[bool] = True
    values_stopping: ClassVar[bool] = False
    type: Literal["continuation"] = "continuation"
    forced_text: Literal[""] = ""
    branches: Count = 20
    """G, the number of rollouts from each boundary."""

    def estimator(self, tools: ProverTools) -> MonteCarlo:
        """G rollouts from each boundary."""
        return MonteCarlo(Branches(tools.fork), self.branches)
