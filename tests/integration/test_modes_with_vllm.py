"""Every way of evaluating, and every prover, through a real vLLM server with the small world's model."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT, task_in

from mrt_hpc.algorithms.base import WholeTraces
from mrt_hpc.analysis.measures import EvaluationSummary
from mrt_hpc.analysis.problem_measures import valued_traces
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.domains.grader_queue import GraderPool
from mrt_hpc.domains.small_world import STARTING_MODEL
from mrt_hpc.domains.small_world.equations import FORCED_TEXT, Split, problems
from mrt_hpc.domains.verifiers import verifier_of
from mrt_hpc.inference.client import Completion, Request, SamplingSettings, connect
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.sampler import Generator, RolloutPlan, RolloutSampler, TraceCutter
from mrt_hpc.inference.server import VllmServer
from mrt_hpc.inference.server_start import ServerSettings
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.modes.base import Mode
from mrt_hpc.modes.writer import Writer
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.jobs import Role
from mrt_hpc.provers.prover_session import ProverFactory, ProverModel
from mrt_hpc.recipe.base import require_kind
from mrt_hpc.recipe.kinds import ProverSettings
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.sections import Episodes
from mrt_hpc.roles import evaluation
from mrt_hpc.roles.sampling.sampling_session import SamplingSession, gather_in_order
from mrt_hpc.roles.sampling.serving import OwnServers
from mrt_hpc.run.groups import Sampled, read_group
from mrt_hpc.run.records import FinishReason, Rollout
from mrt_hpc.run.weights import publish

QUICKSTART = ROOT / "recipes" / "quickstart.yaml"
BLOCK = 32  # the tokens of a block of the server's prefix cache on CPU
BASE = 64  # evaluation.max_tokens
PROBLEMS, SAMPLES = 3, 2
FORCED = "Time is up.\\n\\n</think>\\n\\n\\\\boxed{"
EXTRAPOLATION = (
    "{type: extrapolation, words: [Wait, First], extensions: 4, tokens: 48, value_every: 2, answer_tokens: 8, "
    f'forced_text: "{FORCED}"}}'
)
BUDGETS = f'{{type: budget_forcing, budgets: [16, 40, 128], answer_tokens: 8, forced_text: "{FORCED}"'
PROVER = f'evaluation.prover={{type: forced_answer, forced_text: "{FORCED}", branches: 2, max_tokens: 4}}'


def recipe_with(mode: str) -> Recipe:
    entry = f"{{name: b, samples: {SAMPLES}, problems: {{type: small_world, split: held_out, problems: {PROBLEMS}}}"
    benchmarks = f"evaluation.benchmarks=[{entry}, mode: {mode}}}]"
    regret = "evaluation.regret_budgets=[32, 64]"
    return load_recipe(QUICKSTART, (benchmarks, PROVER, regret, f"evaluation.max_tokens={BASE}"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    settings = ServerSettings(
        STARTING_MODEL, max_model_len=512, dtype="float32", kv_cache_gib=0.25, max_num_seqs=32, cpu_threads=1
    )
    with VllmServer(settings, tmp_path_factory.mktemp("logs") / "server.log") as server:
        yield server


@dataclass
class Recording:
    client: Generator
    seen: list[tuple[Request, Completion]] = field(default_factory=list)

    async def stream(self, requests: Sequence[Request]) -> AsyncIterator[Completion]:
        async for completion in self.client.stream(requests):
            self.seen.append((requests[completion.request], completion))
            yield completion


@dataclass(frozen=True)
class Evaluated:
    graded: list[Sampled]
    seen: list[tuple[Request, Completion]]

    @property
    def rollouts(self) -> list[Rollout]:
        return [rollout for trace in self.graded for rollout in trace.rollouts]

    def stages(self, number: int) -> list[list[Rollout]]:
        return [self.rollouts[at : at + number] for at in range(0, len(self.rollouts), number)]


def evaluate(server: VllmServer, mode: str, asked: ProverSettings | None = None) -> Evaluated:
    recipe = recipe_with(mode)
    prompter = Prompter.of(STARTING_MODEL, recipe.prompt)
    settings = SamplingSettings(BASE, 1.0, stop_token_ids=prompter.stop_token_ids)
    groups = [WholeTraces(prompter, SAMPLES, settings, 64).group(p) for p in problems(Split.HELD_OUT, PROBLEMS)]
    way = recipe.evaluation.benchmarks[0].mode
    assert way is not None
    plan = RolloutPlan(3, 0, SAMPLES * len(way.stages), rule=Episodes(markers=("Wait",), min_paragraphs=1))
    tokens = TokenBytes(prompter.tokenizer)
    found: list[Sampled] = []

    async def finish(group: list[asyncio.Task[Sampled]]) -> None:
        found.extend(await gather_in_order(group))

    async def sample(pool: GraderPool) -> list[tuple[Request, Completion]]:
        async with connect(server.socket, server.control.key) as client:
            recording = Recording(client)
            writer = Writer(recording, prompter, TraceCutter(tokens, plan), settings)
            valuer = ProverFactory.of(asked, ProverModel.of(prompter), 3).session(client) if asked else None
            tracer = require_kind(way, Mode).sampler(writer)
            sampler = RolloutSampler(recording, tokens, plan, room=asyncio.Semaphore(4), tracer=tracer)
            await SamplingSession(sampler, pool, valuer).sample(groups, finish)
            return recording.seen

    with GraderPool(verifier_of(recipe.evaluation.benchmarks[0].problems, recipe.grading), 1, 5.0) as pool:
        seen = asyncio.run(sample(pool))
    found.sort(key=lambda t: (t.rollouts[0].problem_id, t.rollouts[0].sample))
    assert len(found) == PROBLEMS * plan.group_size
    return Evaluated(found, seen)


@cache
def small_world() -> Prompter:
    return Prompter.of(STARTING_MODEL, recipe_with("null").prompt)


def text(ids: Sequence[int]) -> str:
    return TokenBytes(small_world().tokenizer).text(ids)


def inserted(rollout: Rollout) -> list[str]:
    return [text(rollout.token_ids[at : at + length]) for at, length in rollout.inserted]


def common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


MODES = {
    "direct": "{type: direct}",
    "history_conditioned": "{type: history_conditioned, backtrack: Wait, attempt_tokens: 48}",
    "linearised": "{type: linearised, rounds: 4, window: 2, round_tokens: 48, backtrack: Wait}",
    "budget_forcing": BUDGETS + "}",
    "budget_forcing_extended": BUDGETS + ", extend: true}",
    "extrapolation": EXTRAPOLATION,
}


@pytest.fixture(scope="module")
def evaluated(server: VllmServer) -> dict[str, Evaluated]:
    return {name: evaluate(server, mode) for name, mode in MODES.items()}


@pytest.mark.parametrize("name", ["linearised", "budget_forcing_extended", "extrapolation"])
def test_the_same_seed_gives_the_same_tokens(server: VllmServer, evaluated: dict[str, Evaluated], name: str) -> None:
    again, rollouts = evaluate(server, MODES[name]).rollouts, evaluated[name].rollouts
    assert [r.token_ids for r in again] == [r.token_ids for r in rollouts]
    assert len({tuple(r.token_ids) for r in rollouts}) > PROBLEMS, "samples differ"


@pytest.mark.parametrize("name", MODES)
def test_tokens_have_log_probabilities_of_sampled_ones_below_0(evaluated: dict[str, Evaluated], name: str) -> None:
    for rollout in evaluated[name].rollouts:
        assert len(rollout.logprobs) == len(rollout.token_ids)
        forced = {at + n for at, length in rollout.inserted for n in range(length)}
        assert not any(rollout.logprobs[n] for n in forced)
        assert rollout.sampled_tokens == len(rollout.token_ids) - len(forced) > 0
        assert any(logprob < 0 for logprob in rollout.logprobs)


@pytest.mark.parametrize("name", [name for name in MODES if name != "direct"])
def test_what_is_continued_is_in_the_prefix_cache(evaluated: dict[str, Evaluated], name: str) -> None:
    """Every request that continues another one finds the whole blocks of its tokens in the cache."""
    followed = 0
    for request, completion in evaluated[name].seen:
        ended = [(r, c) for r, c in evaluated[name].seen if c.started + c.seconds <= completion.started]
        computed = [[*r.prompt_ids, *c.token_ids[:-1]] for r, c in ended]  # a last token is sampled, not computed
        shared = max((common(ids, request.prompt_ids) for ids in computed), default=0)
        followed += shared > BLOCK
        assert completion.cached_tokens is not None
        assert completion.cached_tokens >= min(shared, len(request.prompt_ids) - 1) // BLOCK * BLOCK
    assert followed


def test_a_second_attempt_sees_the_first_which_is_the_direct_trace_of_its_seed(evaluated: dict[str, Evaluated]) -> None:
    both = evaluated["history_conditioned"].stages(2)
    for (first, second), direct in zip(both, evaluated["direct"].rollouts, strict=True):
        assert (first.stage, second.stage, second.counts) == (0, 1, True)
        assert first.seed == direct.seed and len(first.token_ids) <= 48
        assert first.token_ids == direct.token_ids[: len(first.token_ids)]
        shown = first.token_ids[:-1] if first.finish_reason is FinishReason.STOP else first.token_ids
        assert second.prompt_ids[: len(first.prompt_ids) + len(shown)] == [*first.prompt_ids, *shown]
        assert text(second.prompt_ids).endswith("<|end|>\nWait\n<think>\n")


def test_extended_thoughts_reach_the_budget_past_the_limit_of_a_completion(evaluated: dict[str, Evaluated]) -> None:
    words = 0
    for rollout in evaluated["budget_forcing_extended"].rollouts[2::3]:
        assert BASE < 128 - 2 <= rollout.boundaries[-1] <= 128
        gaps = [gap for gap in inserted(rollout) if gap != FORCED_TEXT]
        assert {gap.strip("\n") for gap in gaps} <= {"Wait"}
        assert "</think>" not in text(rollout.token_ids[: rollout.boundaries[-1]])
        words += len(gaps)
    assert words


def test_extrapolation_goes_past_the_limit_of_a_completion(evaluated: dict[str, Evaluated]) -> None:
    longer = 0
    for rollout, plain in zip(evaluated["extrapolation"].rollouts, evaluated["direct"].rollouts, strict=True):
        start, base, second, fourth = rollout.boundaries
        assert start == 0 < base <= second <= fourth and base <= BASE
        assert rollout.token_ids[:base] == plain.token_ids[:base]
        longer += fourth > BASE
    assert longer


def test_values_are_asked_for_at_the_boundaries_of_the_result_alone(server: VllmServer) -> None:
    recipe, forced = recipe_with("null"), small_world().ids(FORCED_TEXT)
    for trace in evaluate(server, EXTRAPOLATION, recipe.evaluation.prover).graded:
        assert [value.boundary for value in trace.values] == [0, 1, 2, 3]
        for branch in trace.branches:
            asked = len(trace.rollouts[0].prompt_ids) + trace.rollouts[0].boundaries[branch.boundary]
            assert branch.prompt_tokens == asked + len(forced)
    revised = evaluate(server, MODES["history_conditioned"], recipe.evaluation.prover)
    assert [bool(trace.values) for trace in revised.graded] == [False, True] * (PROBLEMS * SAMPLES)


PROVERS = {  # those that no recipe of the small world has, or only for what it collects
    "boxed_answer": "branches: 2, max_tokens: 4, ",
    "gold_likelihood": "",
    "majority": "branches: 3, max_tokens: 4, ",
    "continuation": "branches: 2, max_tokens: 64, ",
}


@pytest.mark.parametrize("prover", PROVERS)
def test_every_prover_values_every_prefix(server: VllmServer, prover: str) -> None:
    forced = "" if prover == "continuation" else f'forced_text: "{FORCED}", '
    section = f"prover={{type: {prover}, {PROVERS[prover]}{forced}temperature: 1.0}}"
    found = evaluate(server, MODES["direct"], load_recipe(QUICKSTART, (section,)).prover)
    longest = 0
    for trace in found.graded:
        (rollout,) = trace.rollouts
        assert [v.boundary for v in trace.values] == [*range(len(rollout.boundaries))]
        assert all(0.0 <= v.value <= 1.0 + 1e-6 for v in trace.values)
        for branch in trace.branches:
            prefix = len(rollout.prompt_ids) + rollout.boundaries[branch.boundary]
            longest = max(longest, prefix)
            assert (branch.cached_tokens or 0) >= (prefix - 1) // BLOCK * BLOCK, "the prefix is in the server's cache"
    assert longest > BLOCK or prover == "gold_likelihood"
    assert sum(trace.statistics.branch_tokens for trace in found.graded) > 0
    assert len({v.value for trace in found.graded for v in trace.values}) > 1


def test_the_evaluation_role_commits_all_stages_and_summarises_the_last(
    server: VllmServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OwnServers, "load_ahead", nullcontext)  # to start no other one
    monkeypatch.setattr(OwnServers, "serve", lambda *_: nullcontext(server))
    recipe = recipe_with(MODES["budget_forcing"])
    jobs = compile_plan(recipe, LocalSite()).jobs
    job = next(j.name for j in jobs if j.role is Role.EVALUATION and j.evaluations[0].version == 0)
    task = task_in(tmp_path / "run", recipe, job)
    layout = task.layout
    publish(layout, 0, lambda directory: shutil.copytree(STARTING_MODEL, directory, dirs_exist_ok=True) and None)
    evaluation.run(task)
    summary = EvaluationSummary.read(layout.evaluation_summary(0, "b"))
    shard = read_group(layout.evaluation_shard(0, "b", 0))
    assert len(shard.rollouts) == PROBLEMS * SAMPLES * 3
    assert (summary.problems, summary.samples) == (PROBLEMS, SAMPLES)
    assert [*summary.stages] == ["16 tokens", "40 tokens", "128 tokens"]
    assert summary.stages["128 tokens"] == pytest.approx(summary.accuracy)
    last = [r for r in shard.rollouts if r.stage == 2]
    assert summary.tokens_per_rollout == pytest.approx(sum(len(r.token_ids) for r in last) / len(last))
    assert sum(map(len, valued_traces([shard]).values())) == len(last)
    assert summary.regret == {}, "values at the cuts of a thought give another quantity than those of episodes"
