"""The vocabulary projection fused with the cross-entropy: log-probabilities of given tokens, without whole logits.

Forward keeps one number a row, the logarithm of the sum of exponentials. Backward computes the logits again piece by
piece; with p the softmax, g the gradient of a log-probability and T the temperature, their gradient is g (onehot - p) /
T. Sums over rows are in 32 bits.

It runs inside the call of the projection's own module: under ZeRO-3 its weight is gathered once in each direction.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from mrt_hpc.errors import UserError

LOGIT_ELEMENTS = 1 << 28
"""The most logits at once: 1 GiB in 32 bits."""


@dataclass(frozen=True)
class Scoring:
    temperature: float
    entropy: bool
    """Entropies are 0 where this is false."""
    rows: int
    """Rows whose logits exist at once."""
    dtype: torch.dtype
    """The number format of matrix products."""


def fuse(head: nn.Module, temperature: float, entropy: bool) -> None:
    """Make a plain projection return log-probabilities [S] and entropies [S] of hidden states [S, H] and
    token ids [S].
    """
    if not isinstance(head, nn.Linear) or head.bias is not None:
        raise UserError(
            "the projection of this model cannot be fused",
            value=type(head).__name__,
            where="training.projection",
            expected="a linear layer without bias",
            advice="--set training.projection=chunked",
        )
    linear = head

    def score(hidden: torch.Tensor, targets: torch.Tensor | None = None) -> Any:
        if targets is None:  # the model itself asks for its logits
            return F.linear(hidden, linear.weight)
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else linear.weight.dtype
        scoring = Scoring(temperature, entropy, max(1, LOGIT_ELEMENTS // linear.out_features), dtype)
        return _Score.apply(hidden, linear.weight, targets, scoring)

    setattr(head, "forward", score)  # noqa: B010  # hooks of the module stay around it


class _Score(torch.autograd.Function):
    """Log-probabilities, with gradient, and entropies, without."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, scoring: Scoring
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
        totals, entropies = torch.empty_like(logprobs), torch.zeros_like(logprobs)
        for part, logits in _logits(hidden, weight, scoring):
            totals[part] = torch.logsumexp(logits, -1)
            logprobs[part] = logits.gather(1, targets[part, None])[:, 0] - totals[part]
            if scoring.entropy:
                entropies[part] = _entropy(logits, totals[part])
        ctx.save_for_backward(hidden, weight, targets, totals)
        ctx.scoring = scoring
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        hidden, weight, targets, totals = ctx.saved_tensors
        scoring: Scoring = ctx.scoring
        hidden_gradient = torch.empty_like(hidden)
        weight_gradient = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        matrix = weight.to(scoring.dtype)
        for part, logits in _logits(hidden, weight, scoring):
            scale = gradient[part].float() / scoring.temperature
            slope = logits.sub_(totals[part, None]).exp_().mul_(-scale[:, None])
            slope.scatter_add_(1, targets[part, None], scale[:, None])
            narrow = slope.to(scoring.dtype)
            hidden_gradient[part] = (narrow @ matrix).to(hidden.dtype)
            weight_gradient += narrow.T @ hidden[part].to(scoring.dtype)
        return hidden_gradient, weight_gradient.to(weight.dtype), None, None


def _logits(hidden: torch.Tensor, weight: torch.Tensor, scoring: Scoring) -> Iterator[tuple[slice, torch.Tensor]]:
    """Pieces of rows, with logits divided by the temperature, in 32 bits."""
    matrix = weight.to(scoring.dtype).T
    for start in range(0, len(hidden), scoring.rows):
        part = slice(start, start + scoring.rows)
        with torch.autocast(hidden.device.type, enabled=False):
            product = hidden[part].to(scoring.dtype) @ matrix
        yield part, product.float().div_(scoring.temperature)


def _entropy(logits: torch.Tensor, totals: torch.Tensor) -> torch.Tensor:
    """[n] entropies of softmax(logits), in nats; uses up the logits."""
    probabilities = (logits - totals[:, None]).exp_()
    return totals - probabilities.mul_(logits).sum(-1)
