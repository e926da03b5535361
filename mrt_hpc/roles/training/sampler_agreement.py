"""Checks the first sampled group: the trainer's log-probabilities of its tokens must be the sampler's.

Another number format, RoPE table or temperature, or a missing tensor, changes what is learnt without an error. The
check runs once in an attempt, before its first update.

It compares the mean absolute difference in nats, as a share of the sampler's mean negative log-likelihood where that is
below one nat: there rounding and faults scale with the uncertainty.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import distributed

from mrt_hpc.algorithms.batch import sampled_sequence
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.recipe.choices import Precision
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.run.groups import Group
from mrt_hpc.run.records import Rollout
from mrt_hpc.training.accelerator import device
from mrt_hpc.training.engine import TrainerEngine
from mrt_hpc.training.losses import k3

log = logging.getLogger(__name__)

LIMIT_32_BITS = 0.02
"""Largest disagreement where both compute in 32 bits with equal 32-bit weights; a GPU may round products to fewer bits.
"""
LIMIT_16_BITS = 0.25
"""The same with 16-bit computing or weights."""
LEAST_SURPRISE = 0.01
"""Least uncertainty of a trace, nats a token: below it only rounding is compared."""


@dataclass(frozen=True)
class Agreement:
    difference: float
    """Mean absolute, nats a token."""
    divergence: float
    """KL from sampler's to trainer's policy (k3), nats a token."""
    surprise: float
    """The sampler's mean negative log-likelihood, nats a token."""
    tokens: int

    @property
    def disagreement(self) -> float:
        """The mean difference, relative to the surprise where that is below one nat."""
        return self.difference / min(1.0, max(self.surprise, LEAST_SURPRISE))

    def __str__(self) -> str:
        return (
            f"a disagreement of {self.disagreement:.2g} (mean difference {self.difference:.2g} of {self.surprise:.2g} "
            f"nats a token, KL divergence {self.divergence:.2g}, {self.tokens} tokens)"
        )


def comparable(group: Group, version: int) -> list[Rollout]:
    """Rollouts that one version alone sampled, at training's temperature."""
    of_version = [r for r in group.rollouts if r.weights_version == version and r.token_ids]
    return [r for r in of_version if not (r.later_weights or r.inserted or r.forced)]


def agreement(engine: TrainerEngine, rollouts: Sequence[Rollout]) -> Agreement:
    """Compare the trainer's weights, between two updates, with the sampler's. It is collective, with the same rollouts
    on every rank, sampled by the engine's weights; and changes nothing.
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
    """Largest disagreement of a sound run: the recipe's, or by number formats. Versions after 0 were rounded to
    ``training.weights_dtype``.
    """
    if recipe.resilience.sampler_disagreement is not None:
        return recipe.resilience.sampler_disagreement
    training = recipe.training
    computed = training.precision is Precision.FP32 and recipe.serving.dtype == "float32"
    exact = computed and (version == 0 or training.weights_dtype == "float32")
    # Rounding is of logits, which a temperature below 1 divides.
    return (LIMIT_32_BITS if exact else LIMIT_16_BITS) / min(1.0, recipe.sampling.temperature)


def refuse_disagreement(agreement: Agreement, recipe: Recipe, version: int, where: object) -> None:
    limit = limit_of(recipe, version)
    if agreement.disagreement <= limit:
        log.info("the trainer's log-probabilities are the sampler's: %s", agreement)
        return
    # above the disagreement, with one digit; twice the present one for NaN
    measured = np.isfinite(agreement.disagreement)
    rounded_up = float(f"{1.5 * agreement.disagreement:.0e}") if measured else 2 * limit
    raise UserError(
        f"the trainer's log-probabilities of the first sampled group are not the sampler's: {agreement}",
        value=agreement.disagreement,
        where=where,
        expected=f"a disagreement of at most {limit:g} with training.precision: {recipe.training.precision.value} "
        f"and serving.dtype: {recipe.serving.dtype}; no update was made",
        advice=Advice(
            "what usually causes it: number formats that differ (serving.dtype, training.precision), "
            "another RoPE table (rope_scaling with a longer limit), a tensor of the checkpoint that "
            "one side did not load, or another temperature; the logs of the first inference task and of "
            "the trainer name what they loaded. Where the difference is known and wanted: mrt-hpc submit RUN "
            "--set resilience.sampler_disagreement={rounded_up}",
            rounded_up=f"{rounded_up:g}",
        ),
    )
