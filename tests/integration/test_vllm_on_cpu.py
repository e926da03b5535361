"""vLLM on CPU. The noise of samples: keys of steps by seed and place, through the operation of vLLM that draws with
them. The process of its engine.
"""

import json
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from scipy.stats import chi2

pytest.importorskip("vllm")
from numpy.typing import NDArray

from mrt_hpc.inference import seeded_noise
from mrt_hpc.inference.seeded_noise import step_keys
from mrt_hpc.run.retries import wait_until

P = torch.tensor([0.3, 0.25, 0.2, 0.1, 0.08, 0.05, 0.02])
SEEDS = np.arange(40_000, dtype=np.uint64)
RARE = 1e-4
"""The chance with which right noise would fail one test; seeds and places are fixed, so that it never changes."""
of_the_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="vLLM's kernel for CPUs is in its build for CPUs")


def drawn(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    keys = torch.from_numpy(step_keys(seeds, positions).view(np.int64))
    ids: NDArray[np.int64] = torch.ops._C.fused_gumbel_argmax(P.log().repeat(len(keys), 1), keys).numpy()
    return ids


def at(position: int) -> NDArray[np.int64]:
    return np.full(len(SEEDS), position)


def assert_drawn_from(table: NDArray[Any], expected: NDArray[Any]) -> None:
    """Pearson's test of counts against the probabilities of their cells."""
    expected = expected * table.sum()
    statistic = float(((table - expected) ** 2 / expected).sum())
    assert chi2.sf(statistic, table.size - 1) > RARE


def assert_follow(ids: NDArray[np.int64]) -> None:
    assert_drawn_from(np.bincount(ids, minlength=len(P)), P.numpy())


def assert_independent(first: NDArray[np.int64], second: NDArray[np.int64]) -> None:
    table = np.zeros((len(P), len(P)))
    np.add.at(table, (first, second), 1)
    assert_drawn_from(table, np.outer(P, P))


@of_the_cpu
def test_tokens_of_many_seeds_and_of_one_follow_the_distribution() -> None:
    for position in (0, 1, 2000):
        assert_follow(drawn(SEEDS, at(position)))
    for seed in (0, 1, 2**63 + 11):
        ids = drawn(np.full(len(SEEDS), seed, np.uint64), SEEDS.astype(np.int64))
        assert_follow(ids)
        assert_independent(ids[:-1], ids[1:])
    seeds, places = np.meshgrid(SEEDS[:1000], np.arange(1000))
    assert len(np.unique(step_keys(seeds.ravel(), places.ravel()))) == 1_000_000


@of_the_cpu
def test_places_of_a_sample_and_samples_of_near_seeds_are_independent() -> None:
    for seeds, places in ((0, 1), (0, 2), (0, 64), (1, 0), (1, 1), (1, -1), (64, 0), (2**32, 0)):
        assert_independent(drawn(SEEDS, at(5)), drawn(SEEDS + np.uint64(seeds), at(5 + places)))


def sampler(generated: list[int], prompts: list[int]) -> Any:
    totals = np.array(generated) + np.array(prompts)
    batch = SimpleNamespace(num_tokens_no_spec=totals, num_prompt_tokens=np.array(prompts))
    return seeded_noise.CountingSampler(SimpleNamespace(input_batch=batch))


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@of_the_cpu
def test_a_token_follows_from_seed_place_and_logits_alone() -> None:
    logits = torch.randn(1, 5000, generator=generator(0))
    alone, _ = sampler([7], [3])(logits.clone(), {0: generator(9)}, None, None)
    batch = {0: generator(1), 2: generator(9), 3: generator(9)}
    many, _ = sampler([0, 0, 7, 8], [5, 5, 90, 3])(logits.repeat(4, 1), batch, None, None)
    assert many[2] == alone[0]
    assert many[3] != many[2]
    unseeded = sampler([0], [1])
    assert len({int(unseeded(torch.zeros(1, 10_000), {}, None, None)[0]) for _ in range(4)}) > 1


@of_the_cpu
def test_only_the_tokens_of_top_k_and_top_p_are_drawn_and_log_probabilities_are_those_of_the_rest() -> None:
    rows = 300
    logits, seeds = P.log().repeat(rows, 1), {i: generator(i) for i in range(rows)}
    for kept, k, p in ((3, torch.full((rows,), 3), None), (2, None, torch.full((rows,), 0.5))):
        ids, logprobs = sampler([0] * rows, [1] * rows)(logits.clone(), seeds, k, p)
        assert set(ids.tolist()) == set(range(kept))
        assert torch.allclose(logprobs[0, :kept].exp(), P[:kept] / P[:kept].sum())
        assert bool(logprobs[0, kept:].isneginf().all())


# -- the process that a server forks for its engine


SERVER = """
import json, os, signal, time
import torch
from vllm.v1.engine import utils
from mrt_hpc.inference.vllm_on_cpu import fork_engines

def compute():
    return float((torch.ones(2048, 2048) @ torch.ones(2048, 2048)).sum())

def engine(pipe):
    pipe.send([os.getpid(), torch.get_num_threads(), compute()])
    time.sleep(60)

threads = torch.get_num_threads()
fork_engines()
mine = compute()
context = utils.get_mp_context()
receiver, sender = context.Pipe(duplex=False)
context.Process(target=engine, args=(sender,)).start()
print(json.dumps([threads, mine, *(receiver.recv() if receiver.poll(60) else [None, None, None])]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_forked_engine_computes_with_all_threads_and_ends_with_its_server() -> None:
    """OpenMP in the child waits for ever for threads that the thread which forked had before."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as server:
        assert server.stdout
        threads, of_server, engine, threads_of_engine, of_engine = json.loads(server.stdout.readline())
        assert engine is not None, "the engine does not compute"
        assert of_engine == of_server
        assert threads_of_engine == threads
        assert server.wait(30) == -signal.SIGKILL
    wait_until(lambda: not psutil.pid_exists(engine), reason="the end of the engine", deadline_s=10)
