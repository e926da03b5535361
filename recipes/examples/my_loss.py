"""A loss of a user's own, as it lies beside a recipe. Nothing of the package names it.

docs/extending.md explains it; tests/unit/test_losses.py computes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from mrt_hpc import Loss, LossTokens

if TYPE_CHECKING:
    from torch import Tensor


class SoftGate(Loss):
    """The gradient of a token fades as its ratio leaves 1, where ``clipped`` ends it at once.

    Source: SAPO (arXiv 2511.20347), with one sharpness, there called a temperature, for both signs of the advantage.
    """

    type: str
    sharpness: Annotated[float, Field(gt=0)] = 1.0
    """The speed at which the gradient fades."""

    def objective(self, tokens: LossTokens) -> Tensor:
        """w A (4 / sharpness) sigmoid(sharpness (rho - 1)): at rho = 1 with the gradient of ``clipped``."""
        gate = (self.sharpness * (tokens.ratio - 1.0)).sigmoid() * (4.0 / self.sharpness)
        return tokens.weight * gate * tokens.advantages
