"""The trainer's gradient of each group, on one process, without an optimiser. ``bf16`` becomes ``bf16_autocast``, for
gradients of 32 bits; there is no KL term.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from mrt_hpc.recipe.choices import Precision
from mrt_hpc.run.seeds import derive_seed
from mrt_hpc.training.accelerator import choose_kernels, device
from mrt_hpc.training.engine import TrainerEngine
from mrt_hpc.training.policy import Kernels, load_policy
from mrt_hpc.training.rendezvous import Ranks
from mrt_hpc.training.settings import TrainerSettings, TrainingSequence

WHOLE = 1 << 20
"""A gradient of so many numbers is kept as it is."""
KEPT = 1 << 16
"""Of a projection: products of gradients a and b are off by |a| |b| / 256."""
EPSILON, DECAY = 1e-8, 0.999


class LoneEngine:
    """Of DeepSpeed's engine what a gradient needs."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def __call__(self, *arguments: Any) -> Any:
        return self.module(*arguments)

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        pass

    def zero_optimization_partition_weights(self) -> bool:
        return False

    def backward(self, loss: torch.Tensor, scale_wrt_gas: bool) -> None:  # noqa: ARG002 - DeepSpeed's name
        loss.backward()


def gradient_trainer(settings: TrainerSettings, directory: Path) -> TrainerEngine:
    choose_kernels(settings.training.deterministic)
    precision = settings.training.precision
    precision = Precision.BF16_AUTOCAST if precision is Precision.BF16 else precision
    training = settings.training.model_copy(update={"precision": precision, "kl_coefficient": 0.0})
    policy = load_policy(
        directory, settings.temperature, precision, training.gradient_checkpointing, kernels=Kernels.of(training)
    )
    return TrainerEngine(
        LoneEngine(policy.to(device()).train()), replace(settings, training=training), directory, Ranks(), None
    )


def group_gradients(
    trainer: TrainerEngine, sequences: Sequence[TrainingSequence]
) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Each group's part of the gradient of a mini-batch; the tensors are its own until the next one."""
    groups: dict[str, list[TrainingSequence]] = {}
    for sequence in sequences:
        groups.setdefault(sequence.group, []).append(sequence)
    divisor = trainer.divisor([s.trained_tokens for s in sequences])
    for name, mine in sorted(groups.items()):
        trainer.policy.zero_grad()
        trainer.accumulate(replace(trainer.prepare(mine), divisor=divisor))
        yield name, [torch.zeros_like(p) if p.grad is None else p.grad for p in trained_parameters(trainer).values()]


def trained_parameters(trainer: TrainerEngine) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in trainer.policy.named_parameters() if p.requires_grad}


def adam_scales(trainer: TrainerEngine, moments: Mapping[str, torch.Tensor], steps: int) -> list[torch.Tensor]:
    """Adam's factors in the last of ``steps``, after which it held ``moments``, but for the learning rate."""
    correction = 1 - DECAY ** max(1, steps)  # 0 steps: none was finite
    stored = [moments[name].to(device()) for name in trained_parameters(trainer)]
    return [1 / ((v / correction).sqrt() + EPSILON) for v in stored]


def kept_numbers(tensors: Sequence[torch.Tensor], seed: int) -> NDArray[np.float32]:
    """A gradient, or its projection: each number is added with a random sign to a random place."""
    if sum(tensor.numel() for tensor in tensors) <= WHOLE:
        return torch.cat([tensor.flatten() for tensor in tensors]).float().cpu().numpy()
    total = torch.zeros(KEPT, device=tensors[0].device)
    for number, tensor in enumerate(tensors):
        own = derive_seed(seed, "projection", number)
        places, signs = random.Random(own), torch.Generator(tensor.device).manual_seed(own)
        for part in tensor.flatten().float().split(KEPT):
            sign = torch.randint(0, 2, part.shape, generator=signs, device=part.device) * 2 - 1
            total += F.pad(part * sign, (0, KEPT - len(part))).roll(places.randrange(KEPT))
    return total.cpu().numpy()
