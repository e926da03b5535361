"""The first sampled group as a check: the trainer's log-probabilities of its tokens have to be those of the sampler.

Both load the same weights version, and compute it by different code: another number format, RoPE table or temperature,
or a tensor that one of them did not load, changes what is learnt without any error. The check runs once in an attempt,
before its first update, with the first group that the weights of this moment have sampled.

The mean absolute difference is compared, in nats a token. It sees a fault of either sign and of any part of the model,
and a few rare tokens, whose log-probabilities differ by whole nats in bfloat16, hardly move it; the largest difference
or the share of capped weights would end sound runs. Two sound implementations are at 1e-6 in 32 bits, and at 0.005 to
0.03 in bfloat16 (mixtures of experts at up to 0.06, as a token may take another expert); a fault is at 0.2 and more.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import distributed

from mrt_hpc.algorithms.batch import sampled_sequence
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.batching import Precision
from mrt_hpc.training.accelerator import device
from mrt_hpc.training.losses import k3

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mrt_hpc.recipe.schema import Recipe
    from mrt_hpc.run.groups import Group
    from mrt_hpc.run.records import Rollout
    from mrt_hpc.training.engine import TrainerEngine

log = logging.getLogger(__name__)

LIMIT_32_BITS = 0.01
"""The largest mean difference where trainer and server both compute in 32 bits, nats a token; a GPU may round their
products to fewer bits.
"""
LIMIT_16_BITS = 0.1
"""The same where one of them computes in 16 bits."""


@dataclass(frozen=True)
class Agreement:
    """How far the trainer's log-probabilities are from the sampler's."""

    difference: float
    """The mean absolute difference, nats a token."""
    divergence: float
    """The KL divergence from the sampler's policy to the trainer's (k3), nats a token."""
    tokens: int

    def __str__(self) -> str:
        return (
            f"mean difference {self.difference:.2g} nats a token, KL divergence {self.divergence:.2g}, "
            f"{self.tokens} tokens"
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
    sums = torch.zeros(3, dtype=torch.float64, device=device())
    for step, logprobs in zip(mini_batch.micro_steps, engine.logprobs(mini_batch), strict=True):
        ours, theirs = logprobs.double(), step.batch.behaviour_logprobs.double()
        sums += torch.stack([torch.ones_like(ours).sum(), (ours - theirs).abs().sum(), k3(theirs, ours).sum()])
    distributed.all_reduce(sums)
    tokens, difference, divergence = sums.tolist()
    return Agreement(difference / max(1.0, tokens), divergence / max(1.0, tokens), int(tokens))


def limit_of(recipe: Recipe) -> float:
    """The largest mean difference of a sound run, by the number formats of the recipe unless it names one."""
    if recipe.resilience.sampler_disagreement is not None:
        return recipe.resilience.sampler_disagreement
    in_32_bits = recipe.training.precision is Precision.FP32 and recipe.serving.dtype == "float32"
    return LIMIT_32_BITS if in_32_bits else LIMIT_16_BITS


def refuse_disagreement(found: Agreement, recipe: Recipe, where: object) -> None:
    """Refuse to learn from traces of another policy than the one that the trainer holds.

    Args:
        found: the same on every rank.
        recipe: of the run.
        where: the group is, for messages.

    Raises:
        UserError: the difference is above the limit, or not a number.
    """
    limit = limit_of(recipe)
    if found.difference <= limit:
        log.info("the trainer's log-probabilities are the sampler's: %s", found)
        return
    raise UserError(
        f"the trainer's log-probabilities of the first sampled group are not the sampler's: {found}",
        value=found.difference,
        where=where,
        expected=f"a mean difference of at most {limit:g} with training.precision: {recipe.training.precision.value} "
        f"and serving.dtype: {recipe.serving.dtype}; no update was made",
        advice="what usually causes it: number formats that differ (serving.dtype, training.precision), another RoPE "
        "table (rope_scaling with a longer limit), a tensor of the checkpoint that one side did not load, another "
        "temperature, or an attached server with another model or chat template; the logs of the first inference task "
        "and of the trainer name what they loaded. Where the difference is known and wanted: the same submit command "
        f"with --set resilience.sampler_disagreement={_rounded_up(found.difference, limit):g}",
    )


def _rounded_up(difference: float, limit: float) -> float:
    """A limit above a difference, with one digit; twice the present one where the difference is not a number."""
    return float(f"{1.5 * difference:.0e}") if np.isfinite(difference) else 2 * limit
