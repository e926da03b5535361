"""One rank of the agreement test: for each variant loss, gradients and the weights after three updates."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad
from training_support import VOCABULARY, branched, end_at_once, random_batch, settings, update_batches

from mrt_hpc.recipe.batching import Batching, Precision
from mrt_hpc.training import policy, projection
from mrt_hpc.training.accelerator import choose_kernels
from mrt_hpc.training.engine import TrainerEngine, build
from mrt_hpc.training.rendezvous import Ranks, join
from mrt_hpc.training.update_statistics import Tally


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
    weights = {
        n: (p.detach() if trainer.settings.training.zero_stage == 0 else safe_get_full_fp32_param(p)).float().clone()
        for n, p in named(trainer)
    }
    return {"loss": loss, "gradients": gradients, "norm": norm, "updates": updates, "weights": weights}


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
