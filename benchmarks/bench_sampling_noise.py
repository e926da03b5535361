"""What reproducible samples cost on CPU: one call of the sampler with noise keyed by seed and place, with vLLM's own
generator for each request, and by vLLM without seeds. One thread; the three take turns, in alternating order.

    python benchmarks/bench_sampling_noise.py | grep '^|'
"""

from __future__ import annotations

import statistics
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import torch
from benchmarking import options, table, timed, turns
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

from mrt_hpc.inference.seeded_noise import CountingSampler

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = ((256, 512, 20), (256, 32_000, 2), (32, 151_936, 2))  # rows, vocabulary, and calls in a turn
HEAD = ("rows", "vocabulary", "noise", "CPU ms, best", "CPU ms, median", "wall ms, best", "wall ms, median")


def main() -> None:
    given = options(__doc__, turns=7)
    torch.set_num_threads(1)
    lines = []
    for rows, vocabulary, calls in SIZES:
        found = turns(variants(rows, vocabulary, calls), given.turns)
        for name, spent in found.items():
            values = [of(times) / calls * 1e3 for times in zip(*spent, strict=True) for of in (min, statistics.median)]
            lines.append((rows, vocabulary, name, *(f"{value:.2f}" for value in values)))
    print(*table(HEAD, lines), sep="\n")


def variants(rows: int, vocabulary: int, calls: int) -> dict[str, Callable[[], tuple[float, float]]]:
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0))
    generators = {i: torch.Generator().manual_seed(i) for i in range(rows)}
    batch = SimpleNamespace(num_tokens_no_spec=np.full(rows, 50), num_prompt_tokens=np.full(rows, 40))
    own, counted = TopKTopPSampler("processed_logprobs"), CountingSampler(SimpleNamespace(input_batch=batch))
    return {
        "a generator for each request": lambda: timed(
            lambda: [own.forward_cpu(logits, generators, None, None) for _ in range(calls)]
        ),
        "seed and place": lambda: timed(lambda: [counted(logits, generators, None, None) for _ in range(calls)]),
        "no seeds": lambda: timed(lambda: [own.forward_cpu(logits, {}, None, None) for _ in range(calls)]),
    }


if __name__ == "__main__":
    main()
