"""One rank of the agreement test: for each variant loss, gradients and the weights after three updates."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad
from training_support import VOCABULARY, branched, end_at_once, infinite_loss, random_batch, settings, update_batches

from mrt_hpc.recipe.choices import Batching, Precision
from mrt_hpc.training import policy, projection
from mrt_hpc.training.accelerator import choose_kernels
from mrt_hpc.training.engine import TrainerEngine, build
from mrt_hpc.training.rendezvous import Ranks, join
from mrt_hpc.training.trained_state import TrainedState
from mrt_hpc.training.update_statistics import SkippedStep, Tally

if TYPE_CHECKING:
    from mrt_hpc.training.settings import TrainingSequence


def named(trainer: TrainerEngine) -> list[tuple[str, torch.nn.Parameter]]:
    """Parameters under the names of the model itself."""
    return [(n.removeprefix("model."), p) for n, p in trainer.policy.named_parameters()]


def measure(trainer: TrainerEngine, branches: bool) -> dict[str, object]:
    """Everything that is compared."""
    tally = Tally(torch.device("cpu"))
    first = random_batch(0)
    trainer.accumulate(trainer.prepare(branched(first) if branches else first), tally=tally)
    loss, *_ = tally.gathered()
    gradients = {n: safe_get_full_grad(p).clone() for n, p in named(trainer)}
    norm = trainer.apply()
    updates = [trainer.update(branched(b) if branches else b).as_dict() for b in update_batches()]
    weights = weights_of(trainer)
    skipped = {"loss": skip(trainer, infinite_loss(random_batch(4))), "gradient": skip_for_a_gradient(trainer)}
    return {
        "loss": loss,
        "gradients": gradients,
        "norm": norm,
        "updates": updates,
        "weights": weights,
        "skipped": skipped,
        "after": trainer.update(random_batch(5)).as_dict(),
    }


def weights_of(trainer: TrainerEngine) -> dict[str, torch.Tensor]:
    """The 32-bit weights by name."""
    return {
        n: (p.detach() if trainer.settings.training.zero_stage == 0 else safe_get_full_fp32_param(p)).float().clone()
        for n, p in named(trainer)
    }


def skip_for_a_gradient(trainer: TrainerEngine) -> dict[str, object]:
    """The same, where one number of the last rank's gradient is NaN."""
    if trainer.ranks.rank < trainer.ranks.world_size - 1:
        return skip(trainer, random_batch(4))

    def spoiled(gradient: torch.Tensor) -> torch.Tensor:
        changed = gradient.clone()
        changed.view(-1)[3] = float("nan")
        return changed

    hook = dict(named(trainer))["model.layers.1.mlp.up_proj.weight"].register_hook(spoiled)
    try:
        return skip(trainer, random_batch(4))
    finally:
        hook.remove()


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


def main() -> None:
    """Arguments: rank, world size, address file, model, output, variants.

    A variant is stage:tokens:precision:steps:options; options are c (activations computed twice), p (projection in
    pieces), o (optimiser offloaded), e (packed end to end), s (shared prefixes), f (fused projection), n (no entropy),
    2 or 4 (so many ranks share each row) or none. With b the batches are of branches; the plain computation has the
    same.
    """
    rank, world_size = int(sys.argv[1]), int(sys.argv[2])
    model, output, *variants = sys.argv[4:]
    torch.set_num_threads(1)
    ranks = Ranks(rank, world_size, rank)
    choose_kernels(None)
    join(ranks, Path(sys.argv[3]), timeout_s=120)
    for variant in variants:
        stage, tokens, precision, steps, options = variant.split(":")
        chosen = settings(
            zero_stage=int(stage),
            max_tokens_per_micro_batch=int(tokens),
            precision=Precision(precision),
            optimizer_steps_per_iteration=int(steps),
            gradient_checkpointing="c" in options,
            offload_optimizer="o" in options,
            batching=Batching.SHARED if "s" in options else Batching.PACKED if "e" in options else Batching.PADDED,
            projection="fused" if "f" in options else "chunked",
            entropy="n" not in options,
            sequence_parallel=next((int(o) for o in options if o.isdigit()), 1),
        )
        policy.LOGIT_ELEMENTS = projection.LOGIT_ELEMENTS = 7 * VOCABULARY if "p" in options else 1 << 28
        result = measure(build(chosen, Path(model), ranks), "b" in options)
        if rank == 0:
            torch.save(result, Path(output) / f"{world_size}-{variant.replace(':', '-')}.pt")
    end_at_once()


if __name__ == "__main__":
    main()
