"""The tensors of one micro-batch, and the division of sequences among micro-batches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from mrt_hpc.recipe.choices import Batching
from mrt_hpc.training import packing
from mrt_hpc.training.settings import TrainingSequence


@dataclass(frozen=True)
class MicroBatch:
    """The tensors of one forward pass: B rows of W positions, S trained tokens in all."""

    input_ids: torch.Tensor
    """[B, W]; padded rows are filled up on the right with 0, and a packed or shared batch is one row."""
    positions: torch.Tensor
    """[S] row * W + column of the position that predicts each trained token."""
    targets: torch.Tensor
    """[S] the trained tokens."""
    advantages: torch.Tensor
    """[S]"""
    behaviour_logprobs: torch.Tensor
    """[S] at sampling."""
    sequences: torch.Tensor
    """[S] a number below S for each sequence, as it was before a row was cut into parts."""
    sequence_tokens: torch.Tensor
    """[S] float32, the trained tokens of each token's sequence, in all parts of the row."""
    lengths: tuple[int, ...] | None = None
    """Parts that lie end to end in the whole row of a packed or shared batch: a sequence, or what it does not share
    with one before it. None of a padded batch.
    """
    position_ids: torch.Tensor | None = None
    """[1, W] the place of each token in its own sequence; None of a padded batch."""
    paths: tuple[NDArray[np.int64], ...] | None = None
    """For each part of a shared batch, the positions in the whole row of its sequence's tokens up to its
    own last one.
    """

    @property
    def trained_tokens(self) -> int:
        return self.targets.numel()

    def to(self, device: torch.device) -> "MicroBatch":
        moved: Any = {n: value.to(device) for n, value in vars(self).items() if isinstance(value, torch.Tensor)}
        return replace(self, **moved)


@dataclass(frozen=True)
class Arrangement:
    steps: list[packing.MicroStep]
    positions: int
    """All that pass through the model, padding included."""
    padding: int
    shared: int
    """Saved by equal beginnings of sequences."""


def arrange(
    batching: Batching, sequences: Sequence[TrainingSequence], world_size: int, max_tokens: int, parts: int = 1
) -> Arrangement:
    """Divide sequences among micro-batches, the same on every rank.

    Args:
        max_tokens: positions of a micro-batch, unless it is one longer sequence.
        parts: ranks that share a micro-batch; a micro-step then has ``world_size / parts`` micro-batches.
    """
    widths = [s.width for s in sequences]
    total, rows = sum(widths), world_size // parts
    if batching is Batching.PADDED:
        steps = packing.pack(widths, rows, max_tokens)
        padded = sum(packing.padded_tokens(widths, share) for step in steps for share in step)
        return Arrangement(steps, padded, padded - total, 0)
    if batching is Batching.PACKED:
        steps = packing.pack_end_to_end(widths, rows, max_tokens)
        filler = sum(-sum(widths[i] for i in share) % parts for step in steps for share in step)
        return Arrangement(steps, total + filler, filler, 0)
    ordered = packing.SortedSequences.of([_passed_ids(s) for s in sequences])
    steps = packing.pack_shared(ordered, rows, max_tokens)
    positions = [ordered.positions(ordered.places(share)) for step in steps for share in step]
    filler = sum(-count % parts for count in positions)
    return Arrangement(steps, sum(positions) + filler, filler, total - sum(positions))


def lay_out(batching: Batching, sequences: Sequence[TrainingSequence]) -> MicroBatch:
    """Without sequences, a filler of one position without a trained token."""
    if batching is Batching.PADDED:
        return collate(sequences)
    return collate_shared(sequences) if batching is Batching.SHARED else collate_end_to_end(sequences)


def part_of(batch: MicroBatch, part: int, parts: int) -> MicroBatch:
    """One of several parts of equally many consecutive positions. The row is filled up on the right to a multiple of
    ``parts``; lengths and paths stay those of the whole row.
    """
    assert batch.lengths is not None and batch.position_ids is not None  # training_fits refuses padded batches
    missing = -batch.input_ids.shape[1] % parts
    width = (batch.input_ids.shape[1] + missing) // parts
    held = slice(part * width, (part + 1) * width)
    trained = (batch.positions >= held.start) & (batch.positions < held.stop)
    filler = np.arange(missing)
    return MicroBatch(
        F.pad(batch.input_ids, (0, missing))[:, held],
        batch.positions[trained] - held.start,
        batch.targets[trained],
        batch.advantages[trained],
        batch.behaviour_logprobs[trained],
        batch.sequences[trained],
        batch.sequence_tokens[trained],
        (*batch.lengths, missing) if missing else batch.lengths,
        torch.cat([batch.position_ids, torch.from_numpy(filler)[None]], 1)[:, held],
        (*batch.paths, batch.input_ids.shape[1] + filler) if batch.paths and missing else batch.paths,
    )


def collate(sequences: Sequence[TrainingSequence]) -> MicroBatch:
    """Lay sequences out in rows; without any, a filler of one row without a trained token."""
    width = max((s.width for s in sequences), default=1)
    input_ids = np.zeros((max(1, len(sequences)), width), dtype=np.int64)
    for row, s in enumerate(sequences):
        input_ids[row, : s.width] = _passed_ids(s)
    return _add_trained(input_ids, sequences, [row * width + np.arange(s.width) for row, s in enumerate(sequences)])


def collate_end_to_end(sequences: Sequence[TrainingSequence]) -> MicroBatch:
    """Lay sequences out in one row; without any, a filler of one position without a trained token."""
    lengths = tuple(s.width for s in sequences) or (1,)
    ids = np.concatenate([_passed_ids(s) for s in sequences]) if sequences else np.zeros(1, dtype=np.int64)
    starts = np.cumsum([0, *lengths])
    parts = [np.arange(length, dtype=np.int64) for length in lengths]
    batch = _add_trained(ids[None], sequences, [start + p for start, p in zip(starts, parts, strict=False)])
    return replace(batch, lengths=lengths, position_ids=torch.from_numpy(np.concatenate(parts)[None]))


def collate_shared(sequences: Sequence[TrainingSequence]) -> MicroBatch:
    """Lay sequences out in one row with each shared prefix once. Trained tokens are in the order of the row; one
    position may predict several.
    """
    if not sequences:
        return collate_end_to_end(sequences)
    row = packing.SharedRow.of([_passed_ids(s) for s in sequences])
    batch = _add_trained(row.ids[None], [sequences[i] for i in row.order], row.paths)
    parts = [(own, path) for own, path in zip(row.own, row.paths, strict=True) if own]
    return replace(
        batch,
        lengths=tuple(own for own, _ in parts),
        position_ids=torch.from_numpy(row.places[None]),
        paths=tuple(path for _, path in parts),
    )


def _passed_ids(s: TrainingSequence) -> NDArray[np.int64]:
    return np.asarray([*s.prompt_ids, *s.token_ids], dtype=np.int64)[: s.width]


def _add_trained(
    input_ids: NDArray[np.int64], sequences: Sequence[TrainingSequence], paths: Sequence[NDArray[np.int64]]
) -> MicroBatch:
    """A path gives the places of one sequence in the flattened token ids."""
    kept = [np.flatnonzero(s.mask) for s in sequences]
    chosen = list(zip(sequences, kept, paths, strict=False))  # a filler has a path, and no sequence
    return MicroBatch(
        torch.from_numpy(input_ids),
        _join_arrays([path[len(s.prompt_ids) - 1 + k] for s, k, path in chosen], np.int64),
        _join_arrays([np.asarray(s.token_ids, dtype=np.int64)[k] for s, k, _ in chosen], np.int64),
        _join_arrays([s.advantages[k] for s, k, _ in chosen], np.float32),
        _join_arrays([s.behaviour_logprobs[k] for s, k, _ in chosen], np.float32),
        _join_arrays([np.full(len(k), number) for number, k in enumerate(k for k in kept if len(k))], np.int64),
        _join_arrays([np.full(len(k), len(k)) for k in kept], np.float32),
    )


def _join_arrays(parts: list[np.ndarray], dtype: type) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype))
