"""What a rank that waits in a kernel takes from a server on the same GPU: tokens a second of a loop like decoding,
alone, beside a process whose kernel spins, and beside one that waits on its CPU.
"""

from __future__ import annotations

import multiprocessing
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from paper_sequences import SHAPES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.synchronize import Event

    from steps.record import Record

SEQUENCES = 128
MEASURED_S = 5.0
CYCLES = 20_000_000  # of one spinning kernel, about a hundredth of a second
START_LIMIT_S = 60.0


def run(record: Record) -> None:
    record.needs_gpu()
    decode = decoding()
    record.part("alone", rate, decode)
    for name, spins in (
        ("beside a process whose kernel spins", True),
        ("beside a process that waits on its CPU", False),
    ):
        record.part(name, beside, decode, spins)
    record.part("alone again", rate, decode)


@dataclass(frozen=True)
class Decoder:
    graph: torch.cuda.CUDAGraph
    read: tuple[torch.Tensor, ...]


def decoding() -> Decoder:
    """The matrix products of one step of decoding with the shape of a 1.5B, as a graph."""
    hidden, layers, _, _, intermediate, _ = SHAPES["1.5b"]
    options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    rows = torch.randn(SEQUENCES, hidden, **options)
    up = [torch.randn(hidden, 2 * intermediate, **options) / hidden**0.5 for _ in range(layers)]
    down = [torch.randn(intermediate, hidden, **options) / intermediate**0.5 for _ in range(layers)]

    def step() -> torch.Tensor:
        x = rows
        for a, b in zip(up, down, strict=True):
            gate, value = (x @ a).chunk(2, -1)
            x = x + torch.nn.functional.silu(gate) * value @ b
        return x

    beside_stream = torch.cuda.Stream()
    with torch.cuda.stream(beside_stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return Decoder(graph, (rows, *up, *down))


def rate(decode: Decoder) -> dict[str, Any]:
    """Tokens a second, and the milliseconds of the median and of the slowest step."""
    took = []
    ends = time.perf_counter() + MEASURED_S
    while (started := time.perf_counter()) < ends:
        decode.graph.replay()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - started)
    took.sort()
    tokens = SEQUENCES * len(took) / sum(took)
    return {"tokens_per_s": tokens, "median_ms": 1e3 * took[len(took) // 2], "slowest_ms": 1e3 * took[-1]}


def beside(decode: Decoder, spins: bool) -> dict[str, Any]:
    with neighbour(spins):
        return rate(decode)


@contextmanager
def neighbour(spins: bool) -> Iterator[None]:
    """Another process with a context on the GPU."""
    context = multiprocessing.get_context("spawn")
    runs, ends = context.Event(), context.Event()
    process = context.Process(target=occupy, args=(runs, ends, spins), daemon=True)
    process.start()
    try:
        if not runs.wait(START_LIMIT_S):
            raise TimeoutError(f"the neighbour did not start within {START_LIMIT_S:.0f} s")
        yield
    finally:
        ends.set()
        process.join(10)
        process.kill()


def occupy(runs: Event, ends: Event, spins: bool) -> None:
    torch.zeros(1, device="cuda")
    runs.set()
    while not ends.is_set():
        if spins:
            torch.cuda._sleep(CYCLES)
            torch.cuda.synchronize()
        else:
            ends.wait(0.01)
