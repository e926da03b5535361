"""The losses of the policy gradient once more, token by token, as the pages write them."""

import math

import torch

from mrt_hpc.recipe.sections import Training
from mrt_hpc.training.loss_kinds import Dppo, LossTokens, Masked


def plain_objective(tokens: LossTokens, settings: Training) -> torch.Tensor:
    """[S], with the gradient by log pi."""
    own, cap = settings.loss, settings.importance_cap
    kind, parts = own.type, []
    logs = (tokens.logprobs, tokens.old_logprobs, tokens.behaviour_logprobs)
    for t, (logp, old, sampled) in enumerate(zip(*logs, strict=True)):
        advantage, mismatch = tokens.advantages[t], math.exp(min((old - sampled).item(), 20.0))
        weight, ratio = min(mismatch, cap), (logp - old).exp()
        if kind == "gspo_token":
            own_sequence = tokens.sequences == tokens.sequences[t]
            mean = (tokens.logprobs - tokens.old_logprobs)[own_sequence].mean().item()
            ratio = math.exp(mean) * (logp - logp.detach()).exp()
        clipped = min(max(ratio.item(), 1 - settings.clip_low), 1 + settings.clip_high)
        surrogate = (
            ratio * advantage if (ratio * advantage).item() <= clipped * advantage.item() else clipped * advantage
        )
        if kind == "cispo":
            part = weight * clipped * advantage * logp
        elif isinstance(own, Dppo):
            moved = math.exp(logp.item()) - math.exp(sampled.item())
            leaves = abs(moved) > own.divergence and moved * advantage.item() > 0
            part = logp * 0 if leaves else min(math.exp((logp - sampled).item()), cap) * advantage * logp
        elif isinstance(own, Masked):
            part = mismatch * surrogate if own.low <= mismatch <= own.high else logp * 0
        elif kind.endswith(":SoftGate"):  # the example of a user's own
            part = weight * 4 * (ratio - 1).sigmoid() * advantage
        else:
            part = weight * surrogate
        parts.append(part)
    return torch.stack(parts)


def plain_total(tokens: LossTokens, settings: Training, reference: torch.Tensor | None = None) -> torch.Tensor:
    """The loss before it is divided."""
    share = 1 / tokens.sequence_tokens if settings.aggregation == "sequence" else torch.ones(())
    total = -(share * plain_objective(tokens, settings)).sum()
    if reference is None:
        return total
    weight = (tokens.old_logprobs - tokens.behaviour_logprobs).exp().clamp(max=settings.importance_cap)
    divergence = weight * (tokens.logprobs - tokens.old_logprobs).exp() * (tokens.logprobs - reference).detach()
    return total + settings.kl_coefficient * (share * divergence).sum()
