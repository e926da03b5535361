"""The sampling of a unit of work, with a scripted generator in place of a server."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from mrt_hpc.inference.client import Completion
from mrt_hpc.inference.sampler import PromptedProblem, Prover, RolloutPlan, RolloutSampler, SampledTrace, tokens_within
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.inference.wire import Request, Settings
from mrt_hpc.mrt.episodes import EpisodeRule
from mrt_hpc.recipe.errors import UserError
from mrt_hpc.run.records import FinishReason, Problem
from mrt_hpc.run.seeds import derive_seed
from mrt_hpc.world.tokenizer import build_tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

TOKENIZER = build_tokenizer()
TOKENS = TokenBytes(TOKENIZER)
EOS = TOKENIZER.eos_token_id
TRACE = "First, x=3\n\nWait, x=5\n\nWait, x=7\n</think> is \\boxed{7}"
FORCED = TOKENIZER.encode("\n\nTime is up.\n</think> is \\boxed{")
ANSWER = TOKENIZER.encode("7}")
PROVER = Prover(FORCED, " is \\boxed{", branches=3, settings=Settings(max_tokens=4))
PROBLEMS = [PromptedProblem(Problem(f"p{i}", "?", "7"), TOKENIZER.encode(f"Solve {i}*x+1=50")) for i in range(5)]


@dataclass
class Scripted:
    """Writes the same trace for every prompt and the same answer after every forced text; yields seeds in reverse."""

    trace: list[int] = field(default_factory=lambda: [*TOKENIZER.encode(TRACE), EOS])
    reason: FinishReason = FinishReason.STOP
    asked: list[Request] = field(default_factory=list)
    running: int = 0
    most_running: int = 0

    async def stream(self, requests: Sequence[Request]) -> AsyncIterator[Completion]:
        self.asked += requests
        forks = requests[0].prompt_ids[-len(FORCED) :] == FORCED
        count = 0 if forks else len(requests[0].seeds)
        self.running += count
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0)
        for i, request in enumerate(requests):
            for j, seed in reversed(list(enumerate(request.seeds))):
                ids = [*ANSWER, EOS] if forks else self.trace
                self.running -= not forks
                reason = FinishReason.STOP if forks else self.reason
                yield Completion(
                    i, j, seed, ids, [-0.5] * len(ids), reason, 3, len(request.prompt_ids), 0, [], 0.0, 1.0
                )
                await asyncio.sleep(0)


def plan(prover: Prover | None = PROVER, **rule: int) -> RolloutPlan:
    return RolloutPlan(7, 2, 2, Settings(max_tokens=64), rule=EpisodeRule(min_paragraphs=1, **rule), prover=prover)


def sample(generator: Scripted, how: RolloutPlan, concurrency: int = 100) -> list[SampledTrace]:
    async def collect() -> list[SampledTrace]:
        sampler = RolloutSampler(generator, TOKENS, how, concurrency)
        return [trace async for trace in sampler.sample(PROBLEMS)]

    return sorted(asyncio.run(collect()), key=lambda t: (t.prompted.problem.id, t.sample))


def test_every_problem_gets_its_group_and_every_trace_its_seed() -> None:
    traces = sample(Scripted(), plan(prover=None))
    assert [(t.prompted.problem.id, t.sample) for t in traces] == [(f"p{i}", s) for i in range(5) for s in range(2)]
    assert [t.completion.seed for t in traces[:2]] == [derive_seed(7, "rollout", 2, "p0", s) for s in range(2)]
    assert not any(t.branches for t in traces)


def test_a_trace_is_cut_at_its_markers_and_its_thought_ends_before_the_closing_tag() -> None:
    trace = sample(Scripted(), plan())[0]
    ids, cuts = trace.completion.token_ids, trace.boundaries
    episodes = [TOKENS.text(ids[a:b]) for a, b in pairwise(cuts)]
    assert episodes == ["First, x=3\n\n", "Wait, x=5\n\n", "Wait, x=7\n"]
    assert trace.text == TRACE
    assert trace.answer_text == " is \\boxed{7}"


def test_branches_fork_at_every_boundary_from_prompt_prefix_and_forced_text() -> None:
    generator = Scripted()
    trace = sample(generator, plan())[0]
    assert [(b.boundary, b.branch) for b in trace.branches] == [(j, g) for j in range(4) for g in range(3)]
    prefix = trace.completion.token_ids[: trace.boundaries[2]]
    fork = [*trace.prompted.prompt_ids, *prefix, *FORCED]
    seeds = [derive_seed(7, "branch", 2, "p0", 0, 2, g) for g in range(3)]
    assert Request(fork, seeds, PROVER.settings) in generator.asked
    assert {b.text for b in trace.branches} == {" is \\boxed{7}"}


def test_a_trace_cut_by_the_limit_ends_its_last_episode_at_the_cut() -> None:
    ids = TOKENIZER.encode("First, x=3\n\nWait, x=")
    trace = sample(Scripted(ids, FinishReason.LENGTH), plan())[0]
    assert trace.boundaries[-1] == len(ids)
    assert trace.answer_text == trace.text == "First, x=3\n\nWait, x="


def test_a_thought_that_ends_at_once_has_one_boundary_to_fork_from() -> None:
    trace = sample(Scripted([*TOKENIZER.encode("</think>7"), EOS]), plan())[0]
    assert trace.boundaries == [0]
    assert [b.boundary for b in trace.branches] == [0, 0, 0]


def test_records_carry_what_was_sampled() -> None:
    trace = sample(Scripted(), plan())[0]
    rollout, branch = trace.graded("7", 1.0), trace.branches[0].graded(None, 0.0)
    assert (rollout.weights_version, rollout.answer, rollout.reward) == (3, "7", 1.0)
    assert len(rollout.logprobs) == len(rollout.token_ids)
    assert rollout.token_ids[-1] == EOS
    assert (branch.problem_id, branch.boundary, branch.reward) == ("p0", 0, 0.0)


def test_no_more_traces_are_under_way_than_there_is_room_for() -> None:
    generator = Scripted()
    assert len(sample(generator, plan(), concurrency=4)) == 10
    assert generator.most_running == 4


def test_a_group_larger_than_the_room_goes_alone() -> None:
    generator = Scripted()
    assert len(sample(generator, plan(), concurrency=1)) == 10
    assert generator.most_running == 2


def test_a_refusal_reaches_the_caller() -> None:
    class Refusing(Scripted):
        async def stream(self, requests: Sequence[Request]) -> AsyncIterator[Completion]:
            raise UserError("the prompt is too long", value=requests)
            yield

    with pytest.raises(UserError, match="too long"):
        sample(Refusing(), plan())


@pytest.mark.parametrize(("length", "tokens"), [(0, 0), (1, 0), (2, 1), (4, 3), (5, 4), (6, 5)])
def test_tokens_within_counts_whole_tokens(length: int, tokens: int) -> None:
    assert tokens_within([b"ab", b"cd", b"", b"e", b"f"], length) == tokens
