"""The first sampled group as a check: the trainer's log-probabilities of its tokens have to be those of the sampler.

Both load the same weights version, and compute it by different code: another number format, RoPE table or temperature,
or a tensor that one of them did not load, changes what is learnt without any error. The check runs once in an attempt,
before its first update, with the first group that the weights of this moment have sampled.

What is compared is the mean absolute difference of the tokens, in nats, as a share of the sampler's own mean negative
log-likelihood where that is below one nat: of tokens that are nearly certain, as most of a trace are, both rounding and
faults change log-probabilities in proportion to what is uncertain. It sees a fault of either sign and of any part of
the model, and a few rare tokens that differ by whole nats in bfloat16 hardly move it; the largest difference, the
share of capped weights, or a KL estimate, which is exponential in the difference, would end sound runs. Sound
implementations are at 1e-6 in 32 bits, and at 0.02 to 0.1 in bfloat16 (mixtures of experts, where rounding may choose
another expert, at up to 0.2). Another temperature, 1 for 0.5, is at 0.4, and a wrong tensor above 1.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import distributed

from mrt_hpc.algorithms.batch import sampled_sequence
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.choices import Precision
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.run.groups import Group
from mrt_hpc.run.records import Rollout
from mrt_hpc.training.accelerator import device
from mrt_hpc.training.engine import TrainerEngine
from mrt_hpc.training.losses import k3

log = logging.getLogger(__name__)

LIMIT_32_BITS = 0.02
"""The largest disagreement where trainer and server both compute in 32 bits with the same 32-bit weights; a GPU may
round their products to fewer bits.
"""
LIMIT_16_BITS = 0.25
"""The same where one of them computes in 16 bits, or with weights that were rounded to 16 bits."""
LEAST_SURPRISE = 0.01
"""Nats a token that any trace counts as uncertain by at least: below it rounding is all that is compared."""


@dataclass(frozen=True)
class Agreement:
    """How far the trainer's log-probabilities are from the sampler's."""

    difference: float
    """The mean absolute difference, nats a token."""
    divergence: float
    """The KL divergence from the sampler's policy to the trainer's (k3), nats a token."""
    surprise: float
    """The mean negative log-likelihood by the sampler, nats a token."""
    tokens: int

    @property
    def disagreement(self) -> float:
        """The mean difference, as a share of the mean negative log-likelihood where that is below one nat."""
        return self.difference / min(1.0, max(self.surprise, LEAST_SURPRISE))

    def __str__(self) -> str:
        return (
            f"a disagreement of {self.disagreement:.2g} (mean difference {self.difference:.2g} of {self.surprise:.2g} "
            f"nats a token, KL divergence {self.divergence:.2g}, {self.tokens} tokens)"
        )


def comparable(group: Group, version: int) -> list[Rollout]:
    """The rollouts of a group that one weights version alone has sampled, at the temperature of training."""
    return [
        r
        for r in group.rollouts
        if r.weights_version == version and not (r.later_weights or r.inserted or r.forced) and r.token_ids
    ]


def agreement(engine: TrainerEngine, rollouts: Sequence[Rollout]) -> Agreement:
    """Compare the weights that the trainer holds with those that sampled; collective, and changes nothing.

    Args:
        engine: between two updates.
        rollouts: the same on every rank, sampled by the weights that the engine holds.
    """
    mini_batch = engine.prepare([sampled_sequence(r, r.prompt_ids, np.ones(len(r.token_ids))) for r in rollouts])
    sums = torch.zeros(4, dtype=torch.float64, device=device())
    for step, logprobs in zip(mini_batch.micro_steps, engine.logprobs(mini_batch), strict=True):
        ours, theirs = logprobs.double(), step.batch.behaviour_logprobs.double()
        terms = (torch.ones_like(ours), (ours - theirs).abs(), k3(theirs, ours), -theirs)
        sums += torch.stack([term.sum() for term in terms])
    distributed.all_reduce(sums)
    tokens, difference, divergence, surprise = sums.tolist()
    count = max(1.0, tokens)
    return Agreement(difference / count, divergence / count, surprise / count, int(tokens))


def limit_of(recipe: Recipe, version: int) -> float:
    """The largest disagreement of a sound run, by the number formats of the recipe unless it names one.

    Args:
        recipe: of the run.
        version: of the weights that sampled; those after version 0 were rounded to ``training.weights_dtype``.
    """
    if recipe.resilience.sampler_disagreement is not None:
        return recipe.resilience.sampler_disagreement
    training = recipe.training
    computed = training.precision is Precision.FP32 and recipe.serving.dtype == "float32"
    exact = computed and (version == 0 or training.weights_dtype == "float32")
    # Rounding is of logits, which a temperature below 1 divides.
    return (LIMIT_32_BITS if exact else LIMIT_16_BITS) / min(1.0, recipe.sampling.temperature)


def refuse_disagreement(agreement: Agreement, recipe: Recipe, version: int, where: object) -> None:
    """Refuse to learn from traces of another policy than the one that the trainer holds.

    Args:
        agreement: the same on every rank.
        recipe: of the run.
        version: of the weights that sampled.
        where: the group is, for messages.

    Raises:
        UserError: the disagreement is above the limit, or not a number.
    """
    limit = limit_of(recipe, version)
    if agreement.disagreement <= limit:
        log.info("the trainer's log-probabilities are the sampler's: %s", agreement)
        return
    raise UserError(
        f"the trainer's log-probabilities of the first sampled group are not the sampler's: {agreement}",
        value=agreement.disagreement,
        where=where,
        expected=f"a disagreement of at most {limit:g} with training.precision: {recipe.training.precision.value} "
        f"and serving.dtype: {recipe.serving.dtype}; no update was made",
        advice="what usually causes it: number formats that differ (serving.dtype, training.precision), another RoPE "
        "table (rope_scaling with a longer limit), a tensor of the checkpoint that one side did not load, another "
        "temperature, or an attached server with another model or chat template; the logs of the first inference task "
        "and of the trainer name what they loaded. Where the difference is known and wanted: mrt-hpc submit RUN "
        f"with --set resilience.sampler_disagreement={_rounded_up(agreement.disagreement, limit):g}",
    )


def _rounded_up(disagreement: float, limit: float) -> float:
    """A limit above a disagreement, with one digit; twice the present one where that is not a number."""
    return float(f"{1.5 * disagreement:.0e}") if np.isfinite(disagreement) else 2 * limit
