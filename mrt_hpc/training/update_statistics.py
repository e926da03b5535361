"""The statistics of an update: sums over tokens, exchanged between the ranks, and figures from them."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import distributed

from mrt_hpc.training.accelerator import synchronize
from mrt_hpc.training.losses import SUMS, TokenLoss
from mrt_hpc.training.settings import TrainingSequence


@dataclass(frozen=True)
class SkippedStep:
    """An optimiser step that was not taken, because its loss or its gradient was not finite."""

    mini_batch: int
    """Its number within the iteration, from 0."""
    found_in: Literal["loss", "gradient"]
    """The gradient is named only where all losses were finite."""
    sequences: Sequence[TrainingSequence]
    """Sequences without a finite loss, or else the whole mini-batch."""

    @property
    def problems(self) -> list[str]:
        """The sequences' groups, each once."""
        return list(dict.fromkeys(s.group for s in self.sequences))

    def as_dict(self) -> dict[str, object]:
        """As JSON; numbers that are not finite are NaN and Infinity."""
        sequences = [{name: np.asarray(value).tolist() for name, value in vars(s).items()} for s in self.sequences]
        return {"mini_batch": self.mini_batch, "not_finite": self.found_in, "sequences": sequences}

    def __str__(self) -> str:
        return (
            f"the optimiser step of mini-batch {self.mini_batch} was skipped: its {self.found_in} is not finite, in "
            f"{len(self.sequences)} sequence(s) of {', '.join(self.problems[:3])}{', ...' * (len(self.problems) > 3)}"
        )


@dataclass(frozen=True)
class UpdateStats:
    """The figures of one update. Means are over the trained tokens that were computed, on all ranks, without skipped
    steps; without any step, figures of tokens are 0.
    """

    loss: float
    """The minimised objective, divided as ``training.aggregation`` says; mean over optimiser steps."""
    grad_norm: float
    """Global norm before clipping; mean over optimiser steps."""
    learning_rate: float
    """The rate of the last optimiser step that was taken."""
    nll: float
    """Negative log-likelihood of the sampled tokens."""
    entropy: float | None
    """The policy's entropy, nats; None where the recipe does not ask for it."""
    kl_reference: float
    """KL from the policy to the reference (k3, with the tokens' importance weights); 0 without one."""
    kl_old: float
    """KL from the policy before this update (k3)."""
    clip_fraction: float
    """Share of tokens whose gradient the loss bounds: ``clipped`` and ``gspo_token`` end it, ``cispo`` clips its ratio,
    ``dppo`` and ``masked`` leave the token out.
    """
    mismatch_mean: float
    """Mean of pi_old / mu before truncation; 1 when engine and trainer agree."""
    mismatch_max: float
    effective_sample_share: float
    """Kish's effective sample size, (sum of w)^2 / sum of w^2 with w = pi_old / mu before truncation, as a share of the
    tokens; 1 when all weigh the same.
    """
    mismatch_kl: float
    """KL from the behaviour policy to pi_old (k3)."""
    importance_capped_share: float
    """Share of tokens whose importance weight was above its cap; unrelated to truncated rollouts."""
    tokens: int
    """Trained tokens of the batch; summed over optimiser steps."""
    computed_tokens: int
    """Trained tokens that were computed; the others have advantage 0 and change nothing."""
    positions: int
    """Positions that passed through the model, padding included."""
    padding_share: float
    """Share of positions."""
    shared_prefix_share: float
    """Share of positions that another sequence of their micro-batch saved by the same beginning; 0 unless batching is
    shared.
    """
    sequences: int
    micro_steps: int
    """Forward passes per rank."""
    optimizer_steps: int
    skipped_steps: int
    """Steps that were not taken, because loss or gradient were not finite."""
    step: int
    """Optimiser steps since the start of the run."""
    seconds_forward: float
    seconds_backward: float
    seconds_step: float
    seconds_update: float
    """The length of the whole update, on this rank."""

    def as_dict(self) -> dict[str, float | int | None]:
        """No name has another meaning in ``IterationMetrics``."""
        return asdict(self)


@dataclass
class Stopwatch:
    seconds: dict[str, float] = field(default_factory=lambda: {"forward": 0.0, "backward": 0.0, "step": 0.0})

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block, device included."""
        start = time.perf_counter()
        yield
        synchronize()
        self.seconds[name] += time.perf_counter() - start


class Tally:
    """Sums over the micro-batches of this rank, and then over all ranks."""

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(len(SUMS), dtype=torch.float64, device=device)
        self.total = torch.zeros((), dtype=torch.float64, device=device)
        self.largest = torch.zeros((), dtype=torch.float64, device=device)
        self._finite: list[torch.Tensor] = []

    @property
    def finite_losses(self) -> torch.Tensor:
        """[micro-batches] bool."""
        return torch.stack(self._finite)

    def include(self, other: "Tally") -> None:
        self.sums += other.sums
        self.total += other.total
        self.largest = torch.maximum(self.largest, other.largest)

    def add(self, loss: TokenLoss, normaliser: int) -> None:
        """Add a micro-batch of a step whose loss is divided by ``normaliser``."""
        self.sums += loss.sums
        self.total += loss.total.detach().double() / normaliser
        self.largest = torch.maximum(self.largest, loss.largest_mismatch.double())
        self._finite.append(loss.total.detach().isfinite())

    def gather_sums(self) -> tuple[float, dict[str, float], float]:
        """Over all ranks: the loss summed over steps, the token sums by name, and the largest mismatch. Collective."""
        together = torch.cat([self.sums, self.total[None]])
        distributed.all_reduce(together)
        distributed.all_reduce(self.largest, op=distributed.ReduceOp.MAX)
        *sums, total = together.tolist()
        return total, dict(zip(SUMS, sums, strict=True)), float(self.largest)
