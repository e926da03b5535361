"""A real vLLM server with tiny random models: started, asked, given new weights, killed, and never left behind.

Log-probabilities are compared with a transformers forward pass in fp32. The server with tied embeddings serves the
whole module and is killed last; the one with untied embeddings belongs to a process of its own, which is killed to
see that nothing outlives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import numpy as np
import psutil
import pytest
import torch
from safetensors.numpy import load_file, save_file
from small_weights import as_bytes
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM
from vllm import _custom_ops  # noqa: F401  # loads the kernel that draws

from mrt_hpc.domains.small_world.model import build_tokenizer
from mrt_hpc.errors import UserError
from mrt_hpc.inference.attached_server import AttachedServer
from mrt_hpc.inference.client import Completion, GenerationClient, Request, SamplingSettings, connect
from mrt_hpc.inference.protocol import GENERATE_PATH
from mrt_hpc.inference.sampler import RolloutPlan, RolloutSampler
from mrt_hpc.inference.server import VllmServer
from mrt_hpc.inference.server_control import Address
from mrt_hpc.inference.server_start import ServerSettings
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.inference.traces import PromptedGroup, SampledTrace, Start
from mrt_hpc.inference.vllm_extension import _verify_product
from mrt_hpc.inference.vllm_on_cpu import step_keys
from mrt_hpc.provers.branches import Branches, Fork
from mrt_hpc.provers.monte_carlo import MonteCarlo
from mrt_hpc.recipe.sections import Episodes, WeightSwap
from mrt_hpc.roles.sampling.serving import restart_when_hung
from mrt_hpc.roles.sampling.weights import LocalWeights
from mrt_hpc.run import weights
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import verify
from mrt_hpc.run.records import FinishReason, Problem
from mrt_hpc.run.waiting import wait_until
from mrt_hpc.run.weights_delta import VersionKey, delta_between

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

T = TypeVar("T")

TOKENIZER = build_tokenizer()
PROMPT = list(range(20, 90))
NOBODY = 65534
GONE_DEADLINE_S = 30.0


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
    """[T] log-probabilities of ``ids``."""
    return distributions.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()


def reference_logprobs(directory: Path, prompt: list[int], ids: list[int], temperature: float) -> list[float]:
    """[T] log-probabilities of ``ids`` after ``prompt`` by transformers, in fp32."""
    return of_tokens(reference_distributions(directory, prompt, ids, temperature), ids)


def assert_drawn_by_seed(distributions: torch.Tensor, ids: list[int], seed: int) -> None:
    """The tokens are those that the noise of seed and place draws; rounding may decide at very few places."""
    keys = step_keys(np.full(len(ids), seed, np.uint64), np.arange(len(ids)))
    drawn = torch.ops._C.fused_gumbel_argmax(distributions, torch.from_numpy(keys.view(np.int64)))
    assert sum(a == b for a, b in zip(drawn.tolist(), ids, strict=True)) >= 0.98 * len(ids) - 1


def assert_sampled_from(directory: Path, completions: list[Completion], temperature: float) -> None:
    for completion in completions:
        expected = reference_logprobs(directory, PROMPT, completion.token_ids, temperature)
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)


@dataclass(frozen=True)
class Reached:
    """A running server as its clients see it."""

    socket: Path
    key: str
    pid: int
    load_weights: Callable[[Path, int], Any]

    def ask(self, question: Callable[[GenerationClient], Awaitable[T]], **options: Any) -> T:
        """The answer to ``question``, asked through a connection of its own."""

        async def connected() -> T:
            async with connect(Address.of_socket(self.socket), self.key, **options) as client:
                return await question(client)

        return asyncio.run(connected())

    def sample(
        self, temperature: float = 1.0, seeds: tuple[int, ...] = (1, 2, 3), max_tokens: int = 24
    ) -> list[Completion]:
        settings = SamplingSettings(max_tokens, temperature, ignore_stop=True)
        return self.ask(lambda client: client.complete(PROMPT, list(seeds), settings))

    def http(self, method: str, path: str, key: str | None) -> int:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(self.socket)), timeout=30) as client:
            return client.request(method, f"http://vllm{path}", headers=headers).status_code


def family(pid: int) -> list[psutil.Process]:
    """A process and all it started."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def assert_gone(processes: list[psutil.Process]) -> None:
    def none_left() -> bool:
        return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)

    wait_until(none_left, reason="the end of every process of the server", deadline_s=GONE_DEADLINE_S)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    kinds = {f"{'tied' if tied else 'untied'}{seed}": (tied, seed) for tied in (True, False) for seed in (0, 1)}
    return {name: write_model(root / name, tied=tied, seed=seed) for name, (tied, seed) in kinds.items()}


@pytest.fixture(scope="module")
def vllm(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    settings = ServerSettings(models["tied0"], max_model_len=512, dtype="float32", kv_cache_gib=0.25, max_num_seqs=32)
    server = VllmServer(settings, tmp_path_factory.mktemp("logs") / "server.log")
    with server:
        yield server
        processes = family(server.pid) if server.pid else []
    assert_gone(processes)
    assert not server.socket.parent.exists()


@pytest.fixture(scope="module")
def tied(vllm: VllmServer) -> Reached:
    return Reached(vllm.socket, vllm.key, vllm.pid or 0, vllm.load_weights)


OWNER = """
import json, sys
from pathlib import Path
from mrt_hpc.inference.server import VllmServer
from mrt_hpc.inference.server_start import ServerSettings
settings = ServerSettings(Path(sys.argv[1]), max_model_len=512, dtype="float32", kv_cache_gib=0.25, max_num_seqs=32)
with VllmServer(settings, Path(sys.argv[2])) as server:
    print(json.dumps([str(server.socket), server.key, server.pid]), flush=True)
    for line in sys.stdin:
        print(json.dumps(server.load_weights(Path(line.strip()), 1)), flush=True)
"""


@pytest.fixture(scope="module")
def owner(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """A process that owns the server with untied embeddings."""
    command = [sys.executable, "-c", OWNER, str(models["untied0"]), str(tmp_path_factory.mktemp("logs") / "server.log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.fixture(scope="module")
def untied(owner: subprocess.Popen[str]) -> Reached:
    assert owner.stdin and owner.stdout
    commands, answers = owner.stdin, owner.stdout
    socket, key, pid = json.loads(answers.readline())

    def load_weights(directory: Path, _: int) -> Any:
        commands.write(f"{directory}\n")
        commands.flush()
        return json.loads(answers.readline())

    return Reached(Path(socket), key, pid, load_weights)


# -- sampling ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_log_probabilities_are_those_of_the_distribution_sampled_from(
    tied: Reached, models: dict[str, Path], temperature: float
) -> None:
    completions = tied.sample(temperature)
    assert_sampled_from(models["tied0"], completions, temperature or 1.0)  # greedy has those of temperature 1
    assert {c.weights_version for c in completions} == {0}


def test_a_seed_decides_its_sample_whichever_others_share_the_request(tied: Reached) -> None:
    together, alone = tied.sample(seeds=(1, 2, 3)), tied.sample(seeds=(2,))
    assert together[1].token_ids == alone[0].token_ids
    assert len({tuple(c.token_ids) for c in together}) == 3


def test_the_noise_of_a_sample_follows_from_its_seed_and_the_number_of_its_tokens(
    tied: Reached, models: dict[str, Path]
) -> None:
    seeds = (1, 2, 3)
    for seed, completion in zip(seeds, tied.sample(seeds=seeds, max_tokens=200), strict=True):
        ids = completion.token_ids
        assert_drawn_by_seed(reference_distributions(models["tied0"], PROMPT, ids, 1.0), ids, seed)


def test_the_stop_token_is_the_last_and_has_its_log_probability(tied: Reached, models: dict[str, Path]) -> None:
    likely = max(tied.sample(seeds=tuple(range(8))), key=lambda c: len(set(c.token_ids))).token_ids[5]
    settings = SamplingSettings(400, stop_token_ids=(likely,))
    found = tied.ask(lambda client: client.complete(PROMPT, list(range(8)), settings))
    stopped = [c for c in found if c.finish_reason is FinishReason.STOP]
    assert stopped
    assert all(c.token_ids.index(likely) == len(c.token_ids) - 1 for c in stopped if c.token_ids[-1] == likely)
    assert_sampled_from(models["tied0"], stopped[:2], 1.0)


def test_scores_are_exact_at_any_temperature(tied: Reached, models: dict[str, Path]) -> None:
    continuations = [[5, 6, 7], [5, 6, 9], [5, 8], [100]]
    scores = tied.ask(lambda client: client.score(PROMPT, continuations, 0.6))
    expected = [sum(reference_logprobs(models["tied0"], PROMPT, ids, 0.6)) for ids in continuations]
    assert scores == pytest.approx(expected, abs=1e-4)


def test_many_seeded_prompts_at_once_are_prefilled_whole(tied: Reached) -> None:
    """vLLM's CPU engine dies when it splits a prompt whose request has a seed."""
    requests = [Request([*PROMPT * 5, i], [i], SamplingSettings(2)) for i in range(40)]

    async def count(client: GenerationClient) -> int:
        return len([c async for c in client.stream(requests)])

    assert tied.ask(count) == 40


def test_a_prompt_that_is_too_long_is_refused_with_the_servers_words(tied: Reached) -> None:
    with pytest.raises(UserError, match="maximum model length"):
        tied.ask(lambda client: client.complete([5] * 600, [0], SamplingSettings(4)))


def test_samples_of_a_client_that_went_away_are_aborted(tied: Reached, vllm: VllmServer) -> None:
    async def leave_early(client: GenerationClient) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.complete(PROMPT, list(range(32)), SamplingSettings(440, ignore_stop=True))

    before = vllm.metrics()["vllm:generation_tokens_total"]
    tied.ask(leave_early)
    wait_until(lambda: vllm.metrics()["vllm:num_requests_running"] == 0, reason="the abort", deadline_s=10)
    assert vllm.metrics()["vllm:generation_tokens_total"] - before < 32 * 440


def test_branches_find_their_prefix_in_the_cache(tied: Reached) -> None:
    forced = TOKENIZER.encode("\n\nTime is up.\n</think> is \\boxed{")
    plan = RolloutPlan(run_seed=0, iteration=0, group_size=4, rule=Episodes(markers=("",), min_paragraphs=1))
    # A random model writes a blank line once in some hundreds of tokens: so many traces have one for certain.
    settings = SamplingSettings(400, ignore_stop=True)
    prompts = [[*PROMPT, i] for i in range(16)]
    groups = [PromptedGroup(Problem(str(i), "", ""), ids, (Start(ids, 4, settings),)) for i, ids in enumerate(prompts)]

    async def collect(client: GenerationClient) -> list[SampledTrace]:
        tokens = TokenBytes(TOKENIZER)
        fork = Fork(
            client, tokens, lambda trace, j: trace.context(j), forced, "", SamplingSettings(4), 0,
            boundaries=lambda trace: range(len(trace.boundaries)),
        )  # fmt: skip
        sampler = RolloutSampler(client, tokens, plan, MonteCarlo(Branches(fork), 2))
        return [t async for t in sampler.sample(groups)]

    traces = tied.ask(collect)
    assert len(traces) == 64
    assert any(len(valued.boundaries) > 2 for valued in traces)
    for branch in (b for valued in traces for b in valued.valuation.branches):
        before_fork = branch.prompt_tokens - len(forced)
        assert branch.cached_tokens is not None
        assert branch.cached_tokens >= (before_fork - 1) // 32 * 32


# -- out of reach ------------------------------------------------------------------------------------------------------


def test_the_key_is_in_no_command_line(tied: Reached) -> None:
    lines = ["\0".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])]
    assert any("mrt_hpc.inference.server_main" in line for line in lines)
    assert not any(tied.key in line for line in lines)


@pytest.mark.parametrize(
    "path", ["/v1/models", "/collective_rpc", "/pause", "/reset_prefix_cache", "/metrics", GENERATE_PATH]
)
@pytest.mark.parametrize("key", [None, "wrong"])
def test_no_route_answers_without_the_key(tied: Reached, path: str, key: str | None) -> None:
    assert tied.http("POST" if path != "/v1/models" else "GET", path, key) == 401
    assert tied.http("GET", "/health", key) == 200


STRANGER = """
import socket, sys
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
except PermissionError:
    sys.exit(13)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_reaches_no_socket_of_the_server(tied: Reached) -> None:
    listening = {
        Path(c.laddr) for p in family(tied.pid) for c in p.net_connections("unix") if str(c.laddr).startswith("/")
    }
    assert tied.socket in listening
    for socket in listening:
        stranger = subprocess.run(
            [sys.executable, "-I", "-c", STRANGER, str(socket)], user=NOBODY, group=NOBODY, extra_groups=[]
        )
        assert stranger.returncode == 13, socket


def test_it_listens_on_no_port_for_http(tied: Reached) -> None:
    ports = {
        (c.laddr.ip, c.laddr.port)
        for p in family(tied.pid)
        for c in p.net_connections("tcp")
        if c.status == psutil.CONN_LISTEN
    }
    for host, port in ports:
        address = f"[{host}]" if ":" in host else host
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://{address}:{port}/health", timeout=0.5)


# -- new weights, death and restart, in this order ---------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("kind", ["untied", "tied"])
def test_reloaded_weights_are_those_of_the_directory(
    kind: str, temperature: float, models: dict[str, Path], request: pytest.FixtureRequest
) -> None:
    server: Reached = request.getfixturevalue(kind)
    before = server.sample(temperature)
    report = server.load_weights(models[f"{kind}1"], 1)
    after = server.sample(temperature)
    assert report["directory"] == str(models[f"{kind}1"])
    assert [c.token_ids for c in after] != [c.token_ids for c in before] or before[0].weights_version == 1
    assert_sampled_from(models[f"{kind}1"], after, temperature)
    assert {c.weights_version for c in after} == {1}


def test_a_version_that_is_put_together_of_deltas_is_served_as_the_whole_one(
    tied: Reached, models: dict[str, Path], tmp_path: Path
) -> None:
    layout, whole = RunLayout(tmp_path / "run"), tmp_path / "whole"
    weights.publish(layout, 1, lambda directory: weights.take_over(models["tied0"], directory))
    tensors, draw = load_file(models["tied0"] / "model.safetensors"), np.random.default_rng(0)
    for version in (2, 3, 4):
        before, base = as_bytes(tensors), VersionKey(version - 1, verify(layout.weights_version(version - 1)).digest)
        chosen = {name: draw.random(values.shape) < 0.05 for name, values in tensors.items()}
        tensors = {name: np.where(chosen[name], -values, values) for name, values in tensors.items()}
        delta = delta_between(base, before, as_bytes(tensors))
        assert delta is not None
        weights.publish(layout, version, delta.write)
    shutil.copytree(models["tied0"], whole)
    save_file(tensors, whole / "model.safetensors", {"format": "pt"})
    local = LocalWeights(layout)
    with local.open():
        tied.load_weights(local.of(4).directory, 4)
        assert_sampled_from(whole, tied.sample(), temperature=1.0)
        tied.load_weights(models["tied1"], 1)


def test_a_reload_forgets_the_prefixes_of_the_old_weights(tied: Reached, models: dict[str, Path]) -> None:
    tied.sample()
    assert tied.sample(seeds=(1,))[0].cached_tokens
    tied.load_weights(models["tied1"], 1)
    assert tied.sample(seeds=(1,))[0].cached_tokens == 0


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
    swap: WeightSwap, vllm: VllmServer, tied: Reached, models: dict[str, Path]
) -> None:
    old, new = models["tied1"], models["tied0"]
    vllm.load_weights(old, 1)
    before, places = vllm.tokens_done() or 0, vllm.settings.max_num_seqs

    async def swap_while_sampling(client: GenerationClient) -> list[Completion]:
        settings = SamplingSettings(420, ignore_stop=True)
        samples = asyncio.create_task(client.complete(PROMPT, list(range(3 * places)), settings))
        await some_tokens(vllm, before + places * (len(PROMPT) + 20))
        await asyncio.to_thread(vllm.load_weights, new, 2, swap)
        return await samples

    completions = tied.ask(swap_while_sampling)
    assert {len(completion.token_ids) for completion in completions} == {420}
    by_two = [completion for completion in completions if completion.later_weights]
    assert len(by_two) >= 4
    for completion in by_two[:4]:
        assert completion.weights_version == 1
        ids = completion.token_ids
        [[start, version]] = completion.later_weights
        assert version == 2
        assert 0 < start < len(ids)
        by_old = reference_distributions(old, PROMPT, ids, 1.0)[:start]
        by_new = (
            continued_distributions(old, new, PROMPT + ids, len(PROMPT) + start)
            if swap is WeightSwap.KEEP
            else reference_distributions(new, PROMPT, ids, 1.0)[start:]
        )
        by_both = torch.cat([by_old, by_new])
        assert completion.logprobs == pytest.approx(of_tokens(by_both, ids), abs=1e-4)
        assert_drawn_by_seed(by_both, ids, completion.seed)
    assert_sampled_from(new, tied.sample(), 1.0)  # nothing that the old weights have cached is found
    tied.load_weights(old, 1)


def test_weights_that_are_not_there_leave_the_old_ones_in_place(
    vllm: VllmServer, tied: Reached, loaded: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="no weights to load"):
        vllm.load_weights(tmp_path, 2)
    assert_sampled_from(loaded, tied.sample(), 1.0)


def attached(vllm: VllmServer, model: Path, **changes: Any) -> AttachedServer:
    """The running server, as a task attaches to it that has not started it."""
    given = {"control": vllm.control, "max_model_len": 512, "dtype": vllm.settings.dtype, "common_seeds": True}
    given |= {"read_deadline_s": 60, "pause_deadline_s": 60}
    return AttachedServer(**{**given, "model_dir": model, "weights_version": 7, **changes})


def test_an_attached_server_holds_the_wanted_weights_before_it_is_used_and_goes_on_running(
    vllm: VllmServer, tied: Reached, models: dict[str, Path]
) -> None:
    with attached(vllm, models["tied0"]) as server:
        assert_sampled_from(models["tied0"], tied.sample(), 1.0)
        assert {c.weights_version for c in tied.sample()} == {7}
        server.load_weights(models["tied1"], 8)
        assert not server.restart_if_dead()
    assert_sampled_from(models["tied1"], tied.sample(), 1.0)
    assert vllm.healthy()


def test_an_attached_server_that_does_not_fit_is_refused(vllm: VllmServer, models: dict[str, Path]) -> None:
    with (
        pytest.raises(UserError, match="limits sequences to fewer tokens"),
        attached(vllm, models["tied0"], max_model_len=513),
    ):
        pass
    with (
        pytest.raises(UserError, match="other settings than the recipe asks for"),
        attached(vllm, models["tied0"], dtype="bfloat16"),
    ):
        pass
    stranger = dataclasses.replace(vllm.control, key="another")
    with (
        pytest.raises(UserError, match="key of the run is missing or wrong"),
        attached(vllm, models["tied0"], control=stranger),
    ):
        pass
    nowhere = dataclasses.replace(vllm.control, address=Address("http://127.0.0.1:9"))
    with (
        pytest.raises(UserError, match="vLLM server at http://127"),
        attached(vllm, models["tied0"], control=nowhere, read_deadline_s=0.5),
    ):
        pass
    with pytest.raises(UserError, match="does not answer"):
        attached(vllm, models["tied0"], control=nowhere).restart_if_dead()


def test_nothing_outlives_an_owner_that_was_killed(owner: subprocess.Popen[str], untied: Reached) -> None:
    processes = family(untied.pid)
    assert len(processes) > 1
    owner.kill()
    assert_gone(processes)
    assert not untied.socket.parent.exists()


async def some_tokens(vllm: VllmServer, before: int) -> None:
    """Wait until samples are being generated. The counter never goes back; a look at what runs now may miss it all."""
    async with asyncio.timeout(30):
        while (vllm.tokens_done() or 0) <= before:
            await asyncio.sleep(0)


@pytest.fixture
def loaded(vllm: VllmServer, models: dict[str, Path]) -> Path:
    """The weights that the server has loaded last, others than those of its start."""
    vllm.load_weights(models["tied1"], 1)
    return models["tied1"]


def test_a_server_killed_under_load_is_restarted_with_the_weights_loaded_last(
    vllm: VllmServer, tied: Reached, loaded: Path
) -> None:
    processes, starts, before = family(vllm.pid or 0), vllm.starts, vllm.tokens_done() or 0

    async def kill_and_go_on(client: GenerationClient) -> list[Completion]:
        samples = asyncio.create_task(
            client.complete(PROMPT, list(range(128)), SamplingSettings(440, ignore_stop=True))
        )
        await some_tokens(vllm, before)
        os.kill(vllm.pid or 0, signal.SIGKILL)
        await asyncio.to_thread(assert_gone, processes)
        return await samples

    completions = tied.ask(kill_and_go_on, revive=lambda: asyncio.to_thread(vllm.restart_if_dead))
    assert vllm.starts == starts + 1
    assert [c.sample for c in completions] == list(range(128))
    assert_sampled_from(loaded, completions[:2], 1.0)
    assert not vllm.restart_if_dead()


HANGS_S = 10.0
"""A fresh server may need some seconds on a busy core until the first of 128 requests has a token."""


@pytest.mark.parametrize("stopped", ["all", "engine, while it was idle"])
def test_a_server_that_hangs_under_load_is_restarted(
    vllm: VllmServer, tied: Reached, loaded: Path, stopped: str
) -> None:
    """SIGSTOP leaves connections open and, with the engine alone stopped, a server that calls itself healthy."""
    processes = family(vllm.pid or 0)
    starts, before = vllm.starts, vllm.tokens_done() or 0

    async def restart() -> None:
        await asyncio.to_thread(vllm.restart)

    async def stop_and_go_on(client: GenerationClient) -> list[Completion]:
        watch = asyncio.create_task(restart_when_hung(vllm, client, HANGS_S, restart))
        work = client.complete(PROMPT, list(range(128)), SamplingSettings(440, ignore_stop=True))
        if "idle" not in stopped:
            samples = asyncio.create_task(work)
            await some_tokens(vllm, before)
        for process in processes if stopped == "all" else processes[1:]:
            process.suspend()
        try:
            return await (work if "idle" in stopped else samples)
        finally:
            watch.cancel()

    completions = tied.ask(stop_and_go_on, revive=lambda: asyncio.to_thread(vllm.restart_if_dead))
    assert vllm.starts == starts + 1
    assert [c.sample for c in completions] == list(range(128))
    assert_gone(processes)
    assert_sampled_from(loaded, completions[:2], 1.0)


@pytest.mark.parametrize(
    ("damage", "refusal"), [("not finite", "input_layernorm.weight holds a NaN"), ("cut short", "refused")]
)
def test_a_reload_that_fails_half_way_leaves_no_server_to_sample_from(
    damage: str, refusal: str, vllm: VllmServer, models: dict[str, Path], tmp_path: Path
) -> None:
    """vLLM is left with a model without weights then, and dies at the next sample."""
    vllm.restart_if_dead()
    before = vllm.weights_version
    damaged = shutil.copytree(models["tied0"], tmp_path / "damaged")
    if damage == "cut short":
        os.truncate(damaged / "model.safetensors", 4000)
    else:
        tensors = load_file(damaged / "model.safetensors")
        tensors["model.layers.1.input_layernorm.weight"][3] = np.nan
        save_file(tensors, damaged / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=refusal):
        vllm.load_weights(damaged, 2)
    assert vllm.pid is None
    assert vllm.weights_version == before


def test_a_product_that_is_not_a_number_is_no_right_one() -> None:
    weight = torch.ones(3, 5)
    head = SimpleNamespace(weight=weight, quant_method=SimpleNamespace(apply=lambda _, probe: probe @ weight.T))
    _verify_product(head)
    weight[1, 1] = torch.nan
    with pytest.raises(RuntimeError, match="relative error nan"):
        _verify_product(head)


def test_a_server_that_cannot_start_tells_the_end_of_its_log(tmp_path: Path) -> None:
    settings = ServerSettings(tmp_path / "no model", max_model_len=512)
    with pytest.raises(UserError, match="no model"), VllmServer(settings, tmp_path / "server.log"):
        pass


def test_a_server_that_is_not_needed_any_more_is_given_up_while_it_starts(
    models: dict[str, Path], tmp_path: Path
) -> None:
    class NotNeeded(Exception):
        pass

    def look() -> None:
        assert server.pid is not None
        started.extend(family(server.pid))
        raise NotNeeded

    started: list[psutil.Process] = []
    settings = ServerSettings(models["tied0"], max_model_len=512, dtype="float32", kv_cache_gib=0.25)
    server = VllmServer(settings, tmp_path / "server.log", while_starting=look)
    with pytest.raises(NotNeeded), server:
        pytest.fail("it started although no task needs it")
    assert started
    assert_gone(started)
