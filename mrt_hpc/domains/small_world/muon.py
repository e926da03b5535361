"""Muon, which updates a matrix by its momentum with all singular values brought near one.

torch has an optimiser of the same rule, whose products are in bfloat16. On a CPU without instructions for that format,
such a product takes 25 times as long as one in 32 bits. This one keeps 32 bits, and takes matrices of the same shape
together.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import torch
from torch.optim import Optimizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor
    from torch.nn import Parameter

QUINTIC = (3.4445, -4.7750, 2.0315)
"""The coefficients of X, (X X^T) X and (X X^T)^2 X in one iteration, which raise small singular values fastest."""
ITERATIONS = 5
SMALLEST_NORM = 1e-7
RMS_OF_ADAMW = 0.2
"""The root mean square that AdamW's updates usually have, in learning rates."""


class Muon(Optimizer):
    """Muon with Nesterov momentum and without weight decay; the root mean square of its updates is that of AdamW's.

    Args:
        matrices: the parameters, each of two dimensions.
        learning_rate: of an update with a root mean square of ``RMS_OF_ADAMW``.
        momentum: the weight of the past in the running mean of the gradients.
    """

    def __init__(self, matrices: Iterable[Parameter], learning_rate: float, momentum: float) -> None:
        super().__init__(matrices, {"lr": learning_rate, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # there is no closure here
        """Update every matrix by its gradient."""
        for group in self.param_groups:
            for matrices in _of_the_same_shape(p for p in group["params"] if p.grad is not None):
                self._update(matrices, group["lr"], group["momentum"])

    def _update(self, matrices: list[Parameter], learning_rate: float, momentum: float) -> None:
        gradients = torch.stack([_wide(p.grad) for p in matrices if p.grad is not None])
        state = self.state[matrices[0]]
        mean = state.setdefault("momentum", torch.zeros_like(gradients)).lerp_(gradients, 1 - momentum)
        updates = orthogonal(gradients.lerp(mean, momentum))
        scale = RMS_OF_ADAMW * max(matrices[0].shape) ** 0.5
        for matrix, update in zip(matrices, updates, strict=True):
            _wide(matrix).add_(update, alpha=-learning_rate * scale)


def orthogonal(matrices: Tensor) -> Tensor:
    """[N, rows, columns], rows <= columns: the same singular vectors, with singular values of about 0.7 to 1.2."""
    first, third, fifth = QUINTIC
    x = matrices / torch.linalg.matrix_norm(matrices, keepdim=True).clamp(min=SMALLEST_NORM)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=third, alpha=fifth), x, beta=first)
    return x


def _of_the_same_shape(parameters: Iterable[Parameter]) -> list[list[Parameter]]:
    """The parameters by shape, where a matrix and its transpose count as one shape."""
    found: dict[tuple[int, ...], list[Parameter]] = defaultdict(list)
    for parameter in parameters:
        found[_wide(parameter).shape].append(parameter)
    return list(found.values())


def _wide(matrix: Tensor) -> Tensor:
    """A view with at least as many columns as rows."""
    return matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix
