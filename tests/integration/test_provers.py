"""What provers ask and make of the answers, with a small made-up policy in place of a server: every answer it can give
is known with its probability, so that each estimate can be held against the truth.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mrt_hpc.algorithms.batch import Batch
from mrt_hpc.algorithms.mrt_online import branch_sequences
from mrt_hpc.domains.small_world.model import build_tokenizer
from mrt_hpc.inference.client import Completion
from mrt_hpc.inference.protocol import MOST_LOGPROBS, SamplingSettings
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.inference.traces import PromptedGroup, SampledTrace, Start
from mrt_hpc.provers.base import Estimator, GradedBoundary
from mrt_hpc.provers.box_tokens import Closing, box_end
from mrt_hpc.provers.branches import Branches, Fork, look_ahead_of
from mrt_hpc.provers.gold_likelihood import GoldLikelihoodScore
from mrt_hpc.provers.history import AnswerHistory, Planner
from mrt_hpc.provers.look_ahead import LookingAhead
from mrt_hpc.provers.majority import MajorityVote
from mrt_hpc.provers.monte_carlo import MonteCarlo
from mrt_hpc.provers.rao_blackwell import RaoBlackwellEstimator
from mrt_hpc.provers.scoring import SMALL, Count, Scorer, _looks
from mrt_hpc.run.records import FinishReason, Problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from mrt_hpc.inference.protocol import Request
    from mrt_hpc.mrt.values import Estimate
    from mrt_hpc.provers.box_tokens import Writing

PIECES = [b"1", b"2", b"}", b"}.", b"2}", b"{", b"<end>"]
END = PIECES.index(b"<end>")
LIMIT = 5
RIGHT = {"12", "21", "1{2}"}
PROMPT = [0, 0, 0]
SETTINGS = SamplingSettings(LIMIT, stop_token_ids=(END,))


class Vocabulary(TokenBytes):
    """Braces that stand alone, with a full stop, and merged with a digit."""

    def __init__(self) -> None:
        self.table = dict(enumerate(PIECES))


TOKENS = Vocabulary()
CLOSING = Closing(TOKENS)


def probabilities(answer: Sequence[int]) -> list[float]:
    """Of the next token: made up, and always the same after the same tokens."""
    weights = [random.Random(f"{list(answer)}-{token}").random() ** 2 + 0.01 for token in range(len(PIECES))]
    return [w / sum(weights) for w in weights]


@dataclass
class Policy:
    """Samples by the seed, and tells the probabilities it is asked for."""

    asked: list[Request] = field(default_factory=list)

    async def stream(self, requests: Sequence[Request]) -> AsyncIterator[Completion]:
        for i, request in enumerate(requests):
            self.asked.append(request)
            for j, seed in enumerate(request.seeds):
                yield self._completion(request, i, j, seed)

    def _completion(self, request: Request, i: int, j: int, seed: int) -> Completion:
        rng, drawn, logprobs, tops = random.Random(seed), list[int](), [], []
        before = request.prompt_ids[len(PROMPT) :]
        first = probabilities(before)
        while len(drawn) < request.settings.max_tokens:
            p = probabilities([*before, *drawn])
            likeliest = sorted(range(len(p)), key=lambda t: -p[t])[: request.top]
            tops.append({t: math.log(p[t]) for t in likeliest})
            drawn.append(rng.choices(range(len(p)), p)[0])
            logprobs.append(math.log(p[drawn[-1]]))
            if drawn[-1] in request.settings.stop_token_ids:
                break
        stopped = drawn[-1] in request.settings.stop_token_ids
        return Completion(
            i, j, seed, drawn, logprobs, FinishReason.STOP if stopped else FinishReason.LENGTH, 0,
            len(request.prompt_ids), 0, [math.log(first[t]) for t in request.score_ids], 0.0, 0.0,
            tops if request.top else [],
        )  # fmt: skip


def endings(before: tuple[int, ...] = (), mass: float = 1.0) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every branch that the policy can draw, with its probability."""
    ended = before and (before[-1] == END or CLOSING.is_closed(before))
    if ended or len(before) == LIMIT:
        yield before, mass
        return
    for token, p in enumerate(probabilities(before)):
        yield from endings((*before, token), mass * p)


def reward_of(answer: str | None) -> float:
    return float(answer in RIGHT)


def answer_in(text: str) -> str | None:
    """What stands in the box, where it is closed."""
    depth = 1
    for place, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return text[:place]
    return None


def truth() -> float:
    return sum(mass * reward_of(answer_in(TOKENS.text(ids))) for ids, mass in endings())


TRUTH = truth()


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another policy, whose vocabulary has tokens for two digits: answers have several tokenisations."""
    here = sys.modules[__name__]
    monkeypatch.setattr(here, "PIECES", [*PIECES, b"22", b"12", b"21"])
    monkeypatch.setattr(here, "TOKENS", Vocabulary())
    monkeypatch.setattr(here, "CLOSING", Closing(TOKENS))
    monkeypatch.setattr(here, "TRUTH", truth())


def trace(number: int) -> SampledTrace:
    problem = Problem(f"p{number}", "?", "12")
    start = Start(PROMPT, 1, SETTINGS)
    completion = Completion(0, 0, 0, [], [], FinishReason.STOP, 0, 3, 0, [], 0.0, 0.0)
    return SampledTrace(0, PromptedGroup(problem, PROMPT, (start,)), start, 0, "", "", [0], completion)


def fork(policy: Policy) -> Fork:
    return Fork(policy, TOKENS, lambda t, j: t.context(j), [], "", SETTINGS, 5, lambda t: range(len(t.boundaries)))


def estimate(prover: Estimator, number: int) -> Estimate:
    """The value that a prover finds for one trace, graded as a run grades."""
    sampled = trace(number)
    valuation = asyncio.run(prover.value(sampled))
    rewards = {answer: reward_of(answer) for answer in valuation.all_answers}
    branches = []
    for branch in valuation.branches:
        answer = answer_in(branch.text)
        ahead = look_ahead_of(branch, rewards, valuation.trust)
        branches.append(sampled.branch(branch, answer, reward_of(answer), ahead))
    answers = [sampled.known_answer(a, rewards[a.answer]) for a in valuation.answers]
    return prover.estimate(GradedBoundary(valuation.plans[0], branches, answers))


def known(*texts: str) -> list[Writing]:
    ids = {"12": [0, 1], "21": [1, 0], "22": [1, 1], "1{2}": [0, 5, 1, 2]}
    return [CLOSING.writing(text, ids[text]) for text in texts]


def assert_unbiased(found: Sequence[float]) -> None:
    values = np.array(found)
    assert abs(values.mean() - TRUTH) < 4 * values.std() / math.sqrt(len(values))


def test_the_policy_has_something_to_find() -> None:
    assert 0.05 < TRUTH < 0.95
    assert sum(mass for _, mass in endings()) == pytest.approx(1.0)


def test_boxed_branches_end_with_their_box_and_are_unbiased() -> None:
    prover = MonteCarlo(Branches(fork(Policy()), CLOSING), 4)
    branches = [b for n in range(50) for b in asyncio.run(prover.value(trace(n))).branches]
    drawn = {tuple(b.token_ids) for b in branches}
    assert drawn <= {ids for ids, _ in endings()}, "none goes on behind its box, none stops inside it"
    assert any(b"{" in b"".join(TOKENS.pieces(ids)) and CLOSING.is_closed(ids) for ids in drawn)
    assert_unbiased([estimate(prover, n).value for n in range(1500)])


def test_a_branch_with_inner_braces_is_learnt_after_the_prompt_of_its_beginning() -> None:
    """Behind an inner brace it goes on by a further request, whose prompt is no part of the branch."""
    policy = Policy()
    prover = MonteCarlo(Branches(fork(policy), CLOSING), 4)
    sampled = trace(0)
    branches = [b for n in range(50) for b in asyncio.run(prover.value(trace(n))).branches]
    continued = [b for b in branches if b.follow_up.prompt_tokens]
    assert len([b for b in continued if "{" in b.text]) > 1
    assert {b.prompt_tokens for b in branches} == {len(PROMPT)}
    asked = sum(len(r.prompt_ids) * len(r.seeds) for r in policy.asked)
    assert asked == sum(b.prompt_tokens + b.follow_up.prompt_tokens for b in branches), "every prompt is paid for once"
    rollout = sampled.graded(None, 0.0)
    records = [sampled.branch(replace(b, branch=n), None, float(n == 0)) for n, b in enumerate(continued)]
    batch = Batch([rollout], [{}], [], "", np.zeros(0), records)
    assert [s.prompt_ids for s in branch_sequences(batch, [])[0]] == [PROMPT] * len(records)


@pytest.mark.parametrize("likely", [2, 4, 7])
def test_looking_ahead_is_unbiased_and_less_noisy(likely: int) -> None:
    ahead = LookingAhead(Branches(fork(Policy()), CLOSING, likely, 0.01), 1, AnswerHistory(1))
    plain = MonteCarlo(Branches(fork(Policy()), CLOSING), 1)
    found = [estimate(ahead, n).value for n in range(1500)]
    assert_unbiased(found)
    if likely == 7:
        assert np.var(found) < 0.8 * np.var([estimate(plain, n).value for n in range(1500)])


def test_the_planner_leaves_looking_ahead_unbiased_and_spends_what_it_may() -> None:
    ahead = LookingAhead(Branches(fork(Policy()), CLOSING, 7, 0.01), 2, AnswerHistory(1), Planner(1.5))
    found = [asyncio.run(ahead.value(trace(n))) for n in range(400)]
    counts = [valuation.plans[0].branches for valuation in found]
    assert {2, 3} == set(counts)
    assert np.mean(counts) == pytest.approx(2.5, abs=4 * 0.5 / 20)
    assert all([b.branch for b in v.branches] == list(range(v.plans[0].branches)) for v in found)
    assert_unbiased([estimate(ahead, n).value for n in range(1000)])


def test_boundaries_that_are_more_open_than_usual_get_more_than_their_share_and_none_is_starved() -> None:
    planner = Planner(2.0, most=5.0)
    assert planner.counts(np.array([0.5, 0.5]), np.array([0.9, 0.9]), planner.usual).tolist() == [2, 2]
    assert planner.usual == pytest.approx(0.5)
    assert planner.counts(np.array([0.0, 1.0, 2.0]), np.full(3, 0.9), planner.usual).tolist() == [0, 4, 5]
    # a quarter of the usual spread: half a branch on average, which this random number rounds up
    fair = Planner(2.0, least_spread=0.25)
    assert fair.counts(np.array([0.0, 1.0]), np.array([0.4, 0.4]), usual=1.0).tolist() == [1, 2]


def test_the_planner_keeps_its_budget_while_answers_become_certain() -> None:
    planner, rng = Planner(1.0, memory=200.0), np.random.default_rng(0)
    spent = []
    for spread in np.linspace(0.8, 0.2, 300):
        spent.append(planner.counts(np.full(10, spread), rng.random(10), planner.usual).mean())
    assert np.mean(spent[-50:]) == pytest.approx(1.0, abs=0.25)


def test_a_candidate_with_an_open_brace_or_the_end_of_the_text_is_none() -> None:
    prover = LookingAhead(Branches(fork(Policy()), CLOSING, 7, 0.0001), 8, AnswerHistory(1))
    looks = [look for n in range(20) for b in asyncio.run(prover.value(trace(n))).branches for look in b.looks]
    candidates = {answer for look in looks for answer in look.open}
    assert candidates
    assert not any("<end>" in a or a.count("{") != a.count("}") for a in candidates)
    assert all(look.index_of_taken is None or look.index_of_taken >= 0 for look in looks)


@pytest.mark.parametrize("answers", [("12",), ("12", "22"), ("12", "21", "22", "1{2}")])
def test_rao_blackwell_is_unbiased_whatever_is_known(answers: tuple[str, ...]) -> None:
    branches = Branches(fork(Policy()), CLOSING)
    prover = RaoBlackwellEstimator(Scorer(fork(Policy())), branches, 1, AnswerHistory(8), lambda _: known(*answers))
    assert_unbiased([estimate(prover, n).value for n in range(1500)])


@pytest.mark.parametrize("answers", [("12",), ("12", "21", "1{2}")])
@pytest.mark.usefixtures("joined")
def test_rao_blackwell_is_unbiased_where_answers_have_several_tokenisations(answers: tuple[str, ...]) -> None:
    pairs = {PIECES.index(pair) for pair in (b"12", b"21")}
    branches = Branches(fork(Policy()), CLOSING)
    prover = RaoBlackwellEstimator(Scorer(fork(Policy())), branches, 1, AnswerHistory(8), lambda _: known(*answers))
    valuations = [asyncio.run(prover.value(trace(n))) for n in range(300)]
    assert any(b.known and pairs & {*b.token_ids} for v in valuations for b in v.branches)
    assert_unbiased([estimate(prover, n).value for n in range(1500)])


def test_an_answer_has_the_probability_of_the_branches_that_write_it() -> None:
    scored = asyncio.run(Scorer(fork(Policy())).score(trace(0), [0], known("12", "1{2}")))
    for answer, count in zip(scored.valuation.answers, scored.counts[0], strict=True):
        assert answer.probability == pytest.approx(sum(m for ids, m in endings() if count.holds(ids)))


RARE = [b"}%d" % n for n in range(3 * MOST_LOGPROBS)]
"""More tokens that close a box than one request may ask about."""
JOINED = b"12"
"""Two digits in one token."""


class Many(Vocabulary):
    """The vocabulary with rare tokens that close a box, and one that joins two digits."""

    def __init__(self) -> None:
        self.table = dict(enumerate([*PIECES, *RARE, JOINED]))


@dataclass
class Teller:
    """Tells the probabilities of a policy that knows all of these tokens, and samples nothing."""

    asked: list[Request] = field(default_factory=list)

    async def stream(self, requests: Sequence[Request]) -> AsyncIterator[Completion]:
        for i, request in enumerate(requests):
            self.asked.append(request)
            p = self.probabilities(request.prompt_ids[len(PROMPT) :])
            yield Completion(
                i, 0, 0, [0], [0.0], FinishReason.LENGTH, 0, len(request.prompt_ids), 0,
                [math.log(p[t]) for t in request.score_ids], 0.0, 0.0, [],
            )  # fmt: skip

    @staticmethod
    def probabilities(answer: Sequence[int]) -> list[float]:
        size = len(PIECES) + len(RARE) + 1
        weights = [random.Random(f"{list(answer)}-{token}").random() for token in range(size)]
        return [w / sum(weights) for w in weights]


def mass_of(answer: bytes, tokens: TokenBytes, before: tuple[int, ...] = ()) -> float:
    """Of all that writes an answer and closes its box within the tokens of a branch, token by token."""
    rest = answer[len(b"".join(tokens.pieces(before))) :]
    total = 0.0
    for token, p in enumerate(Teller.probabilities(before)):
        piece = tokens.table[token]
        if piece.startswith(rest + b"}"):
            total += p
        elif rest.startswith(piece) and len(before) + 2 <= LIMIT:
            total += p * mass_of(answer, tokens, (*before, token))
    return total


@pytest.mark.parametrize(
    ("answer", "ids"), [("12", [0, 1]), ("12", [len(PIECES + RARE)]), ("22", [1, 1]), ("1212", [0, 1, 0, 1])]
)
@pytest.mark.parametrize("least", [0.0, SMALL])
def test_an_answer_has_the_probability_of_all_that_ends_in_it_however_it_is_written(
    answer: str, ids: list[int], least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrt_hpc.provers.scoring.SMALL", least)
    if least == 0.0:
        monkeypatch.setattr("mrt_hpc.provers.scoring.SMALL_SHARE", 0.0)
    teller, tokens = Teller(), Many()
    asking = Scorer(replace(fork(Policy()), generator=teller, tokens=tokens))
    scored = asyncio.run(asking.score(trace(0), [0], [Closing(tokens).writing(answer, ids)]))
    ((found,), (count,)) = scored.valuation.answers, scored.counts[0]
    truth = mass_of(answer.encode(), tokens)
    assert truth > 0
    assert found.probability <= truth * (1 + 1e-12) <= (found.probability + count.missing) * (1 + 2e-12)
    assert count.missing == 0.0 or least > 0.0
    assert max(len(request.score_ids) for request in teller.asked) == MOST_LOGPROBS


@pytest.mark.parametrize(("right", "gold"), [(RIGHT, ["12"]), ({"12", "21"}, ["12", "21", "22"]), (RIGHT, ["22"])])
def test_the_likelihood_of_gold_answers_takes_no_branch(
    right: set[str], gold: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several it is that of any; one that the grader finds wrong has no value."""
    monkeypatch.setattr(sys.modules[__name__], "RIGHT", right)
    policy = Policy()
    prover = GoldLikelihoodScore(Scorer(fork(policy)), lambda _: known(*gold))
    written = [mass for ids, mass in endings() if answer_in(TOKENS.text(ids)) in right.intersection(gold)]
    assert estimate(prover, 0).value == pytest.approx(sum(written))
    assert {request.settings.max_tokens for request in policy.asked} == {1}


def test_nothing_known_is_nothing_asked() -> None:
    assert asyncio.run(Scorer(fork(Policy())).score(trace(0), [0], [])).valuation.answers == []


def test_a_majority_is_the_answer_of_most_weight() -> None:
    prover = MajorityVote(Branches(fork(Policy()), CLOSING), 5)
    assert {estimate(prover, n).value for n in range(40)} <= {0.0, 0.5, 1.0}


def test_experience_learns_answers_baselines_and_trust() -> None:
    experience = AnswerHistory(3)
    for answer in ("7", "8", "8", None, "9"):
        experience.see("p", answer)
    assert experience.answers("p", "7") == ["7", "8", "9"]
    assert experience.answers("another", "7") == ["7"]
    assert experience.answers("p", ("7", "9")) == ["7", "9", "8"]
    assert AnswerHistory(1).answers("p", ("7", "9")) == ["7", "9"], "no gold answer is left out"
    assert experience.baseline == 0.5
    experience.learn_unknown(1.0)
    experience.learn_unknown(0.0)
    assert experience.baseline == pytest.approx(1.5 / 3)
    before = experience.trust
    for reward in (0.0, 0.0, 1.0):
        experience.learn_step(0, reward)
    assert before.at(0) == 1.0, "what was taken before stays as it was"
    assert experience.trust.at(0) == pytest.approx(2 / 4)


# -- where a boxed answer ends, in the tokens of a real tokenizer and of one that merges braces with their neighbours

TOKENIZER = build_tokenizer()


class Merging(TokenBytes):
    """A vocabulary in which a brace may be part of a longer token."""

    def __init__(self) -> None:
        self.table = dict(enumerate([b"1", b"2", b"}", b"}.", b"2}", b"12}", b"\\frac{", b"}{", b"{", b"x", b"\\}"]))


ONE, TWO, CLOSE, CLOSE_DOT, TWO_CLOSE, ONE_TWO_CLOSE = range(6)


@pytest.mark.parametrize(
    ("text", "end"),
    [(b"7}", 1), (b"7", None), (b"\\frac{1}{2}} so", 11), (b"{}", None), (b"\\}}", 2), (b"}", 0), (b"{a}b}c}", 4)],
)
def test_a_box_ends_where_its_braces_balance(text: bytes, end: int | None) -> None:
    assert box_end(text) == end


def written(count: Count, logprobs: float) -> Count:
    """With every beginning counted, each token being as likely as the others."""
    while count.waiting:
        prefix = min(count.waiting, key=len)
        count.open(prefix, dict.fromkeys(count.asked(prefix), logprobs))
    return count


def test_every_way_of_closing_after_every_beginning_is_counted() -> None:
    writing = Closing(Merging()).writing("12", [ONE, TWO])
    empty, one, both = writing.steps
    assert (empty.closing, one.closing, both.closing) == ((ONE_TWO_CLOSE,), (TWO_CLOSE,), (CLOSE, CLOSE_DOT, 7))
    assert (empty.following, one.following, both.following) == ({ONE: 1}, {TWO: 2}, {})
    assert writing.longest == 3
    count = Count(writing, 5)
    assert count.own == [(), (ONE,), (ONE, TWO)]
    # 1/2 at once, 1/4 after one token, three ways of 1/8 after both
    assert written(count, math.log(0.5)).probability == pytest.approx(0.5 + 0.25 + 3 / 8)
    assert count.missing == 0.0
    known = [[ONE, TWO, CLOSE], [ONE, TWO, CLOSE_DOT], [ONE, TWO_CLOSE], [ONE_TWO_CLOSE]]
    assert all(map(count.holds, known))
    assert not any(map(count.holds, [[ONE, TWO], [ONE, ONE, CLOSE], [ONE, TWO, TWO_CLOSE], []]))
    short = written(Count(writing, 2), math.log(0.5))
    assert short.probability == pytest.approx(0.5 + 0.25), "a way longer than a branch is not counted"
    assert not short.holds([ONE, TWO, CLOSE])


class Joining(Merging):
    """The same vocabulary, in which one token writes both digits."""

    def __init__(self) -> None:
        super().__init__()
        self.table = {**self.table, 11: b"12"}


@pytest.mark.parametrize("own", [[ONE, TWO], [11]])
def test_every_tokenisation_is_a_way(own: list[int]) -> None:
    count = Count(Closing(Joining()).writing("12", own), 5)
    ways = [
        [ONE_TWO_CLOSE],
        [ONE, TWO_CLOSE],
        *([*n, end] for n in ([ONE, TWO], [11]) for end in (CLOSE, CLOSE_DOT, 7)),
    ]
    assert written(count, math.log(0.5)).probability == pytest.approx(sum(0.5 ** len(way) for way in ways))
    assert all(count.holds(way) for way in ways)


def test_nothing_more_is_asked_where_other_tokenisations_hold_little() -> None:
    count = Count(Closing(Joining()).writing("12", [11]), 5)
    for prefix in count.own:
        count.open(prefix, {token: math.log(1e-6 if token == ONE else 0.3) for token in count.asked(prefix)})
    assert count.worthwhile == []
    assert count.missing == pytest.approx(1e-6)
    other = Count(count.writing, 5)
    for prefix in other.own:
        other.open(prefix, {token: math.log(0.01 if token == ONE else 0.3) for token in other.asked(prefix)})
    assert other.worthwhile == [(ONE,)]


def test_answers_share_the_looks_at_their_common_beginnings() -> None:
    closing = Closing(Merging())
    counts = [Count(closing.writing("1", [ONE]), 5), Count(closing.writing("12", [ONE, TWO]), 5)]
    looks = _looks([(0, count, count.own) for count in counts])
    assert set(looks) == {(0, ()), (0, (ONE,)), (0, (ONE, TWO))}
    assert looks[0, (ONE,)] == {TWO, CLOSE, CLOSE_DOT, TWO_CLOSE, 7}


def test_a_real_tokenizer_has_one_brace_of_its_own() -> None:
    closing = Closing(TokenBytes(TOKENIZER))
    writing = closing.writing("12", TOKENIZER.encode("12"))
    (brace,) = TOKENIZER.encode("}")
    assert writing.steps[-1].closing == (brace,)
    assert written(Count(writing, 8), 0.0).holds(TOKENIZER.encode("12}"))
    assert closing.is_closed(TOKENIZER.encode("12}"))
    assert not closing.is_closed(TOKENIZER.encode("{12}"))
