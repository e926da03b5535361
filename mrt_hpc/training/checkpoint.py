"""The trainer's resumable state: DeepSpeed's weights and optimiser, every rank's generators, and how far the data was
used.

A checkpoint is a directory, complete or absent: written under a temporary name, described by a manifest, renamed.
Weights for serving are another thing: see ``export``.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import distributed

from mrt_hpc.recipe.errors import UserError
from mrt_hpc.run.atomic import commit_directory, is_temporary, temporary_sibling, write_json
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import MANIFEST, verify, write_manifest
from mrt_hpc.training.rendezvous import on_rank_zero

if TYPE_CHECKING:
    from mrt_hpc.training.engine import TrainerEngine

STATE = "state.json"
DEEPSPEED_TAG = "deepspeed"


def save(trainer: TrainerEngine, path: Path, cursor: dict[str, Any]) -> bool:
    """Write a checkpoint; collective.

    Args:
        trainer: its state between two updates.
        path: the directory to appear, as of ``RunLayout.checkpoint``.
        cursor: how far the run has come, anything that JSON holds; ``load`` gives it back.

    Returns:
        False when a checkpoint was there already, which is kept.
    """
    temporary = Path(on_rank_zero(lambda: _make_temporary(path)))
    trainer.engine.save_checkpoint(str(temporary), tag=DEEPSPEED_TAG, save_latest=False)
    torch.save(_generators(), temporary / _generator_file(trainer.ranks.rank))
    distributed.barrier()

    def commit() -> bool:
        write_json(temporary / STATE, {**_shape(trainer), "step": trainer.step, "cursor": cursor})
        write_manifest(temporary, step=trainer.step)
        return commit_directory(temporary, path)

    return on_rank_zero(commit)


def load(trainer: TrainerEngine, path: Path) -> dict[str, Any]:
    """Take up a checkpoint and return its cursor; collective.

    Raises:
        UserError: the checkpoint is damaged, or of another number of ranks, ZeRO stage or precision.
    """
    state = on_rank_zero(lambda: _checked_state(trainer, path))
    trainer.engine.load_checkpoint(str(path), tag=DEEPSPEED_TAG, load_lr_scheduler_states=False)
    trainer.step = state["step"]
    _restore_generators(torch.load(path / _generator_file(trainer.ranks.rank), weights_only=True))
    return dict(state["cursor"])


def newest(checkpoints: Path) -> Path | None:
    """The complete checkpoint of the highest number in a directory."""
    complete = _complete(checkpoints)
    return complete[-1] if complete else None


def retain(checkpoints: Path, keep: int) -> list[Path]:
    """Remove all but the newest ``keep`` checkpoints, and what writers that died have left; by one process only.

    Returns:
        The checkpoints removed.
    """
    doomed = _complete(checkpoints)[: -max(1, keep)]
    for path in doomed:
        path.rename(temporary_sibling(path))  # no reader meets half of it
    for path in checkpoints.iterdir() if checkpoints.is_dir() else []:
        if is_temporary(path):
            shutil.rmtree(path)
    return doomed


def _complete(checkpoints: Path) -> list[Path]:
    """Ascending."""
    paths = list(checkpoints.iterdir()) if checkpoints.is_dir() else []
    numbered = ((RunLayout.step_of(p), p) for p in paths if (p / MANIFEST).is_file())
    return [p for _, p in sorted((number, p) for number, p in numbered if number is not None)]


def _make_temporary(path: Path) -> str:
    temporary = temporary_sibling(path)
    temporary.mkdir(parents=True)
    return str(temporary)


def _shape(trainer: TrainerEngine) -> dict[str, Any]:
    """What a checkpoint must have in common with the trainer that takes it up."""
    settings = trainer.settings
    return {
        "world_size": trainer.ranks.world_size,
        "zero_stage": settings.zero_stage,
        "precision": settings.precision.value,
    }


def _checked_state(trainer: TrainerEngine, path: Path) -> dict[str, Any]:
    verify(path)
    state: dict[str, Any] = json.loads((path / STATE).read_text())
    shape = _shape(trainer)
    written = {name: state[name] for name in shape}
    if written != shape:
        raise UserError(
            "this checkpoint is of a trainer of another shape",
            value=shape,
            where=path,
            expected=str(written),
            advice="give the trainer the ranks, training.zero_stage and training.precision it was written with",
        )
    return state


def _generator_file(rank: int) -> str:
    return f"generators-{rank:05d}.pt"


def _generators() -> dict[str, Any]:
    """The state of every random generator of this process, in types that load without executing code."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    assert kind == "MT19937"
    return {
        "python": random.getstate(),
        "numpy": (torch.from_numpy(np.asarray(keys).astype(np.int64)), int(position), int(has_gauss), float(gauss)),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def _restore_generators(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def good(checkpoints: Path, on_bad: Any) -> Path | None:
    for path in reversed(_complete(checkpoints)):
        try:
            verify(path)
            return path
        except UserError as error:
            on_bad(path, error)
    return None
