"""The losses, as sums over tokens: the caller divides by the global token count, so no split of the batch changes the
result.

With pi the trained policy, pi_old the same before the first step of the iteration, and mu the engine that sampled
the tokens with the weights of that time:

    w_t   = min(pi_old / mu, cap)          difference of engine, number format and staleness; no gradient
    rho_t = pi / pi_old                    1 when an iteration takes one optimiser step
    loss  = - sum_t w_t min(rho_t A_t, clip(rho_t, 1 - low, 1 + high) A_t) + kl_coefficient * sum_t w_t rho_t D_t
    D_t   = log pi - log pi_ref             no gradient

Untruncated, w_t rho_t is the ratio to the behaviour policy. So the gradient of the last sum is, on average over tokens
of mu, that of KL(pi || pi_ref) given each token's prefix, whatever mu is: E_mu[w_t rho_t D_t grad log pi].
(A gradient through D_t would add a term of mean zero; one through the k3 estimator alone is that of KL(pi_ref || pi).)
The statistics use the k3 estimator, exp(-D_t) + D_t - 1: never negative, and unbiased for tokens sampled from pi.

``fuse`` gives the log-probabilities without whole logits.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.sections import Training

# The vocabulary projection fused with the cross-entropy: log-probabilities of given tokens, without whole logits.
#
# Forward keeps one number a row, the logarithm of the sum of exponentials. Backward computes the logits again, a piece
# at a time, and from them the gradient by its formula: with p the softmax, g the gradient of a log-probability and T
# the temperature, that of the logits is g (onehot - p) / T. Sums over rows are in 32 bits.
#
# It runs inside the call of the projection's own module: under ZeRO-3 its weight is there once in each direction,
# however many the pieces are.


LOGIT_ELEMENTS = 1 << 28
"""The maximum number of logits kept at once: 1 GiB in 32 bits."""


@dataclass(frozen=True)
class Scoring:
    """How tokens are scored."""

    temperature: float
    entropy: bool
    """Whether entropies are computed; otherwise they are 0."""
    rows: int
    """The number of rows whose logits are there at once."""
    dtype: torch.dtype
    """The number format of the matrix products."""


def fuse(head: nn.Module, temperature: float, entropy: bool) -> None:
    """Make a projection return log-probabilities [S] and entropies [S] of hidden states [S, H] and token ids [S].

    Raises:
        UserError: it is not a plain projection.
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
    """Yield pieces of rows, each with its logits divided by the temperature, in 32 bits."""
    matrix = weight.to(scoring.dtype).T
    for start in range(0, len(hidden), scoring.rows):
        part = slice(start, start + scoring.rows)
        with torch.autocast(hidden.device.type, enabled=False):
            product = hidden[part].to(scoring.dtype) @ matrix
        yield part, product.float().div_(scoring.temperature)


def _entropy(logits: torch.Tensor, totals: torch.Tensor) -> torch.Tensor:
    """Return the [n] entropies of softmax(logits), in nats; uses up the logits."""
    probabilities = (logits - totals[:, None]).exp_()
    return totals - probabilities.mul_(logits).sum(-1)


SUMS = (
    "tokens", "objective", "nll", "entropy", "kl_reference", "kl_old", "clipped", "mismatch", "mismatch_kl",
    "capped",
)  # fmt: skip
"""The names of the token sums computed beside the loss, in order."""


LARGEST_LOG_WEIGHT = 20.0
"""The maximum of a log-weight; a greater one is set to it: e^20 is far above any cap, yet finite in sums and logs."""


@dataclass(frozen=True)
class TokenLoss:
    """The loss of some tokens, with its statistics."""

    total: torch.Tensor
    """Scalar with gradient: the sum over tokens."""
    sums: torch.Tensor
    """[len(SUMS)] float64, no gradient."""
    largest_mismatch: torch.Tensor
    """Scalar: the largest untruncated w_t; 0 without tokens."""


def policy_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    behaviour_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    entropy: torch.Tensor,
    settings: Training,
    reference_logprobs: torch.Tensor | None = None,
) -> TokenLoss:
    """Return the clipped, importance-weighted policy loss; all arguments [S], temperature applied."""
    mismatch = (old_logprobs - behaviour_logprobs).clamp(max=LARGEST_LOG_WEIGHT).exp()
    weight = mismatch.clamp(max=settings.importance_cap)
    ratio = (logprobs - old_logprobs).exp()
    clipped = ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)
    surrogate = torch.minimum(ratio * advantages, clipped * advantages)
    objective = -(weight * surrogate)
    total, kl = objective.sum(), torch.zeros_like(logprobs)
    if reference_logprobs is not None:
        excess = (logprobs - reference_logprobs).detach()
        total = total + settings.kl_coefficient * (weight * ratio * excess).sum()
        kl = weight * ratio * k3(logprobs, reference_logprobs)
    with torch.no_grad():
        return TokenLoss(
            total,
            _sums(
                tokens=torch.ones_like(logprobs),
                objective=objective,
                nll=-logprobs,
                entropy=entropy,
                kl_reference=kl,
                kl_old=k3(old_logprobs, logprobs),
                clipped=(clipped * advantages < ratio * advantages).float(),
                mismatch=mismatch,
                mismatch_kl=k3(behaviour_logprobs, old_logprobs),
                capped=(mismatch > settings.importance_cap).float(),
            ),
            mismatch.max() if mismatch.numel() else torch.zeros((), device=mismatch.device),
        )


def likelihood_loss(logprobs: torch.Tensor, advantages: torch.Tensor, entropy: torch.Tensor) -> TokenLoss:
    """Return the advantage-weighted negative log-likelihood; all arguments [S]."""
    objective = -(advantages * logprobs)
    with torch.no_grad():
        sums = _sums(tokens=torch.ones_like(logprobs), objective=objective, nll=-logprobs, entropy=entropy)
    return TokenLoss(objective.sum(), sums, torch.zeros((), device=logprobs.device))


def k3(logprobs: torch.Tensor, other_logprobs: torch.Tensor) -> torch.Tensor:
    """Estimate KL(p || q) per token for tokens sampled from p, given log p and log q (Schulman's k3); finite where
    these are.
    """
    difference = other_logprobs - logprobs
    return difference.clamp(max=LARGEST_LOG_WEIGHT).exp() - difference - 1.0


def _sums(**terms: torch.Tensor) -> torch.Tensor:
    """Return [len(SUMS)] the sum of each term in the order of SUMS, 0 for one that is not given."""
    device = terms["tokens"].device
    zero = torch.zeros((), dtype=torch.float64, device=device)
    return torch.stack([terms[n].double().sum() if n in terms else zero for n in SUMS])
