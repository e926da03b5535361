"""The batch of an iteration as its recipe's algorithm learns it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mrt_hpc.algorithms.batch import Batch, batch_of
from mrt_hpc.mrt.length_penalty import overlong_penalties
from mrt_hpc.recipe.kinds import VerifierSettings
from mrt_hpc.recipe.schema import Recipe

if TYPE_CHECKING:
    from mrt_hpc.run.groups import Group


def learnt_batch(groups: "Sequence[Group]", recipe: Recipe, question_ids: Callable[[], Sequence[int]] = list) -> Batch:
    """With the recipe's rewards, and ``training.overlong`` for traces that the token limit cut."""
    return treat_overlong(batch_of(groups, question_ids, part_weights(recipe)), recipe)


def part_weights(recipe: Recipe) -> tuple[float, ...]:
    """See :class:`Batch`."""
    verifier = getattr(recipe.data, "verifier", None)
    return verifier.normalised_weights if isinstance(verifier, VerifierSettings) else ()


def treat_overlong(batch: Batch, recipe: Recipe) -> Batch:
    training = recipe.training
    match training.overlong:
        case "mask":
            return replace(batch, masks_cut=True)
        case "penalise" if batch.rollouts:
            limit = recipe.schedule.max_tokens(batch.rollouts[0].iteration, recipe.sampling.max_tokens)
            lengths = np.array(batch.lengths, dtype=np.float64)
            return replace(batch, penalties=overlong_penalties(lengths, limit, training.overlong_buffer or limit))
    return batch
