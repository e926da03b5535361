"""What reproducible samples cost on CPU: one call of the sampler with noise keyed by seed and place, with vLLM's own
generator for each request, and by vLLM without seeds. One thread; the three take turns, in alternating order.

    python tests/benchmarks/bench_sampling_noise.py | grep '^|'
"""

from __future__ import annotations

import statistics
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import torch
from benchmarking import in_turn, table
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

from mrt_hpc.inference.vllm_on_cpu import CountingSampler

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = ((256, 512, 20), (256, 32_000, 2), (32, 151_936, 2))  # rows, vocabulary, and calls in a turn
TURNS = 7


def main() -> None:
    torch.set_num_threads(1)
    head = ("rows", "vocabulary", "noise", "CPU ms, best", "CPU ms, median", "wall ms, best", "wall ms, median")
    lines = []
    for rows, vocabulary, calls in SIZES:
        for name, turns in measured(variants(rows, vocabulary), calls).items():
            values = [f(turn[i] for turn in turns) for i in (0, 1) for f in (min, statistics.median)]
            lines.append((rows, vocabulary, name, *(f"{value:.2f}" for value in values)))
    print(*table(head, lines), sep="\n")


def variants(rows: int, vocabulary: int) -> dict[str, Callable[[], object]]:
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0))
    generators = {i: torch.Generator().manual_seed(i) for i in range(rows)}
    batch = SimpleNamespace(num_tokens_no_spec=np.full(rows, 50), num_prompt_tokens=np.full(rows, 40))
    own, counted = TopKTopPSampler("processed_logprobs"), CountingSampler(SimpleNamespace(input_batch=batch))
    return {
        "a generator for each request": lambda: own.forward_cpu(logits, generators, None, None),
        "seed and place": lambda: counted(logits, generators, None, None),
        "no seeds": lambda: own.forward_cpu(logits, {}, None, None),
    }


def measured(of: dict[str, Callable[[], object]], calls: int) -> dict[str, list[tuple[float, float]]]:
    """CPU and wall milliseconds of a call, of each turn."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in of}
    for turn in range(TURNS):
        for name in in_turn(of, turn):
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(calls):
                of[name]()
            spent = time.process_time() - cpu, time.perf_counter() - wall
            found[name].append((spent[0] / calls * 1e3, spent[1] / calls * 1e3))
    return found


if __name__ == "__main__":
    main()
