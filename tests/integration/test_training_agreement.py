"""The trainer against a plain computation: one process, one sequence at a time, no DeepSpeed."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch
from training_support import PlainTrainer, branched, random_batch, run_ranks, settings, tiny_model, update_batches

from mrt_hpc.training.packing import split_by_group
from mrt_hpc.training.settings import TrainingSequence, learning_rate

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(2400)  # a process goes through all variants
TOLERANCE = 1e-5
VARIANTS = [
    *(f"{stage}:{tokens}:fp32:1:-" for stage in (0, 2, 3) for tokens in (40, 128)),
    "1:40:fp32:1:-",  # every stage
    "0:128:fp32:2:-",  # two optimiser steps, with ratios other than 1
    "3:40:fp32:2:c",  # the same with activations computed twice
    "3:128:fp32:1:cp",  # and with the projection in pieces, each computed twice
    "2:40:fp32:1:o",  # with the optimiser in the memory of the CPU
    "3:40:fp32:1:o",
    *(f"{stage}:{tokens}:fp32:1:e" for stage in (0, 2, 3) for tokens in (40, 400)),  # packed end to end
    *(f"{stage}:128:fp32:1:f" for stage in (0, 2, 3)),  # projection and cross-entropy fused
    *(f"{stage}:60:fp32:1:sb" for stage in (0, 2, 3)),  # branches, their prefixes computed once
    "3:60:fp32:2:csbfnp",
    "0:40:fp32:1:s",  # sequences that have no prefix in common
    "3:40:fp32:2:cefnp",  # both with the projection in pieces, activations computed twice, and no entropy
    "0:40:fp32:1:en",
    "2:40:bf16:1:-",
    "3:40:bf16:1:-",
    "0:40:bf16:1:-",
    "0:40:bf16_autocast:1:-",
    "3:40:bf16:1:ef",
    "0:40:bf16_autocast:1:ef",
    "3:60:bf16:1:sbf",
]
SHARED_ROWS = [  # two ranks share each row
    "0:40:fp32:1:2e",
    "2:40:fp32:1:2e",
    "3:40:fp32:2:2cefnp",
    "0:60:fp32:1:2sb",
    "3:60:fp32:1:2csbf",
    "3:40:bf16:1:2ef",
]
EXACT = [v for v in VARIANTS if ":fp32:" in v]
RANKS = {  # four ranks have two rows of two ranks, or one row, for which heads of keys are repeated
    1: VARIANTS,
    2: [*VARIANTS, *SHARED_ROWS],
    4: ["0:40:fp32:1:2e", "3:40:fp32:2:4cefnp"],
}
EXACT_CASES = [(ranks, v) for ranks, variants in RANKS.items() for v in variants if ":fp32:" in v]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and what the trainer computed with it on one, two and four ranks."""
    directory = tmp_path_factory.mktemp("agreement")
    model = tiny_model(directory / "model")
    for world_size, variants in RANKS.items():
        run_ranks("training_agreement_worker.py", [str(model), str(directory), *variants], world_size, directory)
    return directory


def measured(folder: Path, world_size: int, variant: str) -> dict[str, Any]:
    """What the ranks computed."""
    result: dict[str, Any] = torch.load(folder / f"{world_size}-{variant.replace(':', '-')}.pt", weights_only=True)
    return result


def options_of(variant: str) -> str:
    """Its letters."""
    return variant.split(":")[-1]


@cache
def plain(folder: Path, optimizer_steps: int, branches: bool) -> dict[str, Any]:
    """The same by the plain trainer: gradients of batch 0, then updates on batches 0, 1, 2 and 3."""
    given = branched if branches else list[TrainingSequence]
    chosen = settings(optimizer_steps_per_iteration=optimizer_steps)
    trainer = PlainTrainer(folder / "model", chosen)
    rates = (learning_rate(k, 10, chosen.training) for k in range(10))
    batch = given(random_batch(0))
    loss, gradients = trainer.gradients(batch, trainer.old_logprobs(batch))
    norm = trainer.apply(next(rates))
    updates = []
    for batch in map(given, update_batches()):
        old = trainer.old_logprobs(batch)
        losses, norms = [], []
        for part in split_by_group([s.group for s in batch], [s.width for s in batch], optimizer_steps):
            losses.append(trainer.gradients([batch[i] for i in part], [old[i] for i in part])[0])
            norms.append(trainer.apply(next(rates)))
        updates.append((sum(losses) / len(losses), sum(norms) / len(norms)))
    weights = {n: p.detach() for n, p in trainer.model.named_parameters()}
    return {"loss": loss, "gradients": gradients, "norm": norm, "updates": updates, "weights": weights}


def largest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Over all tensors of two dictionaries of the same names."""
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize(("world_size", "variant"), EXACT_CASES)
def test_loss_and_gradients_are_those_of_the_plain_computation(folder: Path, world_size: int, variant: str) -> None:
    actual, expected = measured(folder, world_size, variant), plain(folder, 1, "b" in options_of(variant))
    assert actual["loss"] == pytest.approx(expected["loss"], abs=TOLERANCE)
    assert largest_difference(actual["gradients"], expected["gradients"]) < TOLERANCE
    assert max(float(g.abs().max()) for g in expected["gradients"].values()) > 0.05  # something was compared


@pytest.mark.parametrize("world_size", [1, 2])
def test_packed_rows_hold_no_padding_and_entropy_is_measured_only_when_asked_for(folder: Path, world_size: int) -> None:
    padded, packed = (measured(folder, world_size, f"0:40:fp32:1:{o}")["updates"][0] for o in ("-", "en"))
    assert packed["padding_share"] == 0 < padded["padding_share"]
    assert packed["positions"] < padded["positions"] and packed["computed_tokens"] == padded["computed_tokens"]
    assert packed["entropy"] is None
    fused = measured(folder, world_size, "0:128:fp32:1:f")["updates"][0]
    assert fused["entropy"] == pytest.approx(padded["entropy"], rel=1e-5)


@pytest.mark.parametrize("world_size", [2, 4])
def test_rows_that_ranks_share_are_filled_up_to_equal_parts(folder: Path, world_size: int) -> None:
    shared = measured(folder, world_size, "0:40:fp32:1:2e")["updates"]
    alone = measured(folder, world_size // 2, "0:40:fp32:1:e")["updates"]
    for ours, theirs in zip(shared, alone, strict=True):
        assert (ours["micro_steps"], ours["computed_tokens"]) == (theirs["micro_steps"], theirs["computed_tokens"])
        filler = ours["positions"] - theirs["positions"]
        assert 0 <= filler <= 2 * ours["micro_steps"] and ours["positions"] % 2 == 0
        assert ours["padding_share"] == pytest.approx(filler / ours["positions"])
    assert any(u["padding_share"] for u in shared)  # so that rows were filled up


@pytest.mark.parametrize("world_size", [1, 2])
def test_branches_are_computed_with_fewer_positions(folder: Path, world_size: int) -> None:
    update = measured(folder, world_size, "0:60:fp32:1:sb")["updates"][0]
    computed = [s for s in branched(random_batch(1)) if s.has_signal]
    total = sum(s.width for s in computed)
    assert update["positions"] < 0.8 * total and update["padding_share"] == 0
    assert update["shared_prefix_share"] == pytest.approx(1 - update["positions"] / total)
    assert update["computed_tokens"] == sum(s.trained_tokens for s in computed)
    assert measured(folder, world_size, "0:40:fp32:1:en")["updates"][0]["shared_prefix_share"] == 0


@pytest.mark.parametrize(("world_size", "variant"), EXACT_CASES)
def test_updates_are_those_of_the_plain_trainer(folder: Path, world_size: int, variant: str) -> None:
    """Clipping, learning rate, weight decay and, with two steps, ratios to the policy before the iteration."""
    actual, expected = (
        measured(folder, world_size, variant),
        plain(folder, int(variant.split(":")[3]), "b" in options_of(variant)),
    )
    assert actual["norm"] == pytest.approx(expected["norm"], rel=1e-5)
    assert actual["norm"] > settings().training.gradient_clip  # so that clipping did something
    for update, (loss, norm) in zip(actual["updates"], expected["updates"], strict=True):
        assert update["loss"] == pytest.approx(loss, abs=TOLERANCE)
        assert update["grad_norm"] == pytest.approx(norm, rel=1e-4)
    # Adam divides by the size of the gradient: where that is almost zero, rounding is made visible
    assert largest_difference(actual["weights"], expected["weights"]) < 1e-3


@pytest.mark.parametrize(
    ("world_size", "variant"), [(ranks, v) for ranks, variants in RANKS.items() for v in variants if ":bf16" in v]
)
def test_bfloat16_is_near(folder: Path, world_size: int, variant: str) -> None:
    actual, expected = measured(folder, world_size, variant), plain(folder, 1, "b" in options_of(variant))
    assert actual["loss"] == pytest.approx(expected["loss"], abs=0.02)
    assert actual["norm"] == pytest.approx(expected["norm"], rel=0.05)
    flat = [
        torch.cat([g[n].flatten() for n in expected["gradients"]]) for g in (actual["gradients"], expected["gradients"])
    ]
    assert float(torch.nn.functional.cosine_similarity(*flat, dim=0)) > 0.99


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_difference_between_engine_and_trainer_is_told(folder: Path, world_size: int) -> None:
    batch = random_batch(1)
    trainer = PlainTrainer(folder / "model", settings())
    old = trainer.old_logprobs(random_batch(0))
    trainer.gradients(random_batch(0), old)
    trainer.apply(settings().training.learning_rate)
    computed = [(s, o) for s, o in zip(batch, trainer.old_logprobs(batch), strict=True) if s.has_signal]
    ratios = torch.cat(
        [(o - torch.from_numpy(s.behaviour_logprobs))[torch.from_numpy(s.mask)].exp() for s, o in computed]
    )
    update = measured(folder, world_size, "2:40:fp32:1:-")["updates"][0]
    assert update["mismatch_mean"] == pytest.approx(float(ratios.mean()), rel=1e-3)
    assert update["mismatch_max"] == pytest.approx(float(ratios.max()), rel=1e-3)
    assert update["importance_capped_share"] == pytest.approx(float((ratios > 1.5).float().mean()), abs=1e-6)
    assert update["computed_tokens"] == len(ratios) < update["tokens"] == sum(s.trained_tokens for s in batch)


@pytest.mark.parametrize(("world_size", "variant"), [(ranks, v) for ranks, variants in RANKS.items() for v in variants])
def test_a_step_that_is_not_finite_is_taken_on_no_rank(folder: Path, world_size: int, variant: str) -> None:
    """In every stage and precision: an infinite loss of one sequence, and one NaN in one gradient of one rank."""
    actual, steps = measured(folder, world_size, variant), int(variant.split(":")[3])
    for number, kind in enumerate(("loss", "gradient")):
        found = actual["skipped"][kind]
        if kind == "gradient":  # it is in every mini-batch, so none takes a step
            assert found["same_weights"]
            assert found["steps"][:2] == (0, 0) and found["counted"] == (0, steps, 0.0)
        else:
            assert found["counted"][:2] == (steps - 1, 1) and found["steps"][:2] == (steps - 1, steps - 1)
            assert found["same_weights"] is (steps == 1)
        assert found["steps"][2] >= 1 and {one[0] for one in found["told"]} == {kind}
        assert ("the infinite one" in found["told"][0][1]) is (number == 0)
    assert actual["after"]["optimizer_steps"] == steps and actual["after"]["skipped_steps"] == 0
    assert all(math.isfinite(value) for value in actual["after"].values() if value is not None)
