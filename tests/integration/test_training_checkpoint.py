"""Stopping and going on: the same bits in the same shape, the same training in any other, and no damage unnoticed."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from training_support import run_ranks, settings, tiny_model

from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import MANIFEST, verify
from mrt_hpc.run.seeds import derive_seed

if TYPE_CHECKING:
    from pathlib import Path

SHAPES = [(0, "fp32"), (1, "fp32"), (2, "fp32"), (3, "fp32"), (0, "bf16"), (2, "bf16"), (3, "bf16")]
SHAPES += [(0, "bf16_autocast"), (2, "bf16_autocast"), (3, "bf16_autocast")]
CHANGES = [  # ranks, stage and precision of the writer, and of the trainer that goes on
    (2, 2, "fp32", 1, 2, "fp32"),
    (1, 2, "fp32", 2, 2, "fp32"),
    (2, 3, "fp32", 1, 3, "fp32"),
    (1, 3, "fp32", 2, 3, "fp32"),
    (1, 0, "fp32", 2, 0, "fp32"),
    (1, 0, "fp32", 1, 2, "fp32"),
    (1, 3, "fp32", 1, 0, "fp32"),
    (2, 0, "fp32", 1, 3, "fp32"),
    (1, 1, "fp32", 2, 3, "fp32"),
    (2, 3, "fp32", 2, 1, "fp32"),
    (2, 2, "bf16", 1, 0, "bf16"),
    (1, 0, "bf16", 2, 3, "bf16"),
    (2, 3, "bf16", 2, 0, "bf16_autocast"),
]


def name(stage: int, precision: str) -> str:
    """Of the job that trains in one go."""
    return f"straight-{stage}-{precision}"


def resumed(change: tuple[int, int, str, int, int, str]) -> str:
    """Of the job that goes on in another shape."""
    return "-".join(["resumed", *map(str, change)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What trainers of one and two ranks did in one go, and what others did from their checkpoints."""
    run = tmp_path_factory.mktemp("checkpoints")
    model = tiny_model(run / "model", hidden=33)
    for ranks in (1, 2):
        jobs: list[dict[str, Any]] = [
            {"name": name(s, p), "stage": s, "precision": p, "save": f"{ranks}-{s}-{p}"} for s, p in SHAPES
        ]
        run_ranks("training_checkpoint_worker.py", [str(model), str(run), json.dumps(jobs)], ranks, run)
    for ranks in (1, 2):
        jobs = [
            {"name": f"again-{s}-{p}", "stage": s, "precision": p, "load": f"{ranks}-{s}-{p}", "bits": True}
            for s, p in SHAPES
        ]
        jobs += [
            {"name": resumed(c), "stage": c[4], "precision": c[5], "load": f"{c[0]}-{c[1]}-{c[2]}"}
            for c in CHANGES
            if c[3] == ranks
        ]
        run_ranks("training_checkpoint_worker.py", [str(model), str(run), json.dumps(jobs)], ranks, run)
    return run


def seen(folder: Path, job: str, ranks: int, rank: int = 0) -> dict[str, Any]:
    """What a rank saw in a job."""
    told: dict[str, Any] = json.loads((folder / f"{job}-{ranks}-{rank}.json").read_text())
    return told


def published(folder: Path, job: str, ranks: int) -> tuple[int, str]:
    """Size and checksum of the weights after a job."""
    path = RunLayout(folder / f"{job}-{ranks}").weights_version(1)
    return verify(path).files["model.safetensors"]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("stage", "precision"), SHAPES)
def test_a_new_process_goes_on_bit_by_bit(ranks: int, stage: int, precision: str, folder: Path) -> None:
    for rank in range(ranks):
        straight = seen(folder, name(stage, precision), ranks, rank)
        again = seen(folder, f"again-{stage}-{precision}", ranks, rank)
        assert again["cursor"] == {"iteration": 2, "seen": [0.1, None]}
        assert again["draws"] == straight["draws"]
        assert again["optimizer_steps"] == straight["optimizer_steps"] == 5
        for ours, theirs in zip(again["updates"], straight["updates"], strict=True):
            timeless = {k for k in theirs if not k.startswith("seconds")}
            assert {k: ours[k] for k in timeless} == {k: theirs[k] for k in timeless}
    again_weights = published(folder, f"again-{stage}-{precision}", ranks)
    assert again_weights == published(folder, name(stage, precision), ranks)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("stage", "precision"), SHAPES)
def test_every_bit_comes_back(ranks: int, stage: int, precision: str, folder: Path) -> None:
    """Of weights and averages, -0.0 and what is not a number included."""
    assert all(seen(folder, f"again-{stage}-{precision}", ranks, rank)["same_bits"] is True for rank in range(ranks))


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: resumed(c).removeprefix("resumed-"))
def test_a_trainer_of_another_shape_learns_the_same(change: tuple[int, int, str, int, int, str], folder: Path) -> None:
    ranks, stage, precision, other_ranks, _, other_precision = change
    tolerance = 1e-5 if precision == other_precision == "fp32" else 3e-2
    straight = seen(folder, name(stage, precision), ranks)
    other = seen(folder, resumed(change), other_ranks)
    assert other["optimizer_steps"] == straight["optimizer_steps"]
    for ours, theirs in zip(other["updates"], straight["updates"], strict=True):
        assert ours["step"] == theirs["step"]
        assert ours["learning_rate"] == theirs["learning_rate"]
        for measure in ("loss", "nll", "entropy", "grad_norm"):
            assert ours[measure] == pytest.approx(theirs[measure], rel=tolerance, abs=tolerance / 10), measure


def test_a_rank_the_writer_did_not_have_draws_its_own_numbers(folder: Path) -> None:
    change = (1, 2, "fp32", 2, 2, "fp32")
    first, second = (seen(folder, resumed(change), 2, rank)["draws"] for rank in range(2))
    assert first == seen(folder, name(2, "fp32"), 1)["draws"]
    value = derive_seed(settings().seed, "trainer", 1, 2)
    own_torch = torch.Generator().manual_seed(value)
    own = [random.Random(value), np.random.RandomState(value)]
    own[0].gauss(0, 1), own[1].randn()
    assert second[:2] == [own[0].random(), own[1].rand()]
    assert second[2] == float(torch.rand((), generator=own_torch))


def test_a_checkpoint_holds_what_it_says(folder: Path) -> None:
    path = RunLayout(folder / "2-3-bf16").checkpoint(2)
    files = sorted(p.name for p in path.iterdir())
    tensors = [f"tensors-{n:05d}-of-00002.safetensors" for n in range(2)]
    assert files == sorted([MANIFEST, "state.json", *tensors])
    sizes = [(path / n).stat().st_size for n in tensors]
    assert max(sizes) < 1.3 * min(sizes)  # every rank writes its share
    state = json.loads((path / "state.json").read_text())
    assert (state["step"], state["optimizer_steps"], state["world_size"]) == (2, 2, 2)
    assert (state["zero_stage"], state["precision"]) == (3, "bf16")
