"""The tensors of one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mrt_hpc.training.sequence import TrainingSequence


@dataclass(frozen=True)
class MicroBatch:
    """The tensors of one forward pass: B rows of W positions, S trained tokens in all."""

    input_ids: torch.Tensor
    """[B, W] token ids; padded rows are filled up on the right with 0, and a packed batch is one row."""
    positions: torch.Tensor
    """[S] row * W + column of the position that predicts each trained token."""
    targets: torch.Tensor
    """[S] the trained tokens."""
    advantages: torch.Tensor
    """[S] the advantage of each trained token."""
    behaviour_logprobs: torch.Tensor
    """[S] the log-probability of each trained token when it was sampled."""
    lengths: tuple[int, ...] | None = None
    """The lengths of the sequences that lie end to end in the row of a packed batch; None of a padded one."""
    position_ids: torch.Tensor | None = None
    """[1, W] the place of each token of a packed batch in its own sequence; None of a padded one."""

    @property
    def trained_tokens(self) -> int:
        """S, the number of trained tokens."""
        return self.targets.numel()

    def to(self, device: torch.device) -> MicroBatch:
        """Return the same micro-batch on another device."""
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, torch.Tensor)
        }
        return replace(self, **moved)


def collate(sequences: Sequence[TrainingSequence]) -> MicroBatch:
    """Lay sequences out in rows; without any sequence, return a filler of one row without a trained token."""
    width = max((s.width for s in sequences), default=1)
    input_ids = np.zeros((max(1, len(sequences)), width), dtype=np.int64)
    for row, s in enumerate(sequences):
        input_ids[row, : s.width] = _passed(s)
    return _with_trained(input_ids, sequences, [row * width for row in range(len(sequences))])


def collate_end_to_end(sequences: Sequence[TrainingSequence]) -> MicroBatch:
    """Lay sequences out in one row; without any sequence, return a filler of one position without a trained token."""
    lengths = tuple(s.width for s in sequences) or (1,)
    ids = np.concatenate([_passed(s) for s in sequences]) if sequences else np.zeros(1, dtype=np.int64)
    starts = np.cumsum([0, *lengths])
    batch = _with_trained(ids[None], sequences, starts[:-1].tolist())
    places = np.concatenate([np.arange(length, dtype=np.int64) for length in lengths])
    return replace(batch, lengths=lengths, position_ids=torch.from_numpy(places[None]))


def _passed(s: TrainingSequence) -> NDArray[np.int64]:
    """Return the token ids of a sequence that pass through the model."""
    return np.asarray([*s.prompt_ids, *s.token_ids], dtype=np.int64)[: s.width]


def _with_trained(
    input_ids: NDArray[np.int64], sequences: Sequence[TrainingSequence], starts: Sequence[int]
) -> MicroBatch:
    """Add the trained tokens of sequences that begin at these places of the token ids."""
    kept = [np.flatnonzero(s.mask) for s in sequences]
    shifts = [start + len(s.prompt_ids) - 1 for start, s in zip(starts, sequences, strict=False)]
    pairs = list(zip(sequences, kept, strict=True))
    return MicroBatch(
        torch.from_numpy(input_ids),
        _joined([shift + k for shift, k in zip(shifts, kept, strict=True)], np.int64),
        _joined([np.asarray(s.token_ids, dtype=np.int64)[k] for s, k in pairs], np.int64),
        _joined([s.advantages[k] for s, k in pairs], np.float32),
        _joined([s.behaviour_logprobs[k] for s, k in pairs], np.float32),
    )


def _joined(parts: list[np.ndarray], dtype: type) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype))
