"""What provers ask and make of the answers, with a small made-up policy in place of a server: every answer it can give
is known with its probability, so that each estimate can be held against the truth.
"""

import asyncio
import math
import random
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from mrt_hpc.algorithms.batch import Batch
from mrt_hpc.algorithms.mrt_online import branch_sequences
from mrt_hpc.domains.extraction import ExtractionRule, any_box, extract_answer, last_mathematics
from mrt_hpc.inference.client import Completion
from mrt_hpc.inference.protocol import MOST_LOGPROBS, Request, SamplingSettings
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.inference.traces import PromptedGroup, SampledBranch, SampledTrace, Start
from mrt_hpc.mrt.values import Estimate
from mrt_hpc.provers.base import Estimator, GradedBoundary, ProverTools
from mrt_hpc.provers.box_tokens import Closing, Writing, box_end
from mrt_hpc.provers.branches import Branches, Fork, look_ahead_of
from mrt_hpc.provers.gold_likelihood import GoldLikelihoodScore
from mrt_hpc.provers.history import AnswerHistory, Planner
from mrt_hpc.provers.look_ahead import LookingAhead
from mrt_hpc.provers.rao_blackwell import RaoBlackwellEstimator
from mrt_hpc.provers.sampled_answers import ForcedAnswer, MonteCarlo
from mrt_hpc.provers.scoring import SMALL, Scorer
from mrt_hpc.run.records import FinishReason, Problem

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
    weights = [random.Random(f"{list(answer)}-{token}").random() ** 2 + 0.01 for token in range(len(PIECES))]
    return [w / sum(weights) for w in weights]


@dataclass
class Policy:
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
            tops.append({t: math.log(p[t]) for t in sorted(range(len(p)), key=lambda t: -p[t])[: request.top]})
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
    ended = before and (before[-1] == END or CLOSING.is_closed(before))
    if ended or len(before) == LIMIT:
        yield before, mass
        return
    for token, p in enumerate(probabilities(before)):
        yield from endings((*before, token), mass * p)


def reward_of(answer: str | None) -> float:
    return float(answer in RIGHT)


def answer_in(text: str) -> str | None:
    depth = 1
    for place, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return text[:place]
    return None


def truth() -> float:
    return sum(mass * reward_of(answer_in(TOKENS.text(ids))) for ids, mass in endings())


TRUTH = truth()
assert 0.05 < TRUTH < 0.95, "the policy has something to find"


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another policy, whose vocabulary has tokens for two digits: answers have several tokenisations."""
    here = sys.modules[__name__]
    monkeypatch.setattr(here, "PIECES", [*PIECES, b"22", b"12", b"21"])
    monkeypatch.setattr(here, "TOKENS", Vocabulary())
    monkeypatch.setattr(here, "CLOSING", Closing(TOKENS))
    monkeypatch.setattr(here, "TRUTH", truth())


def trace(number: int) -> SampledTrace:
    problem, start = Problem(f"p{number}", "?", "12"), Start(PROMPT, 1, SETTINGS)
    completion = Completion(0, 0, 0, [], [], FinishReason.STOP, 0, 3, 0, [], 0.0, 0.0)
    return SampledTrace(0, PromptedGroup(problem, PROMPT, (start,)), start, 0, "", "", [0], completion)


def fork(policy: Policy) -> Fork:
    return Fork(policy, TOKENS, lambda t, j: t.context(j), [], "", SETTINGS, 5, lambda t: range(len(t.boundaries)))


def estimate(prover: Estimator, number: int) -> Estimate:
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
    return [CLOSING.ways_to_write(text, ids[text]) for text in texts]


def assert_unbiased(prover: Estimator, traces: int = 1500) -> list[float]:
    """The values of traces, whose mean is the truth."""
    values = [estimate(prover, n).value for n in range(traces)]
    assert abs(np.mean(values) - TRUTH) < 4 * np.std(values) / math.sqrt(traces)
    return values


def branches_of(prover: Estimator, traces: int = 50) -> list[SampledBranch]:
    return [b for n in range(traces) for b in asyncio.run(prover.value(trace(n))).branches]


def boxed(*likely: float) -> Branches:
    return Branches(fork(Policy()), CLOSING, *likely)


def rao_blackwell(*answers: str) -> RaoBlackwellEstimator:
    return RaoBlackwellEstimator(Scorer(fork(Policy())), boxed(), 1, AnswerHistory(8), lambda _: known(*answers))


def test_boxed_branches_end_with_their_box_and_are_unbiased() -> None:
    prover = MonteCarlo(boxed(), 4)
    drawn = {tuple(b.completion.token_ids) for b in branches_of(prover)}
    assert drawn <= {ids for ids, _ in endings()}, "none goes on behind its box, none stops inside it"
    assert any(b"{" in b"".join(TOKENS.pieces(ids)) and CLOSING.is_closed(ids) for ids in drawn)
    assert_unbiased(prover)


def test_a_forced_answer_ends_where_the_box_that_its_text_opens_closes() -> None:
    tools = ProverTools(fork(Policy()), CLOSING, AnswerHistory(1), lambda _: [])
    texts = ("</think>The answer is", "</think>\\boxed{")
    whole, ended = (branches_of(ForcedAnswer(forced_text=text).estimator(tools)) for text in texts)
    saved = 0
    for free, boxed_in in zip(whole, ended, strict=True):
        if boxed_in.follow_up.prompt_tokens:
            continue  # behind an inner brace it draws with another seed
        tokens = boxed_in.completion.token_ids
        assert tokens == free.completion.token_ids[: len(tokens)]
        assert answer_in(boxed_in.text) == answer_in(free.text)
        saved += len(free.completion.token_ids) - len(tokens)
    assert saved > 0


@pytest.mark.parametrize("rule", [extract_answer, any_box, last_mathematics])
def test_what_follows_a_closed_box_changes_no_answer_unless_it_opens_another(rule: ExtractionRule) -> None:
    for tail in (".", " since 3 > 2", "}", "$\n\nSo 5 = $x$.", " {7", "\\}", "\\frac{1}{2}"):
        for cut in (False, True):
            assert rule("\\boxed{1{2}}" + tail, cut=cut) == rule("\\boxed{1{2}}") == "1{2}"


def test_a_branch_with_inner_braces_is_learnt_after_the_prompt_of_its_beginning() -> None:
    """Behind an inner brace it goes on by a further request, whose prompt is no part of the branch."""
    policy, sampled = Policy(), trace(0)
    branches = branches_of(MonteCarlo(Branches(fork(policy), CLOSING), 4))
    continued = [b for b in branches if b.follow_up.prompt_tokens]
    assert len([b for b in continued if "{" in b.text]) > 1
    assert {b.completion.prompt_tokens for b in branches} == {len(PROMPT)}
    asked = sum(len(r.prompt_ids) * len(r.seeds) for r in policy.asked)
    paid = sum(b.completion.prompt_tokens + b.follow_up.prompt_tokens for b in branches)
    assert asked == paid, "every prompt is paid for once"
    records = [sampled.branch(replace(b, branch=n), None, float(n == 0)) for n, b in enumerate(continued)]
    batch = Batch([sampled.graded_rollout(None, 0.0)], [{}], [], "", np.zeros(0), records)
    assert [s.prompt_ids for s in branch_sequences(batch, [])[0]] == [PROMPT] * len(records)


@pytest.mark.parametrize("likely", [2, 7])
def test_looking_ahead_is_unbiased_and_less_noisy(likely: int) -> None:
    found = assert_unbiased(LookingAhead(boxed(likely, 0.01), 1, AnswerHistory(1)))
    if likely == 7:
        assert np.var(found) < 0.8 * np.var([estimate(MonteCarlo(boxed(), 1), n).value for n in range(1500)])


def test_the_planner_leaves_looking_ahead_unbiased_and_spends_what_it_may() -> None:
    ahead = LookingAhead(boxed(7, 0.01), 2, AnswerHistory(1), Planner(1.5))
    found = [asyncio.run(ahead.value(trace(n))) for n in range(400)]
    counts = [valuation.plans[0].branches for valuation in found]
    assert {2, 3} == set(counts)
    assert np.mean(counts) == pytest.approx(2.5, abs=4 * 0.5 / 20)
    assert all([b.branch for b in v.branches] == list(range(v.plans[0].branches)) for v in found)
    assert_unbiased(ahead, 1000)


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
    branches = branches_of(LookingAhead(boxed(7, 0.0001), 8, AnswerHistory(1)), 20)
    candidates = {answer for b in branches for look in b.looks for answer in look.open}
    assert candidates
    assert not any("<end>" in a or a.count("{") != a.count("}") for a in candidates)


@pytest.mark.parametrize("answers", [("12",), ("12", "21", "22", "1{2}")])
def test_rao_blackwell_is_unbiased_whatever_is_known(answers: tuple[str, ...]) -> None:
    assert_unbiased(rao_blackwell(*answers))


@pytest.mark.parametrize("answers", [("12",), ("12", "21", "1{2}")])
@pytest.mark.usefixtures("joined")
def test_rao_blackwell_is_unbiased_where_answers_have_several_tokenisations(answers: tuple[str, ...]) -> None:
    pairs, prover = {PIECES.index(pair) for pair in (b"12", b"21")}, rao_blackwell(*answers)
    assert any(b.known and pairs & {*b.completion.token_ids} for b in branches_of(prover, 300))
    assert_unbiased(prover)


RARE = [b"}%d" % n for n in range(3 * MOST_LOGPROBS)]  # more tokens that close a box than one request may ask about


class Many(TokenBytes):
    """The vocabulary with rare tokens that close a box, and one that joins two digits."""

    def __init__(self) -> None:
        self.table = dict(enumerate([*PIECES, *RARE, b"12"]))


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


@pytest.mark.parametrize(("answer", "ids"), [
    ("12", [0, 1]), ("12", [len(PIECES + RARE)]), ("22", [1, 1]), ("1212", [0, 1, 0, 1])
])  # fmt: skip
@pytest.mark.parametrize("least", [0.0, SMALL])
def test_an_answer_has_the_probability_of_all_that_ends_in_it_however_it_is_written(
    answer: str, ids: list[int], least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrt_hpc.provers.scoring.SMALL", least)
    if least == 0.0:
        monkeypatch.setattr("mrt_hpc.provers.scoring.SMALL_SHARE", 0.0)
    teller, tokens = Teller(), Many()
    asking = Scorer(replace(fork(Policy()), generator=teller, tokens=tokens))
    scored = asyncio.run(asking.score(trace(0), [0], [Closing(tokens).ways_to_write(answer, ids)]))
    ((found,), (count,)) = scored.valuation.answers, scored.counts[0]
    truth = mass_of(answer.encode(), tokens)
    missing = sum(count.waiting.values())
    assert 0 < found.probability <= truth * (1 + 1e-12) <= (found.probability + missing) * (1 + 2e-12)
    assert missing == 0.0 or least > 0.0
    assert max(len(request.score_ids) for request in teller.asked) == MOST_LOGPROBS


@pytest.mark.parametrize(("right", "gold"), [(RIGHT, ["12"]), ({"12", "21"}, ["12", "21", "22"]), (RIGHT, ["22"])])
def test_gold_likelihood_takes_no_branch(right: set[str], gold: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several it is that of any; one that the grader finds wrong has no value."""
    monkeypatch.setattr(sys.modules[__name__], "RIGHT", right)
    policy = Policy()
    prover = GoldLikelihoodScore(Scorer(fork(policy)), lambda _: known(*gold))
    masses = [mass for ids, mass in endings() if answer_in(TOKENS.text(ids)) in right.intersection(gold)]
    assert estimate(prover, 0).value == pytest.approx(sum(masses))
    assert {request.settings.max_tokens for request in policy.asked} == {1}


def test_experience_learns_answers_baselines_and_trust() -> None:
    experience = AnswerHistory(3)
    for answer in ("7", "8", "8", None, "9"):
        experience.see("p", answer)
    assert experience.answers("p", "7") == ["7", "8", "9"] and experience.answers("another", "7") == ["7"]
    assert experience.answers("p", ("7", "9")) == ["7", "9", "8"]
    assert AnswerHistory(1).answers("p", ("7", "9")) == ["7", "9"], "no gold answer is left out"
    assert experience.baseline == 0.5
    for reward in (1.0, 0.0):
        experience.learn_unknown(reward)
    assert experience.baseline == pytest.approx(1.5 / 3)
    before = experience.trust
    for reward in (0.0, 0.0, 1.0):
        experience.learn_step(0, reward)
    assert before.share_at(0) == 1.0, "what was taken before stays as it was"
    assert experience.trust.share_at(0) == pytest.approx(2 / 4)


@pytest.mark.parametrize(("text", "end"), [
    (b"7}", 1), (b"7", None), (b"\\frac{1}{2}} so", 11), (b"{}", None), (b"\\}}", 2), (b"}", 0), (b"{a}b}c}", 4)
])  # fmt: skip
def test_a_box_ends_where_its_braces_balance(text: bytes, end: int | None) -> None:
    assert box_end(text) == end
