"""Training sequences and the tensors of one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from mrt_hpc.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class TrainingSequence:
    """One sampled continuation (T tokens) of a context, as an algorithm wants it learnt."""

    prompt_ids: Sequence[int]
    """The context: prompt, and prefix and forced tokens where there are any. At least one token."""
    token_ids: Sequence[int]
    """[T] what was sampled."""
    advantages: np.ndarray
    """[T] float32."""
    behaviour_logprobs: np.ndarray
    """[T] float32, log-probabilities when sampled, temperature applied; unused by the likelihood objective."""
    mask: np.ndarray
    """[T] bool: the tokens trained on."""
    group: str = ""
    """Sequences of one group are never divided among the optimiser steps of an iteration."""

    def __post_init__(self) -> None:
        count = len(self.token_ids)
        shapes = {"advantages": self.advantages, "behaviour_logprobs": self.behaviour_logprobs, "mask": self.mask}
        for name, array in shapes.items():
            if array.shape != (count,):
                raise UserError(f"{name} must have one entry a token", value=array.shape, expected=f"({count},)")
        if not len(self.prompt_ids):
            raise UserError("a training sequence needs a prompt of at least one token")
        if not np.isfinite(self.advantages[self.mask]).all():
            raise UserError("advantages must be finite", where=f"group {self.group!r}")

    @property
    def trained_tokens(self) -> int:
        """Tokens that count in the loss."""
        return int(np.count_nonzero(self.mask))

    @property
    def has_signal(self) -> bool:
        """Whether any trained token has an advantage: without one the gradient is exactly zero."""
        return bool(np.any(self.advantages[self.mask] != 0))

    @cached_property
    def width(self) -> int:
        """Positions to compute: every token but the last, whose successor nobody asks for."""
        return len(self.prompt_ids) + len(self.token_ids) - 1


@dataclass(frozen=True)
class MicroBatch:
    """The tensors of one forward pass: B rows of W positions, S trained tokens in all."""

    input_ids: torch.Tensor
    """[B, W] right-padded with 0."""
    positions: torch.Tensor
    """[S] row * W + column of the position that predicts each trained token."""
    targets: torch.Tensor
    """[S] the trained tokens."""
    advantages: torch.Tensor
    """[S]"""
    behaviour_logprobs: torch.Tensor
    """[S]"""

    @property
    def trained_tokens(self) -> int:
        """S"""
        return self.targets.numel()

    def to(self, device: torch.device) -> MicroBatch:
        """The same on another device."""
        return replace(self, **{name: value.to(device) for name, value in vars(self).items()})


def collate(sequences: Sequence[TrainingSequence]) -> MicroBatch:
    """Lay sequences out in rows; without any, a filler of one row without a trained token."""
    width = max((s.width for s in sequences), default=1)
    input_ids = np.zeros((max(1, len(sequences)), width), dtype=np.int64)
    positions, targets, advantages, behaviour = [], [], [], []
    for row, s in enumerate(sequences):
        tokens = np.asarray(s.token_ids, dtype=np.int64)
        input_ids[row, : s.width] = np.concatenate([np.asarray(s.prompt_ids, dtype=np.int64), tokens])[: s.width]
        kept = np.flatnonzero(s.mask)
        positions.append(row * width + len(s.prompt_ids) - 1 + kept)
        targets.append(tokens[kept])
        advantages.append(s.advantages[kept])
        behaviour.append(s.behaviour_logprobs[kept])
    return MicroBatch(
        torch.from_numpy(input_ids),
        _joined(positions, np.int64),
        _joined(targets, np.int64),
        _joined(advantages, np.float32),
        _joined(behaviour, np.float32),
    )


def _joined(parts: list[np.ndarray], dtype: type) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype))
