r"""mu is made to begin its answer inside ``\boxed{``."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from mrt_hpc.provers.base import BoxedProver
from mrt_hpc.provers.branches import Branches
from mrt_hpc.provers.monte_carlo import MonteCarlo

if TYPE_CHECKING:
    from mrt_hpc.provers.base import ProverTools


class BoxedAnswer(BoxedProver):
    r"""Like forced_answer, but the answer begins inside ``\boxed{`` and ends where the box closes: branches of a few
    tokens.
    """

    rewards_each_branch: ClassVar[bool] = True
    type: Literal["boxed_answer"] = "boxed_answer"

    def estimator(self, tools: ProverTools) -> MonteCarlo:
        """G branches at each boundary, each to the end of its box."""
        return MonteCarlo(Branches(tools.fork, tools.closing), self.branches)
