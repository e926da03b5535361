"""The sampling of a unit of work, with a scripted generator in place of a server."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest
from warm_start import build_tokenizer

from mrt_hpc.domains.extraction import extract_answer
from mrt_hpc.errors import UserError
from mrt_hpc.inference.client import Completion
from mrt_hpc.inference.protocol import Request, SamplingSettings
from mrt_hpc.inference.sampler import RolloutPlan, RolloutSampler, tokens_within
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.inference.traces import PromptedGroup, SampledTrace, Start, Valuation
from mrt_hpc.provers.branches import Branches, Fork
from mrt_hpc.provers.sampled_answers import MonteCarlo
from mrt_hpc.recipe.sections import Episodes
from mrt_hpc.run.records import FinishReason, Problem
from mrt_hpc.run.seeds import derive_seed

TOKENIZER = build_tokenizer()
TOKENS = TokenBytes(TOKENIZER)
EOS = TOKENIZER.eos_token_id
TRACE = "First, x=3\n\nWait, x=5\n\nWait, x=7\n</think> is \\boxed{7}"
FORCED = TOKENIZER.encode("\n\nTime is up.\n</think> is \\boxed{")
ANSWER = TOKENIZER.encode("7}")
ANSWERING = SamplingSettings(max_tokens=4)
PROMPTS = [TOKENIZER.encode(f"Solve {i}*x+1=50") for i in range(5)]
GROUPS = [
    PromptedGroup(Problem(f"p{i}", "?", "7"), ids, (Start(ids, 2, SamplingSettings(max_tokens=64)),))
    for i, ids in enumerate(PROMPTS)
]


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
        for _ in range(len(GROUPS)):  # sampling takes longer than claiming all groups
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


def plan() -> RolloutPlan:
    return RolloutPlan(7, 2, 2, rule=Episodes(min_paragraphs=1))


def prover(generator: Scripted) -> MonteCarlo:
    fork = Fork(
        generator, TOKENS, lambda trace, j: trace.context(j), FORCED, " is \\boxed{", ANSWERING, 7,
        boundaries=lambda trace: range(len(trace.boundaries)),
    )  # fmt: skip
    return MonteCarlo(Branches(fork), 3)


def sampled(sampler: RolloutSampler, groups: Iterable[PromptedGroup]) -> list[SampledTrace]:
    """All traces of some groups, in order."""

    async def collect() -> list[SampledTrace]:
        return [trace async for trace in sampler.sample(groups)]

    return sorted(asyncio.run(collect()), key=lambda v: (v.group.problem.id, v.sample))


def sample(generator: Scripted, *, valued: bool = True, room: int = 100) -> list[SampledTrace]:
    valuer, free = prover(generator) if valued else None, asyncio.Semaphore(room)
    traces = sampled(RolloutSampler(generator, TOKENS, plan(), valuer, free), GROUPS)
    assert free._value == room, "it is free again for those that share it"
    return traces


def test_a_trace_is_cut_at_its_markers_and_its_thought_ends_before_the_closing_tag() -> None:
    trace = sample(Scripted())[0]
    ids, cuts = trace.completion.token_ids, trace.boundaries
    assert [TOKENS.text(ids[a:b]) for a, b in pairwise(cuts)] == ["First, x=3\n\n", "Wait, x=5\n\n", "Wait, x=7\n"]
    assert (trace.text, trace.answer_text) == (TRACE, " is \\boxed{7}")
    rollout, branch = trace.graded_rollout("7", 1.0), trace.branch(trace.valuation.branches[0], None, 0.0)
    assert (rollout.weights_version, rollout.answer, rollout.reward) == (3, "7", 1.0)
    assert len(rollout.logprobs) == len(rollout.token_ids) and rollout.token_ids[-1] == EOS
    assert (branch.problem_id, branch.boundary, branch.reward) == ("p0", 0, 0.0)


def test_branches_fork_at_every_boundary_from_prompt_prefix_and_forced_text() -> None:
    generator = Scripted()
    trace = sample(generator)[0]
    branches = trace.valuation.branches
    assert [(b.boundary, b.branch) for b in branches] == [(j, g) for j in range(4) for g in range(3)]
    prefix = trace.completion.token_ids[: trace.boundaries[2]]
    fork = [*PROMPTS[0], *prefix, *FORCED]
    digest = hashlib.sha256(np.array([*PROMPTS[0], *prefix], dtype=np.int64).tobytes()).hexdigest()
    seeds = [derive_seed(7, "branch", 2, "p0", digest, g) for g in range(3)]
    assert Request(fork, seeds, ANSWERING, family="p0") in generator.asked
    assert {b.text for b in branches} == {" is \\boxed{7}"}


def test_traces_with_the_same_prefix_share_its_branches_and_pay_for_them_once() -> None:
    """Both traces of a problem are the same text, so that they share every prefix."""
    generator = Scripted()
    first, second = sample(generator)[:2]
    asked = [r for r in generator.asked if r.family == "p0" and r.prompt_ids[-len(FORCED) :] == FORCED]
    assert [len(r.seeds) for r in asked] == [3] * 4, "three branches at each of four boundaries"
    pairs = list(zip(first.valuation.branches, second.valuation.branches, strict=True))
    assert all(one.completion == other.completion and one.boundary == other.boundary for one, other in pairs)
    assert all(one.is_shared != other.is_shared for one, other in pairs)


def test_a_branch_that_was_not_drawn_is_drawn_by_the_next_trace() -> None:
    class FailingOnce(Scripted):
        async def stream(self, requests: Sequence[Request]) -> AsyncIterator[Completion]:
            self.running += 1
            if self.running == 1:
                await asyncio.sleep(0)
                raise UserError("the server is away")
            async for completion in super().stream(requests):
                yield completion

    trace = sample(Scripted(), valued=False)[0]
    asking = prover(FailingOnce())

    async def both() -> list[object]:
        together = await asyncio.gather(asking.value(trace), asking.value(trace), return_exceptions=True)
        return [*together, await asking.value(trace)]

    failed, waited, drawn = asyncio.run(both())
    assert isinstance(failed, UserError) and "server is away" in str(waited)
    assert isinstance(drawn, Valuation) and not any(b.is_shared for b in drawn.branches)


def test_a_thought_that_is_cut_or_ends_at_once_has_its_end_as_a_boundary() -> None:
    ids = TOKENIZER.encode("First, x=3\n\nWait, x=")
    trace = sample(Scripted(ids, FinishReason.LENGTH))[0]
    assert trace.boundaries[-1] == len(ids) and trace.answer_text == trace.text == "First, x=3\n\nWait, x="
    valued = sample(Scripted([*TOKENIZER.encode("</think>7"), EOS]))[0]
    assert valued.boundaries == [0] and [b.boundary for b in valued.valuation.branches] == [0, 0, 0]


def test_rollouts_of_one_group_may_start_in_several_places() -> None:
    """Two go on from a prefix, one is forced to answer there."""
    context = [*PROMPTS[0], *TOKENIZER.encode("First, x=3\n\n")]
    going_on = Start(context, 2, SamplingSettings(max_tokens=64), b"First, x=3\n\n")
    forced = Start([*context, *FORCED], 1, ANSWERING, b"First, x=3\n\n</think>", len(FORCED))
    group = PromptedGroup(Problem("p0", "?", "7"), PROMPTS[0], (going_on, forced))

    traces = sampled(RolloutSampler(Scripted(), TOKENS, replace(plan(), group_size=3)), [group])
    assert [t.sample for t in traces] == [0, 1, 2]
    assert [t.completion.seed for t in traces] == [derive_seed(7, "rollout", 2, "p0", s) for s in range(3)]
    assert (traces[0].text, [len(t.boundaries) for t in traces]) == ("First, x=3\n\n" + TRACE, [4, 4, 1])
    records = [t.graded_rollout("7", 1.0) for t in traces]
    assert ([r.forced for r in records], records[2].prompt_ids) == ([0, 0, len(FORCED)], [*context, *FORCED])


def test_without_tags_a_forced_answer_is_looked_for_behind_the_prefix() -> None:
    """A box in the prefix is not what was answered."""
    prefix = b"First, \\boxed{3}?\n\nSo: "
    start = Start(PROMPTS[0], 1, ANSWERING, prefix, forced=2, answer_start="So: ")
    group = PromptedGroup(Problem("p0", "?", "7"), PROMPTS[0], (start,))
    tagless = RolloutPlan(7, 2, 1, thought_end=b"", rule=Episodes(markers=("",), min_paragraphs=1))
    (trace,) = sampled(RolloutSampler(Scripted(TOKENIZER.encode("x=7")), TOKENS, tagless), [group])
    assert trace.boundaries == [0] and trace.text.startswith(prefix.decode())
    assert extract_answer(trace.answer_text) is None


@pytest.mark.parametrize("room", [1, 3, 4])
def test_no_more_traces_are_sampled_at_a_time_than_there_is_room_for(room: int) -> None:
    """Room that no whole group fits into is used all the same."""
    generator = Scripted()
    found = sample(generator, valued=room % 2 == 0, room=room)
    assert generator.most_running == room
    assert [(v.group.problem.id, v.sample) for v in found] == [(f"p{i}", s) for i in range(5) for s in (0, 1)]
    assert [v.completion.seed for v in found[:2]] == [derive_seed(7, "rollout", 2, "p0", s) for s in range(2)]


def test_a_part_of_a_group_knows_where_its_traces_start() -> None:
    """Two traces go on from a prefix, three are forced: parts of two cut across the starts."""
    going_on, forced = Start([1], 2, SamplingSettings(max_tokens=64)), Start([1, 2], 3, ANSWERING, forced=1)
    group = PromptedGroup(Problem("p0", "?", "7"), [1], (going_on, forced))
    generator = Scripted()
    traces = sampled(RolloutSampler(generator, TOKENS, RolloutPlan(7, 2, 5), room=asyncio.Semaphore(3)), [group])
    assert [(t.sample, t.start.forced) for t in traces] == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 1)]
    assert [t.completion.seed for t in traces] == [derive_seed(7, "rollout", 2, "p0", s) for s in range(5)]
    assert [len(request.seeds) for request in generator.asked[:2]] == [2, 1]


def test_a_group_is_claimed_when_there_is_room_for_a_trace_of_it() -> None:
    generator, running = Scripted(), []

    def claimed() -> Iterator[PromptedGroup]:
        for group in GROUPS:
            running.append(generator.running)
            yield group

    assert len(sampled(RolloutSampler(generator, TOKENS, plan(), room=asyncio.Semaphore(3)), claimed())) == 10
    assert max(running) < 3


def test_a_refusal_reaches_the_caller() -> None:
    class Refusing(Scripted):
        async def stream(self, requests: Sequence[Request]) -> AsyncIterator[Completion]:
            raise UserError("the prompt is too long", value=requests)
            yield

    with pytest.raises(UserError, match="too long"):
        sample(Refusing())


@pytest.mark.parametrize(("length", "tokens"), [(0, 0), (1, 0), (2, 1), (4, 3), (5, 4), (6, 5)])
def test_tokens_within_counts_whole_tokens(length: int, tokens: int) -> None:
    assert tokens_within([b"ab", b"cd", b"", b"e", b"f"], length) == tokens
