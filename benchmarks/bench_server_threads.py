"""Seconds of a vLLM server on CPU by how long its threads look for each other before they sleep, beside processes that
compute all the time. The servers take turns, and sample the same: their samples are compared.

    python benchmarks/bench_server_threads.py --spins 1000 3000 10000 300000 --busy 0 1 --repeats 3
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from benchmarking import options, spread, table, turns, written
from step_worker import own_seconds
from warm_start import ModelSize, build_tokenizer, fresh_model

from mrt_hpc.inference import server_start
from mrt_hpc.inference.client import connect
from mrt_hpc.inference.protocol import Request, SamplingSettings
from mrt_hpc.inference.server import VllmServer

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMPTS, SAMPLES, TOKENS = 32, 8, 200


@dataclass(frozen=True)
class Sampled:
    wall: float
    processor: float
    tokens: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        return f"{self.wall:.2f} s, {self.processor:.2f} processor seconds"


async def sampled(server: VllmServer) -> list[tuple[int, ...]]:
    settings = SamplingSettings(TOKENS, 0.9, ignore_stop=True)
    requests = [Request([5 + i, *range(40, 72)], list(range(SAMPLES)), settings) for i in range(PROMPTS)]
    async with connect(server.socket, server.key) as client:
        return [tuple(completion.token_ids) async for completion in client.stream(requests)]


def measured(server: VllmServer) -> Sampled:
    server.control.reset_prefix_cache()
    before, began = own_seconds(server.pid), time.perf_counter()
    tokens = asyncio.run(sampled(server))
    return Sampled(time.perf_counter() - began, own_seconds(server.pid) - before, tuple(sorted(tokens)))


@contextmanager
def beside(count: int) -> Iterator[None]:
    """So many processes compute all the time."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def main() -> None:
    cores = len(os.sched_getaffinity(0))
    given = options(__doc__, spins=[1000, 3000, 10000, 300000], busy=[0, 1], threads=cores, repeats=3, output=Path)
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-server-threads-") as scratch, ExitStack() as stack:
        model, tokenizer = Path(scratch) / "model", build_tokenizer()
        fresh_model(ModelSize(), tokenizer, seed=0).save_pretrained(model)
        tokenizer.save_pretrained(model)
        settings = server_start.ServerSettings(model, max_model_len=512, kv_cache_gib=0.5, cpu_threads=given.threads)
        servers = {}
        for spins in given.spins:
            with patch.object(server_start, "SPINS", str(spins)):
                servers[spins] = stack.enter_context(VllmServer(settings, Path(scratch) / f"{spins}.log"))
            asyncio.run(sampled(servers[spins]))
        for busy in given.busy:
            with beside(busy):
                found = turns({str(n): partial(measured, server) for n, server in servers.items()}, given.repeats)
            assert len({one.tokens for each in found.values() for one in each}) == 1, "the samples differ"
            for spins, each in found.items():
                rows.append([busy, spins, spread([one.wall for one in each]), spread([o.processor for o in each])])
    head = ("busy processes beside", "looks before sleeping", "seconds", "processor seconds")
    title = f"{PROMPTS * SAMPLES * TOKENS:,} tokens, {given.threads} threads on {cores} cores; median (extremes)"
    written("\n".join([title, "", *table(head, rows, words=0)]), given.output)


if __name__ == "__main__":
    main()
