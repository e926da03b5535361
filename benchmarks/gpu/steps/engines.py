"""Models and engines that several steps use, and the digests by which they compare bits."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from bench_trainer_gpu import destroy, release
from memory_worker import sequences, training_of, write_model
from paper_sequences import config_of
from warm_start import build_tokenizer

from mrt_hpc.plan.memory import shape_of
from mrt_hpc.run.atomic import temporary_sibling
from mrt_hpc.training.accelerator import choose_kernels, device, synchronize
from mrt_hpc.training.engine import TrainerEngine, build
from mrt_hpc.training.rendezvous import Ranks, join
from mrt_hpc.training.settings import TrainerSettings, TrainingSequence
from steps.record import Record

RECIPE = {"batching": "packed", "projection": "fused", "entropy": False}  # what the recipes for GPUs choose
AT_ONCE = 1 << 24  # the numbers of 64 bits that a digest reads at once


def model(record: Record, seed: int = 0) -> Path:
    """The directory of a model of random weights; one for all steps."""
    directory = record.folder / f"{record.shape}-{seed}"
    if not directory.is_dir():
        half = temporary_sibling(directory)
        half.mkdir()
        with device():
            write_model(half, shape_of(config_of(record.shape).to_dict()), seed)
        build_tokenizer().save_pretrained(half)
        half.rename(directory)
        release(device())
    return directory


def batch(record: Record) -> list[TrainingSequence]:
    lengths = [40, 60] if record.tiny else [4096, 6144, 8192]
    return sequences(lengths, config_of(record.shape).vocab_size)


@cache
def one_rank() -> Ranks:
    choose_kernels(None)
    join(Ranks())
    return Ranks()


@contextmanager
def engine(directory: Path, **training: object) -> Iterator[TrainerEngine]:
    """The trainer's engine with the choices of the recipes, until the end of the block."""
    release(device())
    found = build(TrainerSettings(training_of({**RECIPE, **training}, "bf16"), 100, 1.0), directory, one_rank())
    try:
        yield found
    finally:
        destroy(found.engine)
        del found
        release(device())


def timed(action: Callable[[], Any]) -> tuple[Any, float]:
    synchronize()
    started = time.perf_counter()
    result = action()
    synchronize()
    return result, round(time.perf_counter() - started, 3)


def digest(tensor: torch.Tensor | torch.UntypedStorage) -> int:
    """A number of 64 bits that changes with any one bit."""
    storage = tensor if isinstance(tensor, torch.UntypedStorage) else tensor.contiguous().untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    even = len(whole) // 8 * 8
    total = 0
    for part in (*whole[:even].view(torch.int64).split(AT_ONCE), whole[even:].long()):
        odd = 2 * torch.arange(len(part), device=part.device) + 1
        mixed = part * odd
        mixed ^= (mixed >> 32) & 0xFFFFFFFF  # so that two changes do not cancel
        total = (total * 1_000_003 + int((mixed * odd).sum())) % 2**64
    return total
