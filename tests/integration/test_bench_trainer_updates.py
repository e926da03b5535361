"""`tests/benchmarks/bench_trainer_gpu.py` on a CPU with DeepSpeed: whole updates, also after one without
memory. (Its tables: ``test_first_day.py``.)
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import bench_trainer_gpu as bench
import pytest
import torch
from paper_sequences import SMALLER, batches_of, branched, config_of, sampled

from mrt_hpc.training.accelerator import deepspeed

if TYPE_CHECKING:
    from collections.abc import Callable

    from mrt_hpc.training.micro_batch import MicroBatch

pytestmark = pytest.mark.usefixtures("one_rank")

CPU = torch.device("cpu")
CONFIG = config_of("tiny")
SEQUENCES = branched(sampled(2, SMALLER, CONFIG.vocab_size, 0), SMALLER, CONFIG.vocab_size, 1)
MAX_TOKENS = 200


@pytest.mark.parametrize(("dtype", "stage"), [(torch.float32, 0), (torch.bfloat16, 1), (torch.bfloat16, 3)])
def test_the_engine_has_the_same_gradient_for_all_variants_and_takes_its_step(dtype: torch.dtype, stage: int) -> None:
    trainer = bench.Trainer(CONFIG, CPU, dtype, stage=stage)
    assert trainer.engine.zero_optimization_stage() == stage
    before = head_of(trainer.engine)
    norms = [step(trainer.engine, variant, 0.0) for variant in bench.VARIANTS]
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    assert norms[0] > 0.1 and norms == pytest.approx([norms[0]] * len(norms), rel=tolerance)
    assert torch.equal(head_of(trainer.engine), before)  # the rate was 0
    step(trainer.engine, bench.VARIANTS[-1], 1e-2)
    assert float((head_of(trainer.engine) - before).abs().max()) > 5e-3
    trainer.drop()


def head_of(engine: Any) -> torch.Tensor:
    """A copy of the whole projection, in 32 bits."""
    head = engine.module.model.lm_head.weight
    with deepspeed.zero.GatheredParameters([head], enabled=engine.zero_optimization_partition_weights()):
        return head.detach().float().clone()


def step(engine: Any, variant: bench.Variant, rate: float) -> float:
    """Take an update with this learning rate; return the norm of its gradient."""
    engine.module.choose(variant)
    bench.accumulate(engine, batches_of(SEQUENCES, variant.batching, MAX_TOKENS))
    gradients = [p.grad.clone() for p in engine.module.parameters() if p.grad is not None]
    engine.optimizer.param_groups[0]["lr"] = rate
    engine.step()
    # in 32 bits DeepSpeed wraps no optimiser, and tells no norm
    return float(
        engine.get_global_grad_norm() if engine.zero_optimization() else torch.nn.utils.get_total_norm(gradients)
    )


class Fails(torch.autograd.Function):
    """No memory in the backward pass."""

    @staticmethod
    def forward(_: Any, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError(f"no room for {gradient.shape}")


def test_after_an_update_without_memory_a_new_engine_goes_on_and_nothing_of_the_old_one_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, calls, old = bench._plain, [], []

    def failing(model: Any) -> Callable[[MicroBatch], torch.Tensor]:
        def logprobs(batch: MicroBatch) -> torch.Tensor:
            calls.append(batch)
            found = plain(model)(batch)
            return Fails.apply(found) if len(calls) == 2 else found

        optimizer = trainer._engine.optimizer if trainer._engine else model
        old.extend(weakref.ref(t) for t in (model, model.lm_head.weight, optimizer))
        return logprobs

    trainer = bench.Trainer(CONFIG, CPU, torch.bfloat16)
    assert trainer.engine.zero_optimization()  # it is made here
    monkeypatch.setattr(bench, "_plain", failing)
    results = bench.Series("branches", SEQUENCES, MAX_TOKENS, rounds=2).measure(trainer, float("inf"))
    first, *others = results
    assert (first.problem, first.seconds, len(calls)) == ("out of memory", [], 2)
    assert all(len(r.seconds) == 2 and not r.problem for r in others)
    assert [r() for r in old[:3]] == [None] * 3
    assert "| out of memory |" in bench.table(results, 1, None)
    trainer.drop()
