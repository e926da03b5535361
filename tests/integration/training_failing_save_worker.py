"""One rank of the test of failing writes: saves with one thing after another going wrong, then goes back and on."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from training_support import end_at_once, random_batch, settings

from mrt_hpc.errors import UserError
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.training import checkpoint
from mrt_hpc.training.accelerator import choose_kernels
from mrt_hpc.training.engine import build
from mrt_hpc.training.rendezvous import Ranks, join

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL_FILES = 12_000
"""Bytes: several rounds of files, so that ranks must go on gathering after a failure."""


def on_full_disk(write: Callable[..., object]) -> Callable[..., object]:
    """``write`` into a file for which the system has no room, whatever its name.

    The name is a link of our own to /dev/full, so that nothing that renames or removes the name touches the device.
    """

    def writing(path: Path, tensors: dict[str, torch.Tensor]) -> object:
        path.symlink_to("/dev/full")
        return write(path, tensors)

    return writing


def where_a_directory_stands(write: Callable[..., object]) -> Callable[..., object]:
    """``write`` to a name that is taken."""

    def writing(path: Path, tensors: dict[str, torch.Tensor]) -> object:
        path.mkdir()
        return write(path, tensors)

    return writing


def on_a_full_quota(_: Callable[..., object]) -> Callable[..., object]:
    """What a filesystem with quotas answers."""

    def writing(path: Path, *_: object, **__: object) -> object:
        raise OSError(122, os.strerror(122), str(path))

    return writing


CASES: dict[str, tuple[int, str, Callable[..., Any]]] = {
    "full-1": (1, "write_tensors", on_full_disk),
    "full-0": (0, "write_tensors", on_full_disk),
    "taken-1": (1, "write_tensors", where_a_directory_stands),
    "quota-0": (0, "write_manifest", on_a_full_quota),
    "state-0": (0, "commit_directory", on_a_full_quota),
}


def attempt(case: str, path: Path, ranks: Ranks, trainer: Any) -> dict[str, Any]:
    """Save with ``case`` going wrong; how long it took and what was raised."""
    failing_rank, function, wrong = CASES[case]
    if ranks.rank != failing_rank:
        patch = mock.patch.object(checkpoint, "STATE", checkpoint.STATE)
    else:
        patch = mock.patch.object(checkpoint, function, wrong(getattr(checkpoint, function)))
    started = time.monotonic()
    try:
        with patch:
            checkpoint.save(trainer, path, {})
    except (OSError, UserError) as error:
        number = error.errno if isinstance(error, OSError) else None
        return {"type": type(error).__name__, "errno": number, "text": str(error), "s": time.monotonic() - started}
    return {"type": None}


def main() -> None:
    """Arguments: rank, world size, address file, model, run directory, ZeRO stage."""
    rank, world_size = int(sys.argv[1]), int(sys.argv[2])
    model, run, stage = Path(sys.argv[4]), Path(sys.argv[5]), int(sys.argv[6])
    torch.set_num_threads(1)
    ranks, layout = Ranks(rank, world_size, rank), RunLayout(run)
    choose_kernels(None)
    join(ranks, Path(sys.argv[3]), timeout_s=240)
    checkpoint.FILE_BYTES = SMALL_FILES
    trainer = build(settings(zero_stage=stage), model, ranks)
    trainer.update(random_batch(0))
    seen: dict[str, Any] = {}
    for case in CASES:
        seen[case] = attempt(case, layout.checkpoint(1), ranks, trainer)
        torch.distributed.barrier()
        seen[case]["left"] = sorted(p.name for p in layout.checkpoints.iterdir())
        torch.distributed.barrier()
    assert checkpoint.save(trainer, layout.checkpoint(1), {"whole": True})
    going_on = [trainer.update(random_batch(seed)) for seed in (1, 2)]
    assert checkpoint.load(trainer, layout.checkpoint(1)) == {"whole": True}  # back to where it was
    again = [trainer.update(random_batch(seed)) for seed in (1, 2)]
    seen_both = [[(u.step, u.loss, u.nll, u.grad_norm) for u in updates] for updates in (going_on, again)]
    assert seen_both[0] == seen_both[1], seen_both
    (run / f"seen-{rank}.json").write_text(json.dumps(seen))
    end_at_once()


if __name__ == "__main__":
    main()
