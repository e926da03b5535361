"""Two real servers of one model with untied embeddings: one is one process, the other divides each layer over two."""

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from families import assert_gone, family
from test_inference_server import (
    PROMPT,
    Reached,
    assert_drawn_by_seed,
    assert_sampled_from,
    reference_distributions,
    write_model,
)

from mrt_hpc.errors import UserError
from mrt_hpc.inference.client import Completion, Request, SamplingSettings, connect
from mrt_hpc.inference.server import VllmServer
from mrt_hpc.inference.server_pool import ServerPool, spread_over
from mrt_hpc.inference.server_start import ServerSettings

pytestmark = pytest.mark.usefixtures("vllm_is_loaded")
SEEDS, SAMPLES = (1, 2, 3), list(range(32))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("models")
    return [write_model(root / str(seed), tied=False, seed=seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def pool(models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerPool]:
    logs = tmp_path_factory.mktemp("logs")
    alone = ServerSettings(models[0], 512, "float32", kv_cache_gib=0.125, max_num_seqs=32, cpu_threads=1)
    both = (alone, replace(alone, tensor_parallel=2))
    with ServerPool(tuple(VllmServer(s, logs / f"{s.tensor_parallel}.log") for s in both)) as servers:
        yield servers
        processes = [process for one in servers.each if one.pid for process in family(one.pid)]
    assert_gone(processes)


def assert_agree(pool: ServerPool, model: Path, version: int) -> None:
    """Both servers sample from the model, with the noise of seed and place and the same log-probabilities."""
    for server in pool.each:
        completions = Reached(server).sample(seeds=SEEDS)
        assert_sampled_from(model, completions, 1.0)
        assert {c.weights_version for c in completions} == {version}
        for seed, completion in zip(SEEDS, completions, strict=True):
            ids = completion.token_ids
            assert_drawn_by_seed(reference_distributions(model, PROMPT, ids, 1.0), ids, seed)


def test_both_sample_from_the_model_before_and_after_new_weights(pool: ServerPool, models: list[Path]) -> None:
    assert_agree(pool, models[0], 0)
    pool.load_weights(models[1], 1)
    assert [one.weights_version for one in pool.each] == [1, 1]
    assert_agree(pool, models[1], 1)


def test_one_that_is_killed_restarts_alone_with_the_weights_loaded_last(pool: ServerPool, models: list[Path]) -> None:
    """A process of the divided one is killed: the problem that it samples is finished after its restart."""
    single, divided = pool.each
    pool.load_weights(models[1], 1)
    worker = family(divided.pid or 0)[-1].pid

    async def sample() -> list[list[Completion]]:
        revive = partial(asyncio.to_thread, divided.restart_if_dead)
        async with (
            connect(single.socket, single.key) as first,
            connect(divided.socket, divided.key, revive=revive) as second,
        ):
            generator = spread_over([first, second])

            async def problem(name: str) -> list[Completion]:
                request = Request(PROMPT, SAMPLES, SamplingSettings(100, ignore_stop=True), family=name)
                return [c async for c in generator.stream([request])]

            both = asyncio.gather(problem("a"), problem("b"))
            while second.unfinished == 0 or not first.unfinished:
                await asyncio.sleep(0)
            os.kill(worker, signal.SIGKILL)
            return await both

    for completions in asyncio.run(sample()):
        assert sorted(c.sample for c in completions) == SAMPLES
        assert_sampled_from(models[1], completions[:2], 1.0)
    assert (single.starts, divided.starts) == (1, 2)


def test_a_file_cut_short_leaves_no_server_to_sample_from(pool: ServerPool, models: list[Path], tmp_path: Path) -> None:
    single, _ = pool.each
    damaged = shutil.copytree(models[0], tmp_path / "damaged")
    os.truncate(damaged / "model.safetensors", 4000)
    with pytest.raises(UserError, match="refused"):
        single.load_weights(damaged, 2)
    assert (single.pid, single.weights_version) == (None, 1)
