"""The losses, as sums over tokens: the caller divides by a number of the whole mini-batch, so no split of it changes
the result.

With pi the trained policy, pi_old the same before the first step of the iteration, and mu the engine that sampled the
tokens with the weights of that time:

    w_t   = min(pi_old / mu, cap)          difference of engine, number format and staleness; no gradient
    rho_t = pi / pi_old                    1 when an iteration takes one optimiser step
    loss  = - sum_t n_t objective_t + kl_coefficient * sum_t n_t w_t rho_t D_t
    D_t   = log pi - log pi_ref             no gradient
    n_t   = 1, or with aggregation: sequence 1 / the trained tokens of the sequence

``loss_kinds`` has the objectives.

Untruncated, w_t rho_t is the ratio to the behaviour policy. So the gradient of the last sum is, on average over tokens
of mu, that of KL(pi || pi_ref) given each token's prefix, whatever mu is: E_mu[w_t rho_t D_t grad log pi]. The
statistics use the k3 estimator, exp(-D_t) + D_t - 1.
"""

from dataclasses import dataclass

import torch

from mrt_hpc.recipe.base import require_kind
from mrt_hpc.recipe.choices import Aggregation
from mrt_hpc.training.loss_kinds import LARGEST_LOG_WEIGHT, Loss, LossTokens

SUMS = (
    "tokens", "objective", "nll", "entropy", "kl_reference", "kl_old", "clipped", "mismatch", "mismatch_squared",
    "mismatch_kl", "capped",
)  # fmt: skip
"""Token sums beside the loss."""


@dataclass(frozen=True)
class TokenLoss:
    total: torch.Tensor
    """Scalar with gradient: the sum over tokens."""
    sums: torch.Tensor
    """[len(SUMS)] float64, no gradient."""
    largest_mismatch: torch.Tensor
    """Scalar: the largest untruncated w_t; 0 without tokens."""


def policy_loss(tokens: LossTokens, entropy: torch.Tensor, reference_logprobs: torch.Tensor | None = None) -> TokenLoss:
    """The loss of the recipe, with its KL term where there is a reference; all arguments [S], temperature applied."""
    settings, loss = tokens.training, require_kind(tokens.training.loss, Loss)
    logprobs, ratio, mismatch = tokens.logprobs, tokens.ratio, tokens.mismatch
    counts = 1.0 / tokens.sequence_tokens if settings.aggregation is Aggregation.SEQUENCE else 1.0
    objective = -loss.objective(tokens)
    total, kl = (counts * objective).sum(), torch.zeros_like(logprobs)
    if reference_logprobs is not None:
        excess = (logprobs - reference_logprobs).detach()
        total = total + settings.kl_coefficient * (counts * (tokens.weight * ratio * excess)).sum()
        kl = tokens.weight * ratio * k3(logprobs, reference_logprobs)
    with torch.no_grad():
        return TokenLoss(
            total,
            _sums(
                tokens=torch.ones_like(logprobs),
                objective=objective,
                nll=-logprobs,
                entropy=entropy,
                kl_reference=kl,
                kl_old=k3(tokens.old_logprobs, logprobs),
                clipped=loss.bounds(tokens).float(),
                mismatch=mismatch,
                mismatch_squared=mismatch.double().square(),
                mismatch_kl=k3(tokens.behaviour_logprobs, tokens.old_logprobs),
                capped=(mismatch > settings.importance_cap).float(),
            ),
            mismatch.max() if mismatch.numel() else torch.zeros((), device=mismatch.device),
        )


def likelihood_loss(logprobs: torch.Tensor, advantages: torch.Tensor, entropy: torch.Tensor) -> TokenLoss:
    """The advantage-weighted negative log-likelihood; all arguments [S]."""
    objective = -(advantages * logprobs)
    with torch.no_grad():
        sums = _sums(tokens=torch.ones_like(logprobs), objective=objective, nll=-logprobs, entropy=entropy)
    return TokenLoss(objective.sum(), sums, torch.zeros((), device=logprobs.device))


def k3(logprobs: torch.Tensor, other_logprobs: torch.Tensor) -> torch.Tensor:
    """KL(p || q) per token sampled from p, given log p and log q (Schulman's k3); finite where these are."""
    difference = other_logprobs - logprobs
    return difference.clamp(max=LARGEST_LOG_WEIGHT).exp() - difference - 1.0


def _sums(**terms: torch.Tensor) -> torch.Tensor:
    """[len(SUMS)] in the order of SUMS, 0 for a term that is not given."""
    device = terms["tokens"].device
    zero = torch.zeros((), dtype=torch.float64, device=device)
    return torch.stack([terms[n].double().sum() if n in terms else zero for n in SUMS])
