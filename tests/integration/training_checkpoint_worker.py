"""One rank of the checkpoint tests: does a list of jobs, each with a trainer of its own, and writes what it saw."""

from __future__ import annotations

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from training_support import end_at_once, random_batch, settings

from mrt_hpc.recipe.choices import Batching, Precision
from mrt_hpc.run import weights
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.training import checkpoint, export
from mrt_hpc.training.accelerator import choose_kernels
from mrt_hpc.training.engine import build
from mrt_hpc.training.rendezvous import Ranks, join
from mrt_hpc.training.trained_state import KEYS, TrainedState


def draws() -> list[float]:
    """One number of every generator; the normal ones come in pairs, of which the second is kept."""
    normals = [random.gauss(0, 1), float(np.random.randn())]
    return [random.random(), float(np.random.rand()), float(torch.rand(())), *normals]


def same_bits(trained: TrainedState, ranks: Ranks) -> bool:
    """Whether what is put comes back from ``gather`` with the same bits, on every rank, for every parameter."""
    same = True
    for name, shape in trained.shapes.items():
        for number, key in enumerate(KEYS):
            bits = torch.arange(math.prod(shape), dtype=torch.int32) * 7919 + number
            bits[:4] = torch.tensor([-0.0, math.nan, math.inf, 1e-42]).view(torch.int32)
            trained.put(name, key, bits.view(torch.float32).view(shape))
            for rank in range(ranks.world_size):
                whole = trained.gather(name, key, rank)
                assert (whole is None) == (rank != ranks.rank)
                if whole is not None:
                    same &= whole.shape == shape and torch.equal(whole.reshape(-1).view(torch.int32), bits)
    return same


def do(job: dict[str, Any], model: Path, run: Path, ranks: Ranks) -> dict[str, Any]:
    """Train or load, perhaps save, go on, publish."""
    seen: dict[str, Any] = {}
    chosen = settings(
        zero_stage=job["stage"],
        precision=Precision(job["precision"]),
        batching=Batching(job.get("batching", "padded")),
        sequence_parallel=job.get("sequence_parallel", 1),
    )
    trainer = build(chosen, model, ranks)
    if "load" in job:
        seen["cursor"] = checkpoint.load(trainer, RunLayout(run / job["load"]).checkpoint(2))
    else:
        for seed in (0, 1):
            trainer.update(random_batch(seed))
        draws()
        if "save" in job:
            path = RunLayout(run / job["save"]).checkpoint(2)
            assert checkpoint.save(trainer, path, {"iteration": 2, "seen": [0.1, None]})
            assert not checkpoint.save(trainer, path, {"iteration": 99})
    seen["draws"] = draws()
    seen["updates"] = [trainer.update(random_batch(seed)).as_dict() for seed in (2, 3, 4)]
    layout = RunLayout(run / f"{job['name']}-{ranks.world_size}")
    assert export.publish(trainer, lambda write: weights.publish(layout, 1, write), "float32")
    trained = TrainedState(trainer)
    seen["optimizer_steps"] = trained.optimizer_steps
    seen["same_bits"] = same_bits(trained, ranks) if job.get("bits") else None
    return seen


def main() -> None:
    """Arguments: rank, world size, address file, model, run directory, jobs as JSON."""
    rank, world_size = int(sys.argv[1]), int(sys.argv[2])
    model, run, jobs = Path(sys.argv[4]), Path(sys.argv[5]), json.loads(sys.argv[6])
    torch.set_num_threads(1)
    ranks = Ranks(rank, world_size, rank)
    choose_kernels(None)
    join(ranks, Path(sys.argv[3]), timeout_s=120)
    for job in jobs:
        seen = do(job, model, run, ranks)
        (run / f"{job['name']}-{world_size}-{rank}.json").write_text(json.dumps(seen))
    end_at_once()


if __name__ == "__main__":
    main()
