"""V as a mean over sampled branches: what several provers share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mrt_hpc.inference.traces import BoundaryPlan, Valuation
from mrt_hpc.mrt.values import Estimate, monte_carlo

if TYPE_CHECKING:
    from mrt_hpc.inference.traces import SampledTrace
    from mrt_hpc.provers.base import GradedBoundary
    from mrt_hpc.provers.branches import Branches


@dataclass(frozen=True)
class MonteCarlo:
    """V as the mean reward of G branches."""

    votes: ClassVar[bool] = False
    branches: Branches
    count: int
    """G"""

    async def value(self, trace: SampledTrace) -> Valuation:
        """G branches at every boundary, in one request."""
        boundaries = self.branches.fork.boundaries(trace)
        drawn = await self.branches.draw(trace, dict.fromkeys(boundaries, range(self.count)))
        return Valuation([BoundaryPlan(j, self.count, 0.0) for j in boundaries], drawn)

    def estimate(self, graded: GradedBoundary) -> Estimate:
        """The mean reward."""
        return monte_carlo([b.reward for b in graded.branches])
