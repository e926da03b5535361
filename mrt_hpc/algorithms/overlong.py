"""Traces that the token limit cut, see ``training.overlong``."""

from dataclasses import replace

import numpy as np

from mrt_hpc.algorithms.batch import Batch
from mrt_hpc.mrt.length_penalty import overlong_penalties
from mrt_hpc.recipe.schema import Recipe


def treat_overlong(batch: Batch, recipe: Recipe) -> Batch:
    """The batch as the recipe's algorithm learns it."""
    training = recipe.training
    match training.overlong:
        case "mask":
            return replace(batch, masks_cut=True)
        case "penalise" if batch.rollouts:
            limit = recipe.schedule.max_tokens(batch.rollouts[0].iteration, recipe.sampling.max_tokens)
            lengths = np.array(batch.lengths, dtype=np.float64)
            return replace(batch, penalties=overlong_penalties(lengths, limit, training.overlong_buffer or limit))
    return batch
