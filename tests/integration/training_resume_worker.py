"""One rank of the resume test: trains, stops, goes on from the checkpoint, publishes; rank 0 writes what it saw."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np
import torch
from training_support import random_batch, settings

from mrt_hpc.run import weights
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.training import checkpoint, export
from mrt_hpc.training.engine import build
from mrt_hpc.training.rendezvous import Ranks, join, leave
from mrt_hpc.training.settings import Precision


def draws() -> list[float]:
    """One number of every generator."""
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def main() -> None:
    """Arguments: rank, world size, address file, model, run directory, stage, precision, save or load."""
    rank, world_size = int(sys.argv[1]), int(sys.argv[2])
    model, run, stage, precision, action = sys.argv[4:]
    torch.set_num_threads(1)
    ranks, layout = Ranks(rank, world_size, rank), RunLayout(Path(run))
    join(ranks, Path(sys.argv[3]), timeout_s=120)
    trainer = build(settings(zero_stage=int(stage), precision=Precision(precision)), Path(model), ranks)
    seen: dict[str, object] = {}
    if action == "save":
        trainer.update(random_batch(0))
        trainer.update(random_batch(1))
        assert checkpoint.save(trainer, layout.checkpoint(2), {"iteration": 2})
        assert not checkpoint.save(trainer, layout.checkpoint(2), {"iteration": 99})
    else:
        seen["cursor"] = checkpoint.load(trainer, layout.checkpoint(2))
    seen["draws"] = draws()
    seen["updates"] = [trainer.update(random_batch(seed)).as_dict() for seed in (2, 3)]
    version = 1 if action == "save" else 2
    assert export.publish(trainer, lambda write: weights.publish(layout, version, write), "float32")
    probe = [trainer._old_logprobs(trainer.prepare(random_batch(7)))]
    if rank == 0:
        torch.save(probe, Path(run) / f"probe-{action}.pt")
        (Path(run) / f"{action}.json").write_text(json.dumps(seen))
    leave()


if __name__ == "__main__":
    main()
