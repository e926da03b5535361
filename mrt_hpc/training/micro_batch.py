"""The tensors of one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mrt_hpc.training.sequence import TrainingSequence


@dataclass(frozen=True)
class MicroBatch:
    """The tensors of one forward pass: B rows of W positions, S trained tokens in all."""

    input_ids: torch.Tensor
    """[B, W] token ids, right-padded with 0."""
    positions: torch.Tensor
    """[S] row * W + column of the position that predicts each trained token."""
    targets: torch.Tensor
    """[S] the trained tokens."""
    advantages: torch.Tensor
    """[S] the advantage of each trained token."""
    behaviour_logprobs: torch.Tensor
    """[S] the log-probability of each trained token when it was sampled."""

    @property
    def trained_tokens(self) -> int:
        """S, the number of trained tokens."""
        return self.targets.numel()

    def to(self, device: torch.device) -> MicroBatch:
        """Return the same micro-batch on another device."""
        return replace(self, **{name: value.to(device) for name, value in vars(self).items()})


def collate(sequences: Sequence[TrainingSequence]) -> MicroBatch:
    """Lay sequences out in rows; without any sequence, return a filler of one row without a trained token."""
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
