"""What an update measured: sums over tokens, exchanged between the ranks, and the figures made of them."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import distributed

from mrt_hpc.training.accelerator import synchronize
from mrt_hpc.training.losses import SUMS, TokenLoss

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class UpdateStats:
    """The figures of one update. Means are over the trained tokens that were computed, on all ranks."""

    loss: float
    """The objective minimised, per trained token; mean over optimiser steps."""
    grad_norm: float
    """Global gradient norm before clipping; mean over optimiser steps."""
    learning_rate: float
    """Of the last optimiser step."""
    nll: float
    """Negative log-likelihood of the sampled tokens."""
    entropy: float
    """Entropy of the policy, nats."""
    kl_reference: float
    """KL to the reference (k3); 0 without one."""
    kl_old: float
    """KL from the policy before this update (k3)."""
    clip_fraction: float
    """Share of tokens whose ratio was clipped."""
    mismatch_mean: float
    """Mean of pi_old / mu before truncation: 1 when engine and trainer agree."""
    mismatch_max: float
    mismatch_kl: float
    """KL from the behaviour policy to pi_old (k3)."""
    importance_capped_share: float
    """Share of tokens whose importance weight was above its cap. (A truncated rollout is another thing.)"""
    tokens: int
    """Trained tokens of the batch: what the loss is divided by, summed over optimiser steps."""
    computed_tokens: int
    """Trained tokens that were computed; the others have advantage 0 and change nothing."""
    positions: int
    """Positions that passed through the model, padding included."""
    padding_share: float
    """Share of positions that were padding."""
    sequences: int
    micro_steps: int
    """Forward passes a rank."""
    optimizer_steps: int
    step: int
    """Optimiser steps taken since the start of the run."""
    seconds_forward: float
    seconds_backward: float
    seconds_step: float
    seconds_update: float
    """Of this rank; the whole update."""

    def as_dict(self) -> dict[str, float | int]:
        """By name; no name stands for another thing in ``IterationMetrics``."""
        return asdict(self)


@dataclass
class Stopwatch:
    """Seconds by phase."""

    seconds: dict[str, float] = field(default_factory=lambda: {"forward": 0.0, "backward": 0.0, "step": 0.0})

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block, device included, to ``name``."""
        start = time.perf_counter()
        yield
        synchronize()
        self.seconds[name] += time.perf_counter() - start


class Tally:
    """Sums over the micro-batches of this rank, then over all ranks."""

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(len(SUMS), dtype=torch.float64, device=device)
        self.total = torch.zeros((), dtype=torch.float64, device=device)
        self.largest = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, loss: TokenLoss, normaliser: int) -> None:
        """Take in one micro-batch of a step whose loss is divided by ``normaliser``."""
        self.sums += loss.sums
        self.total += loss.total.detach().double() / normaliser
        self.largest = torch.maximum(self.largest, loss.largest_mismatch.double())

    def gathered(self) -> tuple[float, dict[str, float], float]:
        """Of all ranks: the loss summed over steps, the token sums by name, the largest mismatch. Collective."""
        together = torch.cat([self.sums, self.total[None]])
        distributed.all_reduce(together)
        distributed.all_reduce(self.largest, op=distributed.ReduceOp.MAX)
        *sums, total = together.tolist()
        return total, dict(zip(SUMS, sums, strict=True)), float(self.largest)
