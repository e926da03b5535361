"""Engines whose memory leaves the GPU and comes back: bits, seconds each way, and what stays on the GPU."""

from pathlib import Path
from typing import Any

import torch

from mrt_hpc.training.accelerator import device
from mrt_hpc.training.engine import TrainerEngine
from mrt_hpc.training.host_memory import _storages, park, unpark
from mrt_hpc.training.settings import TrainingSequence
from steps.engines import batch, digest, engine, model, timed
from steps.record import Record

STAGES = (1, 2, 3)
TURNS = 3


def run(record: Record) -> None:
    record.needs_gpu_unless_tiny()
    directory = model(record)
    for stage in STAGES:
        record.part(f"stage {stage}", turns, directory, stage, batch(record))


def turns(directory: Path, stage: int, learnt: list[TrainingSequence]) -> dict[str, Any]:
    before = held_gib()
    with engine(directory, zero_stage=stage) as trainer:
        return {"before": before, "turns": [turn(trainer, learnt) for _ in range(TURNS)]}


def turn(trainer: TrainerEngine, learnt: list[TrainingSequence]) -> dict[str, Any]:
    stats, update_s = timed(lambda: trainer.update(learnt))
    kind = device().type
    storages = _storages(kind)
    digests = [digest(storage) for storage in storages]
    held = held_gib()
    parked, park_s = timed(lambda: park(kind))
    content = sum(one.content.nbytes for one in parked) / 2**30
    left = held_gib()
    _, unpark_s = timed(lambda: unpark(parked))
    return {
        "update_s": update_s,
        "park_s": park_s,
        "unpark_s": unpark_s,
        "parked_gib": content,
        "held": held,
        "left": left,
        "storages": len(storages),
        "same_bits": [digest(storage) for storage in storages] == digests,
        "grad_norm": stats.grad_norm,
    }


def held_gib() -> dict[str, float]:
    """What tensors and what all processes hold of the GPU, GiB; nothing on a CPU."""
    if device().type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info()
    return {"tensors": torch.cuda.memory_allocated() / 2**30, "device": (total - free) / 2**30}
