"""The trainer against a plain computation: one process, one sequence at a time, no DeepSpeed."""

import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad
from run_of import bare_run
from training_support import (
    VOCABULARY,
    PlainTrainer,
    branched,
    in_ranks,
    infinite_loss,
    random_batch,
    settings,
    tiny_model,
    update_batches,
)

from mrt_hpc.recipe.choices import Batching, Precision
from mrt_hpc.training import checkpoint, fused_projection, policy
from mrt_hpc.training.engine import TrainerEngine, build
from mrt_hpc.training.group_gradients import adam_scales, gradient_trainer, group_gradients, trained_parameters
from mrt_hpc.training.packing import split_by_group
from mrt_hpc.training.rendezvous import Ranks
from mrt_hpc.training.settings import TrainingSequence, learning_rate
from mrt_hpc.training.trained_state import TrainedState
from mrt_hpc.training.update_statistics import SkippedStep, Tally

pytestmark = pytest.mark.timeout(2400)  # a process goes through all variants
TOLERANCE = 1e-5
RANKS = {
    1: [
        *("0:128:fp32:2:-", "2:40:fp32:1:-", "2:40:fp32:1:o", "0:40:fp32:1:e", "3:40:fp32:2:cefnp"),
        *("3:60:fp32:2:csbfnp", "0:40:bf16:1:-", "3:40:bf16:1:ef"),
    ],
    2: [
        *("0:40:fp32:1:-", "1:40:fp32:1:-", "2:40:fp32:1:-", "3:40:fp32:1:-"),
        *("0:128:fp32:2:-", "3:40:fp32:1:o", "0:40:fp32:1:e", "2:400:fp32:1:e", "0:40:fp32:1:en", "0:128:fp32:1:f"),
        *("3:128:fp32:1:cp", "3:40:fp32:2:cefnp", "0:60:fp32:1:sb", "3:60:fp32:2:csbfnp"),
        "0:40:fp32:1:s",  # sequences that have no prefix in common
        *("0:40:bf16:1:-", "3:40:bf16:1:ef", "0:40:bf16_autocast:1:ef"),
        # two ranks share each row
        *("0:40:fp32:1:2e", "2:40:fp32:1:2e", "3:40:fp32:2:2cefnp", "3:60:fp32:1:2csbf", "3:40:bf16:1:2ef"),
    ],
    4: ["0:40:fp32:1:2e", "0:40:fp32:2:4cefnp"],  # two rows of two ranks, or one row: heads of keys are repeated
}
"""Variants by the number of ranks: stage:tokens:precision:steps:options. Options are c (activations computed twice), p
(projection in pieces), o (optimiser in the memory of the CPU), e (packed end to end), s (shared prefixes), f (fused
projection and cross-entropy), n (no entropy), 2 or 4 (so many ranks share each row) or none. With b the batches are of
branches; the plain computation has the same.
"""
ALL = [(ranks, variant) for ranks, variants in RANKS.items() for variant in variants]
EXACT = [(ranks, variant) for ranks, variant in ALL if ":fp32:" in variant]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and what the trainer computed with it on one, two and four ranks."""
    directory = tmp_path_factory.mktemp("agreement")
    model = tiny_model(directory / "model")
    for world_size, variants in RANKS.items():
        in_ranks(measure_all, [model, directory, *variants], world_size, directory)
    return directory


def measured(folder: Path, world_size: int, variant: str) -> dict[str, Any]:
    result: dict[str, Any] = torch.load(folder / f"{world_size}-{variant.replace(':', '-')}.pt", weights_only=True)
    return result


def has_branches(variant: str) -> bool:
    return "b" in variant.rpartition(":")[2]


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
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize(("world_size", "variant"), EXACT)
def test_gradients_and_updates_are_those_of_the_plain_trainer(folder: Path, world_size: int, variant: str) -> None:
    """Clipping, learning rate, weight decay and, with two steps, ratios to the policy before the iteration."""
    actual, steps, branches = measured(folder, world_size, variant), int(variant.split(":")[3]), has_branches(variant)
    first, expected = plain(folder, 1, branches), plain(folder, steps, branches)
    assert actual["loss"] == pytest.approx(first["loss"], abs=TOLERANCE)
    assert largest_difference(actual["gradients"], first["gradients"]) < TOLERANCE
    assert max(float(g.abs().max()) for g in first["gradients"].values()) > 0.05  # something was compared
    assert actual["norm"] == pytest.approx(expected["norm"], rel=1e-5)
    assert actual["norm"] > settings().training.gradient_clip  # so that clipping did something
    for update, (loss, norm) in zip(actual["updates"], expected["updates"], strict=True):
        assert update["loss"] == pytest.approx(loss, abs=TOLERANCE)
        assert update["grad_norm"] == pytest.approx(norm, rel=1e-4)
    # Adam divides by the size of the gradient: where that is almost zero, rounding is made visible
    assert largest_difference(actual["weights"], expected["weights"]) < 1e-3


def test_the_gradients_of_groups_add_up_to_that_of_the_batch(folder: Path) -> None:
    trainer = gradient_trainer(settings(), folder / "model")
    found = {name: [g.clone() for g in gradient] for name, gradient in group_gradients(trainer, random_batch(0))}
    assert len(found) == 5
    names = [name.removeprefix("model.") for name in trained_parameters(trainer)]
    total = dict(zip(names, map(sum, zip(*found.values(), strict=True)), strict=True))
    assert largest_difference(total, plain(folder, 1, False)["gradients"]) < TOLERANCE


@pytest.mark.parametrize("stage", [0, 2])
def test_adam_scales_are_what_a_real_step_divides_by(one_rank: Ranks, tmp_path: Path, stage: int) -> None:
    """Of the trainer's third step, its clipped gradient taken in: change = -rate * scales * the mean of gradients."""
    layout, model = bare_run(tmp_path), tiny_model(tmp_path / "model")
    chosen = settings(weight_decay=0.0, zero_stage=stage)
    trainer = build(chosen, model, one_rank)
    for seed in (1, 2):
        trainer.update(random_batch(seed))
    before = weights_of(trainer)
    stats = trainer.update(random_batch(0))
    assert stats.grad_norm > 2 * chosen.training.gradient_clip  # so that clipping did something
    assert checkpoint.save(trainer, layout.checkpoint(3), {})
    moments, steps = checkpoint.second_moments(layout.checkpoint(3))
    scales = adam_scales(gradient_trainer(chosen, model), moments, steps)
    state, after = TrainedState(trainer), weights_of(trainer)
    for (name, parameter), scale in zip(named(trainer), scales, strict=True):
        mean = state.gather(f"model.{name}", "exp_avg", 0)
        assert mean is not None and scale.shape == parameter.shape
        step = -stats.learning_rate * scale * mean / (1 - 0.9**3)
        assert float((after[name] - before[name] - step).abs().max()) < 1e-6, name
        assert float(step.abs().max()) > 1e-3  # something was compared


def test_packed_rows_hold_no_padding_and_entropy_is_measured_only_when_asked_for(folder: Path) -> None:
    padded, packed = (measured(folder, 2, f"0:40:fp32:1:{o}")["updates"][0] for o in ("-", "en"))
    assert packed["padding_share"] == 0 < padded["padding_share"]
    assert packed["positions"] < padded["positions"] and packed["computed_tokens"] == padded["computed_tokens"]
    assert packed["entropy"] is None
    assert measured(folder, 2, "0:128:fp32:1:f")["updates"][0]["entropy"] == pytest.approx(padded["entropy"], rel=1e-5)


@pytest.mark.parametrize("world_size", [2, 4])
def test_rows_that_ranks_share_are_filled_up_to_equal_parts(folder: Path, world_size: int) -> None:
    shared = measured(folder, world_size, "0:40:fp32:1:2e")["updates"]
    for ours, theirs in zip(shared, measured(folder, world_size // 2, "0:40:fp32:1:e")["updates"], strict=True):
        assert (ours["micro_steps"], ours["computed_tokens"]) == (theirs["micro_steps"], theirs["computed_tokens"])
        filler = ours["positions"] - theirs["positions"]
        assert 0 <= filler <= 2 * ours["micro_steps"] and ours["positions"] % 2 == 0
        assert ours["padding_share"] == pytest.approx(filler / ours["positions"])
    assert any(u["padding_share"] for u in shared)  # so that rows were filled up


def test_branches_are_computed_with_fewer_positions(folder: Path) -> None:
    update = measured(folder, 2, "0:60:fp32:1:sb")["updates"][0]
    computed = [s for s in branched(random_batch(1)) if s.has_signal]
    total = sum(s.width for s in computed)
    assert update["positions"] < 0.8 * total and update["padding_share"] == 0
    assert update["shared_prefix_share"] == pytest.approx(1 - update["positions"] / total)
    assert update["computed_tokens"] == sum(s.trained_tokens for s in computed)
    assert measured(folder, 2, "0:40:fp32:1:en")["updates"][0]["shared_prefix_share"] == 0


@pytest.mark.parametrize(("world_size", "variant"), [(ranks, variant) for ranks, variant in ALL if ":bf16" in variant])
def test_bfloat16_is_near(folder: Path, world_size: int, variant: str) -> None:
    actual, expected = measured(folder, world_size, variant), plain(folder, 1, has_branches(variant))
    assert actual["loss"] == pytest.approx(expected["loss"], abs=0.02)
    assert actual["norm"] == pytest.approx(expected["norm"], rel=0.05)
    flat = [torch.cat([of["gradients"][n].flatten() for n in expected["gradients"]]) for of in (actual, expected)]
    assert float(torch.nn.functional.cosine_similarity(*flat, dim=0)) > 0.99


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_difference_between_engine_and_trainer_is_told(folder: Path, world_size: int) -> None:
    batch = random_batch(1)
    trainer = PlainTrainer(folder / "model", settings())
    trainer.gradients(random_batch(0), trainer.old_logprobs(random_batch(0)))
    trainer.apply(settings().training.learning_rate)
    computed = [(s, o) for s, o in zip(batch, trainer.old_logprobs(batch), strict=True) if s.has_signal]
    differences = [(o - torch.from_numpy(s.behaviour_logprobs))[torch.from_numpy(s.mask)] for s, o in computed]
    ratios = torch.cat(differences).exp()
    update = measured(folder, world_size, "2:40:fp32:1:-")["updates"][0]
    assert update["mismatch_mean"] == pytest.approx(float(ratios.mean()), rel=1e-3)
    assert update["mismatch_max"] == pytest.approx(float(ratios.max()), rel=1e-3)
    effective = float(ratios.sum() ** 2 / ratios.square().sum()) / len(ratios)
    assert update["effective_sample_share"] == pytest.approx(effective, rel=1e-3)
    assert update["importance_capped_share"] == pytest.approx(float((ratios > 1.5).float().mean()), abs=1e-6)
    assert update["computed_tokens"] == len(ratios) < update["tokens"] == sum(s.trained_tokens for s in batch)


@pytest.mark.parametrize(("world_size", "variant"), ALL)
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


# -- in each rank


def measure_all(ranks: Ranks, model: str, output: str, *variants: str) -> None:
    for variant in variants:
        stage, tokens, precision, steps, options = variant.split(":")
        chosen = settings(
            zero_stage=int(stage), max_tokens_per_micro_batch=int(tokens), precision=Precision(precision),
            optimizer_steps_per_iteration=int(steps), gradient_checkpointing="c" in options,
            offload_optimizer="o" in options,
            batching=Batching.SHARED if "s" in options else Batching.PACKED if "e" in options else Batching.PADDED,
            projection="fused" if "f" in options else "chunked", entropy="n" not in options,
            sequence_parallel=next((int(o) for o in options if o.isdigit()), 1),
        )  # fmt: skip
        policy.LOGIT_ELEMENTS = fused_projection.LOGIT_ELEMENTS = 7 * VOCABULARY if "p" in options else 1 << 28
        result = measure(build(chosen, Path(model), ranks), "b" in options)
        if ranks.rank == 0:
            torch.save(result, Path(output) / f"{ranks.world_size}-{variant.replace(':', '-')}.pt")


def named(trainer: TrainerEngine) -> list[tuple[str, torch.nn.Parameter]]:
    return [(n.removeprefix("model."), p) for n, p in trainer.policy.named_parameters()]


def measure(trainer: TrainerEngine, branches: bool) -> dict[str, object]:
    tally = Tally(torch.device("cpu"))
    first = random_batch(0)
    trainer.accumulate(trainer.prepare(branched(first) if branches else first), tally=tally)
    loss, *_ = tally.gather_sums()
    gradients = {n: safe_get_full_grad(p).clone() for n, p in named(trainer)}
    norm = trainer.apply()
    updates = [trainer.update(branched(b) if branches else b).as_dict() for b in update_batches()]
    weights = weights_of(trainer)
    skipped = {"loss": skip(trainer, infinite_loss(random_batch(4))), "gradient": skip_for_a_gradient(trainer)}
    found = {"loss": loss, "gradients": gradients, "norm": norm, "updates": updates, "weights": weights}
    return found | {"skipped": skipped, "after": trainer.update(random_batch(5)).as_dict()}


def weights_of(trainer: TrainerEngine) -> dict[str, torch.Tensor]:
    return {
        n: (p.detach() if trainer.settings.training.zero_stage == 0 else safe_get_full_fp32_param(p)).float().clone()
        for n, p in named(trainer)
    }


def skip_for_a_gradient(trainer: TrainerEngine) -> dict[str, object]:
    if trainer.ranks.rank < trainer.ranks.world_size - 1:
        return skip(trainer, random_batch(4))

    def spoiled(gradient: torch.Tensor) -> torch.Tensor:
        changed = gradient.clone()
        changed.view(-1)[3] = float("nan")
        return changed

    hook = dict(named(trainer))["model.layers.1.mlp.up_proj.weight"].register_hook(spoiled)
    found = skip(trainer, random_batch(4))
    hook.remove()
    return found


def skip(trainer: TrainerEngine, batch: list[TrainingSequence]) -> dict[str, object]:
    """What an update that takes no step leaves as it was, and what it tells."""
    before, step, told = weights_of(trainer), trainer.step, list[SkippedStep]()
    stats = trainer.update(batch, told.append)
    return {
        "same_weights": all(torch.equal(before[n], w) for n, w in weights_of(trainer).items()),
        "steps": (trainer.step - step, TrainedState(trainer).optimizer_steps - step, trainer.skipped_in_a_row),
        "counted": (stats.optimizer_steps, stats.skipped_steps, stats.loss),
        "told": [(one.found_in, one.problems) for one in told],
    }
