"""One rank of the loading tests: compares the partitioned model with one that was loaded whole, on every rank."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from training_support import end_at_once, settings

from mrt_hpc.recipe.choices import Precision
from mrt_hpc.training.accelerator import choose_kernels, deepspeed
from mrt_hpc.training.engine import deepspeed_config
from mrt_hpc.training.policy import load_policy, parameter_count
from mrt_hpc.training.rendezvous import Ranks, join


def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> dict[str, bool]:
    """Whether each tensor has the same number format and the same values."""
    assert ours.keys() == theirs.keys()
    return {n: t.dtype == theirs[n].dtype and torch.equal(t, theirs[n]) for n, t in ours.items()}


def compare(model: Path, precision: Precision) -> dict[str, bool]:
    """By tensor, parameters and buffers."""
    whole = load_policy(model, 1.0, precision)
    config = deepspeed_config(settings(zero_stage=3, precision=precision), parameter_count(model))
    ours = load_policy(model, 1.0, precision, partition=config)
    parameters = dict(ours.named_parameters())
    assert all(p.numel() == 0 for p in parameters.values())
    with deepspeed.zero.GatheredParameters(list(parameters.values())):
        found = same(parameters, dict(whole.named_parameters()))
    return found | same(dict(ours.named_buffers()), dict(whole.named_buffers()))


def main() -> None:
    """Arguments: rank, world size, address file, directory for what was seen, models."""
    rank, world_size = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    choose_kernels(None)
    join(Ranks(rank, world_size, rank), Path(sys.argv[3]), timeout_s=120)
    seen = {f"{Path(m).name} {p.value}": compare(Path(m), p) for m in sys.argv[5:] for p in Precision}
    (Path(sys.argv[4]) / f"seen-{rank}.json").write_text(json.dumps(seen))
    end_at_once()


if __name__ == "__main__":
    main()
