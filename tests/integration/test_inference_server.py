"""A real vLLM server with tiny random models: started, asked, given new weights, killed, and never left behind.

Log-probabilities are compared with a transformers forward pass in fp32. One server serves the whole module.
"""

import asyncio
import contextlib
import dataclasses
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import httpx
import msgspec
import numpy as np
import psutil
import pytest
import torch
from families import assert_gone, family
from listeners import listeners, unix_sockets
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM
from vllm import _custom_ops  # noqa: F401  # loads the kernel that draws
from warm_start import build_tokenizer

from mrt_hpc.errors import UserError
from mrt_hpc.inference.client import Completion, GenerationClient, Request, SamplingSettings, connect
from mrt_hpc.inference.protocol import GENERATE_PATH, PAUSE_PATH, RequestBatch
from mrt_hpc.inference.seeded_noise import step_keys
from mrt_hpc.inference.server import VllmServer
from mrt_hpc.inference.server_start import ServerProcess, ServerSettings
from mrt_hpc.inference.vllm_extension import _verify_product, _verify_rows
from mrt_hpc.inference.vllm_middleware import RunRoutes
from mrt_hpc.recipe.sections import WeightSwap
from mrt_hpc.roles.sampling.serving import restart_when_hung
from mrt_hpc.run.records import FinishReason
from mrt_hpc.run.retries import wait_until

T = TypeVar("T")

TOKENIZER = build_tokenizer()
PROMPT = list(range(20, 90))
NOBODY = 65534


def write_model(directory: Path, *, tied: bool, seed: int) -> Path:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(TOKENIZER), hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=1024, tie_word_embeddings=tied,
        eos_token_id=TOKENIZER.eos_token_id, bos_token_id=None, initializer_range=0.1,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(directory)
    TOKENIZER.save_pretrained(directory)
    return directory


def reference_distributions(directory: Path, prompt: list[int], ids: list[int], temperature: float) -> torch.Tensor:
    """[T, V] log-probabilities of all tokens at the places of ``ids`` after ``prompt`` by transformers, in fp32."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, dim=-1)


def of_tokens(distributions: torch.Tensor, ids: list[int]) -> list[float]:
    return distributions.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()


def assert_drawn_by_seed(distributions: torch.Tensor, ids: list[int], seed: int) -> None:
    """The tokens are those that the noise of seed and place draws; rounding may decide at very few places."""
    keys = step_keys(np.full(len(ids), seed, np.uint64), np.arange(len(ids)))
    drawn = torch.ops._C.fused_gumbel_argmax(distributions, torch.from_numpy(keys.view(np.int64)))
    assert sum(a == b for a, b in zip(drawn.tolist(), ids, strict=True)) >= 0.98 * len(ids) - 1


def assert_sampled_from(directory: Path, completions: list[Completion], temperature: float) -> None:
    for completion in completions:
        ids = completion.token_ids
        expected = of_tokens(reference_distributions(directory, PROMPT, ids, temperature), ids)
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)


@dataclass(frozen=True)
class Reached:
    server: VllmServer

    def ask(self, question: Callable[[GenerationClient], Awaitable[T]], **options: Any) -> T:
        async def connected() -> T:
            async with connect(self.server.socket, self.server.key, **options) as client:
                return await question(client)

        return asyncio.run(connected())

    def sample(
        self, temperature: float = 1.0, seeds: tuple[int, ...] = (1, 2, 3), max_tokens: int = 24
    ) -> list[Completion]:
        settings = SamplingSettings(max_tokens, temperature, ignore_stop=True)
        return self.ask(lambda client: client.complete(PROMPT, list(seeds), settings))

    def http(self, method: str, path: str, key: str | None) -> int:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(self.server.socket)), timeout=30) as client:
            return client.request(method, f"http://vllm{path}", headers=headers).status_code


KEY = secrets.token_urlsafe(32)
FIRST = 3  # the number of the weights version that the server begins with


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("models")
    return [write_model(root / str(seed), tied=True, seed=seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def vllm(models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    settings = ServerSettings(models[0], max_model_len=512, dtype="float32", kv_cache_gib=0.25, max_num_seqs=32)
    log, partly = tmp_path_factory.mktemp("logs") / "server.log", dataclasses.replace(settings, model_dir=Path())
    begun = ServerProcess.begin_early(dataclasses.replace(partly, max_model_len=0), KEY, log)
    server = VllmServer(settings, log, FIRST, KEY, begun=begun)
    with server:
        assert server.pid == begun.pid, "the process that loaded vLLM before model and length were known"
        yield server
        processes = family(server.pid) if server.pid else []
    assert_gone(processes)
    assert not server.socket.parent.exists()


@pytest.fixture(scope="module")
def reached(vllm: VllmServer) -> Reached:
    return Reached(vllm)


# -- sampling ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_log_probabilities_are_of_what_was_sampled_from(
    reached: Reached, models: list[Path], temperature: float
) -> None:
    completions = reached.sample(temperature)
    assert_sampled_from(models[0], completions, temperature or 1.0)  # greedy has those of temperature 1
    assert {c.weights_version for c in completions} == {FIRST}


def test_a_seed_decides_its_sample_whichever_others_share_the_request(reached: Reached, models: list[Path]) -> None:
    seeds = (1, 2, 3)
    together, alone = reached.sample(seeds=seeds, max_tokens=100), reached.sample(seeds=(2,), max_tokens=100)
    assert (together[1].token_ids, len({tuple(c.token_ids) for c in together})) == (alone[0].token_ids, 3)
    for seed, completion in zip(seeds, together, strict=True):
        ids = completion.token_ids
        assert_drawn_by_seed(reference_distributions(models[0], PROMPT, ids, 1.0), ids, seed)


def test_the_stop_token_is_the_last_and_has_its_log_probability(reached: Reached, models: list[Path]) -> None:
    stops = tuple(reached.sample(seeds=(9,))[0].token_ids[5:9])
    settings = SamplingSettings(100, stop_token_ids=stops)
    found = reached.ask(lambda client: client.complete(PROMPT, list(range(8)), settings))
    stopped = [c for c in found if c.finish_reason is FinishReason.STOP and c.token_ids[-1] in stops]
    assert stopped and not any({*stops} & {*c.token_ids[:-1]} for c in stopped)
    assert_sampled_from(models[0], stopped[:2], 1.0)


async def scores_of(
    client: GenerationClient, prompt_ids: list[int], continuations: list[list[int]], temperature: float
) -> list[float]:
    """The log-probability of each continuation, from one request of one token for each of their beginnings."""
    nexts: dict[tuple[int, ...], set[int]] = {}
    for ids in continuations:
        for position, token in enumerate(ids):
            nexts.setdefault(tuple(ids[:position]), set()).add(token)
    prefixes, settings = list(nexts), SamplingSettings(max_tokens=1, temperature=temperature)
    requests = [Request([*prompt_ids, *p], [0], settings, score_ids=sorted(nexts[p])) for p in prefixes]
    logprob: dict[tuple[int, ...], float] = {}
    async for completion in client.stream(requests):
        prefix = prefixes[completion.request]
        for token, value in zip(requests[completion.request].score_ids, completion.scores, strict=True):
            logprob[(*prefix, token)] = value
    return [sum(logprob[tuple(ids[: n + 1])] for n in range(len(ids))) for ids in continuations]


def test_scores_are_exact_at_any_temperature(reached: Reached, models: list[Path]) -> None:
    continuations = [[5, 6, 7], [5, 6, 9], [5, 8], [100]]
    scores = reached.ask(lambda client: scores_of(client, PROMPT, continuations, 0.6))
    by_model = [reference_distributions(models[0], PROMPT, ids, 0.6) for ids in continuations]
    expected = [sum(of_tokens(found, ids)) for found, ids in zip(by_model, continuations, strict=True)]
    assert scores == pytest.approx(expected, abs=1e-4)


def test_prompts_are_prefilled_whole_and_one_that_is_too_long_is_refused(reached: Reached) -> None:
    """vLLM's CPU engine dies when it splits a prompt whose request has a seed."""
    requests = [Request([*PROMPT * 5, i], [i], SamplingSettings(2)) for i in range(40)]

    async def count(client: GenerationClient) -> int:
        return len([c async for c in client.stream(requests)])

    assert reached.ask(count) == 40
    with pytest.raises(UserError, match="maximum model length"):
        reached.ask(lambda client: client.complete([5] * 600, [0], SamplingSettings(4)))


def test_samples_of_a_client_that_went_away_are_aborted(reached: Reached, vllm: VllmServer) -> None:
    async def leave_early(client: GenerationClient) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.complete(PROMPT, list(range(32)), SamplingSettings(440, ignore_stop=True))

    before = vllm.control.metrics()["vllm:generation_tokens_total"]
    reached.ask(leave_early)
    wait_until(lambda: vllm.control.metrics()["vllm:num_requests_running"] == 0, reason="the abort", deadline_s=10)
    assert vllm.control.metrics()["vllm:generation_tokens_total"] - before < 32 * 440


# -- out of reach ------------------------------------------------------------------------------------------------------


def test_the_key_is_in_no_command_line(reached: Reached) -> None:
    lines = ["\0".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])]
    assert any("mrt_hpc.inference.server_main" in line for line in lines)
    assert not any(reached.server.key in line for line in lines)


def test_no_route_answers_without_the_key(reached: Reached) -> None:
    routes = ("/collective_rpc", "/pause", "/reset_prefix_cache", "/metrics", GENERATE_PATH)
    for key in (None, "wrong"):
        for method, path in (*(("POST", path) for path in routes), ("GET", "/v1/models")):
            assert reached.http(method, path, key) == 401, path
        assert reached.http("GET", "/health", key) == 200


STRANGER = """
import socket, sys
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
except PermissionError:
    sys.exit(13)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_reaches_no_socket_of_the_server(reached: Reached) -> None:
    listening = unix_sockets(family(reached.server.pid or 0))
    assert reached.server.socket in listening
    for socket in listening:
        command = [sys.executable, "-I", "-c", STRANGER, str(socket)]
        assert subprocess.run(command, user=NOBODY, group=NOBODY, extra_groups=[], check=False).returncode == 13, socket


def test_it_listens_on_no_port_for_http(reached: Reached) -> None:
    for host, port in listeners(family(reached.server.pid or 0)):
        address = f"[{host}]" if ":" in host else host
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://{address}:{port}/health", timeout=0.5)


# -- new weights, death and restart, in this order ---------------------------------------------------------------------


def test_reloaded_weights_are_those_of_the_directory(reached: Reached, models: list[Path]) -> None:
    """Untied embeddings, and samples at temperature 1: ``test_several_servers.py``."""
    reached.server.load_weights(models[0], 0)  # another test may have loaded others
    before = reached.sample(0.6)
    report = reached.server.load_weights(models[1], 1)
    after = reached.sample(0.6)
    assert report["directory"] == str(models[1])
    assert [c.token_ids for c in after] != [c.token_ids for c in before]
    assert_sampled_from(models[1], after, 0.6)
    assert {c.weights_version for c in after} == {1}
    assert reached.sample(seeds=(1,))[0].cached_tokens
    reached.server.load_weights(models[1], 1)
    assert reached.sample(seeds=(1,))[0].cached_tokens == 0, "a reload forgets the prefixes of the old weights"


IN_FLIGHT = 300  # the tokens of samples during which weights are swapped


def continued_distributions(old: Path, new: Path, ids: list[int], start: int) -> torch.Tensor:
    """The log-probabilities at the tokens from ``start`` on: the old weights have sampled those before, and have
    computed the keys and values of all of them but the last, which was an input only after the swap.
    """
    with torch.no_grad():
        before, after = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (old, new))
        cache = before(torch.tensor([ids[: start - 1]]), use_cache=True).past_key_values
        logits = after(torch.tensor([ids[start - 1 : -1]]), past_key_values=cache).logits[0]
    return torch.log_softmax(logits, -1)


@pytest.mark.parametrize("swap", [WeightSwap.KEEP, WeightSwap.RECOMPUTE])
def test_weights_that_are_swapped_in_flight_tell_which_tokens_they_have_sampled(
    swap: WeightSwap, vllm: VllmServer, reached: Reached, models: list[Path]
) -> None:
    old, new = models[1], models[0]
    vllm.load_weights(old, 1)
    before, places = vllm.control.tokens_done() or 0, vllm.settings.max_num_seqs

    async def swap_while_sampling(client: GenerationClient) -> list[Completion]:
        settings = SamplingSettings(IN_FLIGHT, ignore_stop=True)
        samples = asyncio.create_task(client.complete(PROMPT, list(range(2 * places)), settings))
        await some_tokens(vllm, before + places * (len(PROMPT) + 20))
        await asyncio.to_thread(vllm.load_weights, new, 2, swap)
        return await samples

    completions = reached.ask(swap_while_sampling)
    assert {len(completion.token_ids) for completion in completions} == {IN_FLIGHT}
    by_two = [completion for completion in completions if completion.later_weights]
    assert len(by_two) >= 3
    for completion in by_two[:3]:
        ids = completion.token_ids
        [[start, version]] = completion.later_weights
        assert (completion.weights_version, version) == (1, 2) and 0 < start < len(ids)
        by_old = reference_distributions(old, PROMPT, ids, 1.0)[:start]
        by_new = reference_distributions(new, PROMPT, ids, 1.0)[start:]
        if swap is WeightSwap.KEEP:
            by_new = continued_distributions(old, new, PROMPT + ids, len(PROMPT) + start)
        by_both = torch.cat([by_old, by_new])
        assert completion.logprobs == pytest.approx(of_tokens(by_both, ids), abs=1e-4)
        assert_drawn_by_seed(by_both, ids, completion.seed)
    assert_sampled_from(new, reached.sample(), 1.0)  # nothing that the old weights have cached is found
    reached.server.load_weights(old, 1)


def test_a_folder_without_weights_is_refused_and_the_old_ones_are_still_served(
    vllm: VllmServer, reached: Reached, models: list[Path], tmp_path: Path
) -> None:
    vllm.load_weights(models[1], 8)
    with pytest.raises(UserError, match="no weights to load"):
        vllm.load_weights(tmp_path, 9)
    assert vllm.healthy()
    assert {c.weights_version for c in reached.sample()} == {8}
    assert_sampled_from(models[1], reached.sample(), 1.0)


OWNER = """""
import sys, time
from pathlib import Path
from mrt_hpc.inference.server import VllmServer
from mrt_hpc.inference.server_start import ServerSettings
settings = ServerSettings(Path(sys.argv[1]), max_model_len=512, dtype="float32", kv_cache_gib=0.25, max_num_seqs=32)
with VllmServer(settings, Path(sys.argv[2])) as server:
    print(server.pid, server.socket, flush=True)
    time.sleep(600)
"""


def test_nothing_outlives_an_owner_that_was_killed(models: list[Path], tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(models[0]), str(tmp_path / "server.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout
            pid, socket = owner.stdout.readline().split()
            processes = family(int(pid))
            assert len(processes) > 1
        finally:
            owner.kill()
    assert_gone(processes)
    assert not Path(socket).parent.exists()


async def some_tokens(vllm: VllmServer, before: int) -> None:
    """Wait until samples are being generated. The counter never goes back; a look at what runs now may miss it all."""
    async with asyncio.timeout(30):
        while (vllm.control.tokens_done() or 0) <= before:
            await asyncio.sleep(0)


MANY = list(range(40))  # the seeds of more samples than the server computes at once
LONG = SamplingSettings(200, ignore_stop=True)
HANGS_S = 8.0  # a fresh server may need some seconds on a busy core until the first of many requests has a token


@pytest.mark.usefixtures("vllm_is_loaded")
@pytest.mark.parametrize("fault", ["killed", "all hang", "engine hangs while idle"])
def test_a_server_that_fails_under_load_is_restarted_with_the_weights_loaded_last(
    vllm: VllmServer, reached: Reached, models: list[Path], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP of the engine alone leaves connections open and a server that calls itself healthy."""
    monkeypatch.setattr("mrt_hpc.inference.server_control.LOOK_TIMEOUT_S", 3.0)
    vllm.load_weights(models[1], 1)  # others than those of its start
    processes, starts, before = family(vllm.pid or 0), vllm.starts, vllm.control.tokens_done() or 0

    async def fail_and_go_on(client: GenerationClient) -> list[Completion]:
        limit_s = 600.0 if fault == "killed" else HANGS_S
        watch = asyncio.create_task(restart_when_hung(vllm, client, limit_s, lambda: asyncio.to_thread(vllm.restart)))
        try:
            if "idle" not in fault:
                samples = asyncio.create_task(client.complete(PROMPT, MANY, LONG))
                await some_tokens(vllm, before)
            if fault == "killed":
                os.kill(vllm.pid or 0, signal.SIGKILL)
                await asyncio.to_thread(assert_gone, processes)
            for process in {"killed": [], "all hang": processes}.get(fault, processes[1:]):
                process.suspend()
            return await (client.complete(PROMPT, MANY, LONG) if "idle" in fault else samples)
        finally:
            watch.cancel()

    completions = reached.ask(fail_and_go_on, revive=lambda: asyncio.to_thread(vllm.restart_if_dead))
    assert (vllm.starts, [c.sample for c in completions]) == (starts + 1, MANY)
    assert_gone(processes)
    assert_sampled_from(models[1], completions[:2], 1.0)
    assert not vllm.restart_if_dead()


def test_a_reload_that_fails_half_way_leaves_no_server(vllm: VllmServer, models: list[Path], tmp_path: Path) -> None:
    """vLLM is left with a model without weights then, and dies at the next sample."""
    before = vllm.weights_version
    damaged = shutil.copytree(models[0], tmp_path / "damaged")
    tensors = load_file(damaged / "model.safetensors")
    tensors["model.layers.1.input_layernorm.weight"][3] = np.nan
    save_file(tensors, damaged / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"input_layernorm\.weight holds a NaN"):
        vllm.load_weights(damaged, 2)
    assert (vllm.pid, vllm.weights_version) == (None, before)


def test_a_product_that_is_not_a_number_is_no_right_one() -> None:
    weight = torch.ones(3, 5)
    head = SimpleNamespace(weight=weight, quant_method=SimpleNamespace(apply=lambda _, probe: probe @ weight.T))
    _verify_product(head)
    weight[1, 1] = torch.nan
    with pytest.raises(RuntimeError, match="relative error nan"):
        _verify_product(head)


def test_the_embedding_is_found_on_disk_by_its_shape_and_its_rows(tmp_path: Path) -> None:
    rows = torch.arange(40.0).view(10, 4)
    save_file(
        {"head": -rows.numpy(), "wte.weight": rows.numpy(), "z": rows[:9].numpy()}, tmp_path / "model.safetensors"
    )
    shard = SimpleNamespace(org_vocab_start_index=5, org_vocab_end_index=10)
    half = SimpleNamespace(org_vocab_size=10, embedding_dim=4, shard_indices=shard, weight=rows[5:].clone())
    _verify_rows(half, tmp_path)
    half.weight[4, 3] += 1
    with pytest.raises(RuntimeError, match="the embedding is that of no tensor"):
        _verify_rows(half, tmp_path)


def test_a_sample_whose_request_comes_during_a_pause_finds_no_prefix_of_the_old_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Engine:
        async def generate(self, prompt: Any, *_: object) -> AsyncIterator[None]:
            salts.append(prompt["cache_salt"])
            raise ConnectionError
            yield

    async def vllm(*_: object) -> None:
        """Its pause ends when the body of the request has come."""
        pausing.set()
        await arrived.wait()

    def request() -> Callable[[], Awaitable[dict[str, Any]]]:
        """Its body comes during the pause; after it, its client waits."""

        async def receive() -> dict[str, Any]:
            if not left:
                await asyncio.Event().wait()
            await pausing.wait()
            arrived.set()
            return {"type": "http.request", "body": left.pop()}

        left = [msgspec.json.encode(RequestBatch([wanted]))]
        return receive

    async def send(_: object) -> None: ...

    async def pause_during_a_request() -> None:
        await asyncio.gather(routes(scope(GENERATE_PATH), request(), send), routes(scope(PAUSE_PATH), request(), send))
        await routes(scope(GENERATE_PATH), request(), send)

    def scope(path: str) -> dict[str, Any]:
        app = SimpleNamespace(state=SimpleNamespace(engine_client=Engine()))
        return {"type": "http", "path": path, "headers": [(b"authorization", b"Bearer key")], "app": app}

    monkeypatch.setenv("VLLM_API_KEY", "key")
    wanted, salts = Request([1, 2], [5], SamplingSettings(8)), list[str]()
    routes, pausing, arrived = RunRoutes(vllm), asyncio.Event(), asyncio.Event()
    asyncio.run(pause_during_a_request())
    assert salts == ["pause 1", "pause 1"]


@pytest.mark.usefixtures("vllm_is_loaded")
def test_a_server_that_cannot_start_tells_the_end_of_its_log(tmp_path: Path) -> None:
    settings = ServerSettings(tmp_path / "no model", max_model_len=512)
    with pytest.raises(UserError, match="no model"), VllmServer(settings, tmp_path / "server.log"):
        pass


def test_a_server_that_is_not_needed_any_more_is_given_up_while_it_starts(models: list[Path], tmp_path: Path) -> None:
    class NotNeeded(Exception):
        pass

    def look() -> None:
        assert server.pid not in (None, begun.pid), "the process that has loaded vLLM was killed"
        started.extend(family(server.pid))
        raise NotNeeded

    started: list[psutil.Process] = []
    settings = ServerSettings(models[0], max_model_len=512, dtype="float32", kv_cache_gib=0.25)
    begun = ServerProcess.begin_early(settings, KEY, tmp_path / "server.log")
    begun.process.kill()
    begun.process.wait()
    server = VllmServer(settings, tmp_path / "server.log", key=KEY, while_starting=look, begun=begun)
    with pytest.raises(NotNeeded), server:
        pytest.fail("it started although no task needs it")
    assert started
    assert_gone(started)
