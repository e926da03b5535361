"""A trainer whose memory was parked between two updates continues as one whose memory stayed, to the bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from training_support import random_batch, settings, tiny_model

from mrt_hpc.training.accelerator import park, unpark
from mrt_hpc.training.engine import TrainerEngine, build

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.training.rendezvous import Ranks


def weights_after(model: Path, stage: int, ranks: Ranks, *, parked: bool) -> list[torch.Tensor]:
    """The weights after two updates, with the memory parked between them or not. They lie in memory that can be freed,
    as on a GPU; on a CPU stage 0 keeps the mapped file.
    """
    engine = build(settings(zero_stage=stage), model, ranks)
    for parameter in engine.policy.parameters() if stage == 0 else ():
        parameter.data = parameter.data.clone()
    engine.update(random_batch(1))
    if parked:
        content = park("cpu")
        sizes = [weight.untyped_storage().nbytes() for weight in held(engine)]
        unpark(content)
        assert set(sizes) == {0}
    engine.update(random_batch(2))
    return [weight.detach().clone() for weight in held(engine)]


def held(engine: TrainerEngine) -> list[torch.Tensor]:
    """The weights that this rank holds: under ZeRO-3 its part of each."""
    return [getattr(parameter, "ds_tensor", parameter) for parameter in engine.policy.parameters()]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_parked_memory_comes_back_to_the_bit(tmp_path: Path, one_rank: Ranks, stage: int) -> None:
    model = tiny_model(tmp_path / "model")
    stayed, moved = (weights_after(model, stage, one_rank, parked=parked) for parked in (False, True))
    assert all(map(torch.equal, stayed, moved))


def test_views_of_parked_memory_stay_views() -> None:
    whole = torch.arange(6.0)
    part = whole[2:4]
    content = park("cpu")
    emptied = whole.untyped_storage().nbytes()
    unpark(content)
    assert emptied == 0
    part += 1.0
    assert whole.tolist() == [0.0, 1.0, 3.0, 4.0, 4.0, 5.0]
