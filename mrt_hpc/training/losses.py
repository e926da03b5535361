"""The losses, as sums over tokens: the caller divides by the global token count, so no split of the batch changes the
result.

With pi the trained policy, pi_old the same before the first step of the iteration, and mu the engine that sampled the
tokens with the weights of that time:

    w_t   = min(pi_old / mu, cap)          difference of engine, number format and staleness; no gradient
    rho_t = pi / pi_old                    1 when an iteration takes one optimiser step
    loss  = - sum_t w_t min(rho_t A_t, clip(rho_t, 1 - low, 1 + high) A_t) + kl_coefficient * sum_t w_t rho_t D_t
    D_t   = log pi - log pi_ref             no gradient

Untruncated, w_t rho_t is the ratio to the behaviour policy. So the gradient of the last sum is, on average over tokens
of mu, that of KL(pi || pi_ref) given each token's prefix, whatever mu is: E_mu[w_t rho_t D_t grad log pi]. (A gradient
through D_t would add a term of mean zero; one through the k3 estimator alone is that of KL(pi_ref || pi).) The
statistics use the k3 estimator, exp(-D_t) + D_t - 1: never negative, and unbiased for tokens sampled from pi.
"""

from dataclasses import dataclass

import torch

from mrt_hpc.recipe.sections import Training

SUMS = (
    "tokens", "objective", "nll", "entropy", "kl_reference", "kl_old", "clipped", "mismatch", "mismatch_kl",
    "capped",
)  # fmt: skip
"""Token sums beside the loss."""
LARGEST_LOG_WEIGHT = 20.0
"""Greater log-weights are set to it: e^20 is far above any cap, yet finite in sums and logs."""


@dataclass(frozen=True)
class TokenLoss:
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
    """The clipped, importance-weighted loss; all arguments [S], temperature applied."""
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
