"""vLLM on CPU. The noise of samples: keys of steps by seed and place, through the operation of vLLM that draws with
them. The tokens that its scheduler holds back: nothing is lost, doubled or moved.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from scipy.stats import chi2

pytest.importorskip("vllm")
from collections.abc import Callable

from numpy.typing import NDArray
from vllm.model_executor.models import registry
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.metrics.stats import PrefillStats
from vllm.v1.outputs import LogprobsLists

from mrt_hpc.inference import seeded_noise, vllm_on_cpu
from mrt_hpc.inference.seeded_noise import step_keys
from mrt_hpc.inference.vllm_on_cpu import HoldingScheduler, inspect_models_here
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
    assert chi2.sf(float(((table - expected) ** 2 / expected).sum()), table.size - 1) > RARE


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
    assert many[2] == alone[0] and many[3] != many[2]
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


def token(request: str, place: int, **more: Any) -> EngineCoreOutput:
    if place == 0:
        more["prefill_stats"] = PrefillStats()
    ids, values = np.array([[place, 7, 8]]), np.array([[-float(place), -0.1, -0.2]], np.float32)
    return EngineCoreOutput(request, [place], LogprobsLists(ids, values, np.array([1])), **more)


def update(_: object, __: object, outputs: list[EngineCoreOutput]) -> dict[int, EngineCoreOutputs]:
    return {0: EngineCoreOutputs(outputs=outputs)} if outputs else {}


def finish(_: object, names: list[str], __: object) -> list[SimpleNamespace]:
    return [SimpleNamespace(request_id=name) for name in names]


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> HoldingScheduler:
    """One whose steps give the outputs that a test names, and which has given a token of each of two requests and holds
    the next ones. A token waits as long as it takes.
    """
    monkeypatch.setattr(Scheduler, "__init__", lambda self: setattr(self, "_pause_state", PauseState.UNPAUSED))
    monkeypatch.setattr(Scheduler, "update_from_output", update)
    monkeypatch.setattr(Scheduler, "has_finished_requests", lambda _: False)
    monkeypatch.setattr(Scheduler, "finish_requests", finish)
    monkeypatch.setattr(vllm_on_cpu, "LONGEST_S", float("inf"))
    made: Callable[[], HoldingScheduler] = HoldingScheduler
    scheduler = made()
    scheduler.requests = {name: SimpleNamespace(client_index=0) for name in "ab"}
    assert passed_on(scheduler, token("a", 0), token("b", 0)) == [("a", [0]), ("b", [0])]
    assert passed_on(scheduler, token("a", 1), token("b", 1)) == []
    return scheduler


def passed_on(scheduler: HoldingScheduler, *outputs: EngineCoreOutput) -> list[tuple[str, list[int]]]:
    given = [output for one in scheduler.update_from_output(None, list(outputs)).values() for output in one.outputs]
    for output in given:
        told = output.new_logprobs
        assert told.logprob_token_ids[:, 0].tolist() == output.new_token_ids
        assert told.logprobs[:, 0].tolist() == [-place for place in output.new_token_ids]
        assert told.logprobs.shape == (len(output.new_token_ids), 3)
        assert told.sampled_token_ranks.shape == (len(output.new_token_ids),)
    return [(output.request_id, output.new_token_ids) for output in given]


def test_the_last_token_takes_those_that_were_held_with_it(scheduler: HoldingScheduler) -> None:
    """Also those of a step that asked for more log-probabilities, of which a sample keeps its own."""
    wide = token("a", 2)
    wide.new_logprobs = LogprobsLists(*(np.repeat(one, 3, axis=-1) for one in wide.new_logprobs[:2]), np.array([1]))
    assert passed_on(scheduler, wide, token("b", 2)) == []
    assert passed_on(scheduler, token("a", 3, finish_reason=FinishReason.STOP), token("b", 3)) == [("a", [1, 2, 3])]
    assert passed_on(scheduler, token("b", 4, finish_reason=FinishReason.LENGTH)) == [("b", [1, 2, 3, 4])]


def test_all_are_passed_on_in_time_and_in_a_pause(scheduler: HoldingScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(vllm_on_cpu, "LONGEST_S", 0.0)
        assert passed_on(scheduler, token("b", 2)) == [("a", [1]), ("b", [1, 2])]
    assert passed_on(scheduler, token("a", 2), token("b", 3)) == []
    assert not scheduler.has_finished_requests()
    scheduler.finish_requests(["a"], None)
    del scheduler.requests["a"]
    scheduler.set_pause_state(PauseState.PAUSED_ALL)
    assert scheduler.has_finished_requests(), "the engine takes a step, in which nothing is sampled"
    assert passed_on(scheduler) == [("b", [3])]
    assert not scheduler.has_finished_requests()


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


def test_a_models_class_is_looked_at_without_another_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first server of a node has nothing in its cache."""
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    monkeypatch.setattr(registry, "_run_in_subprocess", registry._run_in_subprocess)
    monkeypatch.setattr(registry.subprocess, "run", lambda *_, **__: pytest.fail("another process"))
    inspect_models_here()
    found = registry.ModelRegistry.models["LlamaForCausalLM"].inspect_model_cls()
    assert found.is_text_generation_model and list(tmp_path.rglob("*.json"))
