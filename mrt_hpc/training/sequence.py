"""One training sequence, as algorithms create it and files store it. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from mrt_hpc.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence


class NotFiniteError(UserError):
    """A number that would be learnt is NaN or infinite."""


@dataclass(frozen=True)
class TrainingSequence:
    """One sampled continuation (T tokens) of a context, with the advantages and the mask that the algorithm gave it."""

    prompt_ids: Sequence[int]
    """The token ids of the context: prompt, and prefix and forced tokens where there are any. At least one token."""
    token_ids: Sequence[int]
    """[T] the sampled tokens."""
    advantages: np.ndarray
    """[T] float32, the advantage of each token."""
    behaviour_logprobs: np.ndarray
    """[T] float32, log-probabilities at sampling, temperature applied; unused by the likelihood objective."""
    mask: np.ndarray
    """[T] bool, whether each token is trained on."""
    group: str = ""
    """Sequences of one group are never divided among the optimiser steps of an iteration."""

    def __post_init__(self) -> None:
        count = len(self.token_ids)
        shapes = {"advantages": self.advantages, "behaviour_logprobs": self.behaviour_logprobs, "mask": self.mask}
        for name, array in shapes.items():
            if array.shape != (count,):
                raise UserError(f"{name} must have one entry per token", value=array.shape, expected=f"({count},)")
        if not len(self.prompt_ids):
            raise UserError("a training sequence needs a prompt of at least one token")
        for name in ("advantages", "behaviour_logprobs"):
            trained = shapes[name][self.mask]
            if not np.isfinite(trained).all():
                bad = float(trained[~np.isfinite(trained)][0])
                raise NotFiniteError(f"{name} of trained tokens must be finite", value=bad, where=f"group {self.group}")

    @property
    def trained_tokens(self) -> int:
        """The number of tokens that count in the loss."""
        return int(np.count_nonzero(self.mask))

    @property
    def has_signal(self) -> bool:
        """Whether any trained token has an advantage that is not 0; without one the gradient is exactly zero."""
        return bool(np.any(self.advantages[self.mask] != 0))

    @cached_property
    def width(self) -> int:
        """The number of positions to compute: every token but the last, whose successor is not needed."""
        return len(self.prompt_ids) + len(self.token_ids) - 1
