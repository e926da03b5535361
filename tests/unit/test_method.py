"""Values, progress, credits and advantages: by hand, and against exact enumeration on trees."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations_with_replacement, product
from math import comb, prod

import numpy as np
import pytest
from numpy.typing import NDArray

from mrt_hpc.algorithms.mrt import draw_boundary
from mrt_hpc.mrt import grpo
from mrt_hpc.mrt.episodes import credit_bounds, cut_episodes
from mrt_hpc.mrt.grpo import Baseline, Normalise
from mrt_hpc.mrt.length_penalty import overlong_penalties
from mrt_hpc.mrt.mrt import (
    Bonus,
    PrefixGroup,
    answer_advantages,
    boundary_before_loss,
    continued_advantages,
    stop_advantages,
)
from mrt_hpc.mrt.mrt_online import branch_advantages, token_advantages, token_credits
from mrt_hpc.mrt.progress import Credit, permute, progress, spread_over_tokens
from mrt_hpc.recipe.sections import Episodes


def test_progress_is_the_change_of_value_spread_over_the_tokens_of_its_episode() -> None:
    assert progress(np.array([0.25, 0.75, 0.5])).tolist() == [0.5, -0.25]
    assert spread_over_tokens(np.array([0.5, -0.25]), [0, 2, 3], 5).tolist() == [0.5, 0.5, -0.25, 0.0, 0.0], (
        "none in the answer"
    )
    for boundaries in ([0, 2, 3], [0, 9]):
        with pytest.raises(ValueError, match="do not match"):
            spread_over_tokens(np.array([0.5]), boundaries, 5)


def test_outcome_advantages_compare_within_the_group() -> None:
    rewards = np.array([1.0, 0.0, 1.0, 1.0])
    # group a: 1, 1 -> mean 1; group b: 0, 1 -> mean 1/2
    assert grpo.outcome_advantages(rewards, ["a", "b", "a", "b"], baseline=Baseline.GROUP).tolist() == [0, -0.5, 0, 0.5]
    alone = grpo.outcome_advantages(rewards, ["a", "b", "a", "b"], baseline=Baseline.LEAVE_ONE_OUT)
    assert alone.tolist() == [0, -1, 0, 1]
    # mean 1/4, standard deviation sqrt(3)/4, whatever is left out, and however long a trace is
    for baseline in (Baseline.GROUP, Baseline.LEAVE_ONE_OUT):
        form = {"baseline": baseline, "normalise": Normalise.GROUP_STD}
        divided = grpo.outcome_token_advantages(np.array([1.0, 0.0, 0.0, 0.0]), ["a"] * 4, [1, 2, 30, 4], **form)
        assert [a[0] for a in divided] == pytest.approx([3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)], rel=1e-5)
    # the others of a right branch: 0, 0, 1 -> mean 1/3; of a wrong one: 1, 0, 1 -> mean 2/3
    assert branch_advantages(np.array([1.0, 0.0, 0.0, 1.0])) == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])


@pytest.mark.parametrize("rewards", [[1.0, 1.0, 1.0], [0.0, 0.0], [1.0], []])
def test_those_that_are_all_alike_tell_nothing(rewards: list[float]) -> None:
    assert grpo.leave_one_out(np.array(rewards)).tolist() == [0.0] * len(rewards)


REWARDS, GROUPS, LENGTHS = np.array([1.0, 0.0]), ["p", "p"], [6, 3]
BOUNDARIES, BOUNDS = [[0, 2, 4], [0, 3]], [[0, 3, 5], [0, 3]]  # the second was cut by the limit: no answer tokens
TRACES = (REWARDS, GROUPS, LENGTHS, BOUNDS)
VALUES = [np.array([0.0, 0.5, 1.0]), np.array([0.5, 0.25])]


def test_mrt_online_adds_progress_to_the_outcome_of_each_episode_and_alpha_zero_is_grpo() -> None:
    credits = token_credits(Credit.EPISODE, LENGTHS, BOUNDARIES, BOUNDS, VALUES)
    first, second = token_advantages(*TRACES, VALUES, credits, alpha=2.0, baseline=Baseline.GROUP)
    # outcome +-0.5; progress 0.5, 0.5 and -0.25, times two; the answer token gets the outcome only
    assert first.tolist() == [1.5, 1.5, 1.5, 1.5, 1.5, 0.5]
    assert second.tolist() == [-1.0, -1.0, -1.0]
    for baseline, normalise in product((Baseline.GROUP, Baseline.LEAVE_ONE_OUT), (Normalise.NONE, Normalise.GROUP_STD)):
        form = {"baseline": baseline, "normalise": normalise}
        mrt = token_advantages(*TRACES, VALUES, credits, alpha=0.0, **form)
        for a, b in zip(mrt, grpo.outcome_token_advantages(REWARDS, GROUPS, LENGTHS, **form), strict=True):
            assert a == pytest.approx(b)


def test_shaping_alone_counts_as_much_as_an_answer_unless_it_is_dropped_where_none_is_right() -> None:
    rewards, right = np.array([0.02, 0, 0, 0, 1, 0.02]), np.array([False] * 4 + [True, False])
    groups = ["failed"] * 4 + ["solved"] * 2
    failed = grpo.failed_groups(right, groups)
    assert failed.tolist() == [True] * 4 + [False] * 2
    form = {"baseline": Baseline.GROUP, "normalise": Normalise.GROUP_STD}
    kept = grpo.outcome_token_advantages(rewards, groups, [2] * 6, **form)
    dropped = grpo.outcome_token_advantages(rewards, groups, [2] * 6, dropped=failed, **form)
    assert [round(a[0], 2) for a in kept] == [1.73, -0.58, -0.58, -0.58, 1, -1], "0.02 is a whole deviation"
    assert [round(a[0], 2) for a in dropped] == [0, 0, 0, 0, 1, -1]


@pytest.mark.parametrize(
    ("rule", "wrong"), [("keep", [0.75, -0.75, -0.75]), ("progress_only", [1.0, 0, 0]), ("drop", [0, 0, 0])]
)
def test_progress_alone_or_nothing_is_learnt_where_no_answer_is_right(rule: str, wrong: list[float]) -> None:
    """The first trace is wrong, the second is right; both have one episode of one token, from V = .25 to .75."""
    values, dense = [np.array([0.25, 0.75])] * 2, [np.array([0.5, 0.0, 0.0])] * 2
    arguments = (np.array([0.0, 1.0]), ["a", "b"], [3, 3], [[0, 1]] * 2, values, dense)
    form = {"alpha": 2.0, "baseline": Baseline.PREFIX, "without_outcome": grpo.WithoutOutcome(rule)}
    first, second = token_advantages(*arguments, failed=np.array([True, False]), **form)
    assert first.tolist() == wrong
    assert second.tolist() == [1.75, 0.25, 0.25]


def test_the_reward_falls_by_one_half_over_the_last_tokens_before_the_limit() -> None:
    assert overlong_penalties(np.array([0, 80, 85, 90, 100]), 100, 20).tolist() == [0, 0, 0.125, 0.25, 0.5]


CONTINUED, TERMINATED = np.array([1.0, 1.0, 0.0, 0.0]), np.array([1.0, 0.0, 0.0, 0.0])
GROUP = PrefixGroup(CONTINUED, TERMINATED, next_values=np.array([1.0, 0.5, 0.25, 0.0]))
ALL_WRONG = PrefixGroup(np.zeros(2), np.array([1.0, 0.0]))


def test_what_going_on_brought_by_hand() -> None:
    for group, bonus, baseline, normalise, expected in (
        # outcome +-0.5, V = 0.25: 0.5 + 2 * 0.75 and -0.5 - 2 * 0.25
        (GROUP, Bonus.END_OF_TRACE, Baseline.GROUP, Normalise.NONE, [2.0, 2.0, -1.0, -1.0]),
        # progress 0.75, 0.25, 0, -0.25
        (GROUP, Bonus.NEXT_EPISODE, Baseline.GROUP, Normalise.NONE, [2.0, 1.0, -0.5, -1.0]),
        # compared with stopping, alpha has no part
        *((GROUP, bonus, Baseline.PREFIX, Normalise.NONE, [0.75, 0.75, -0.25, -0.25]) for bonus in Bonus),
        # the spread leaves the bonus as it is
        (GROUP, Bonus.END_OF_TRACE, Baseline.GROUP, Normalise.OUTCOME_GROUP_STD, [2.5, 2.5, -1.5, -1.5]),
        # the whole divided by the root of its mean square, sqrt(2.5)
        (GROUP, Bonus.END_OF_TRACE, Baseline.GROUP, Normalise.GROUP_STD, [1.26491, 1.26491, -0.632456, -0.632456]),
        # the others' means are 1/3, 1/3, 2/3, 2/3
        (GROUP, Bonus.END_OF_TRACE, Baseline.LEAVE_ONE_OUT, Normalise.NONE, [13 / 6, 13 / 6, -7 / 6, -7 / 6]),
        # what stopping would have brought is a signal where all went wrong
        (ALL_WRONG, Bonus.END_OF_TRACE, Baseline.GROUP, Normalise.NONE, [-1.0, -1.0]),
    ):
        got = continued_advantages(group, alpha=2.0, bonus=bonus, baseline=baseline, normalise=normalise)
        assert got == pytest.approx(expected, rel=1e-5)
    settings = {"bonus": Bonus.NEXT_EPISODE, "baseline": Baseline.GROUP, "normalise": Normalise.NONE}
    with pytest.raises(ValueError, match="first new episode"):
        continued_advantages(PrefixGroup(CONTINUED, TERMINATED), alpha=2.0, **settings)


def test_an_answer_is_left_out_of_its_own_baseline_and_the_choice_to_stop_compared_with_going_on() -> None:
    # the others' means are 0, 1/3, 1/3, 1/3
    assert answer_advantages(GROUP) == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])
    assert answer_advantages(PrefixGroup(GROUP.continued, np.array([1.0]))).tolist() == [0.0]
    assert stop_advantages(GROUP).tolist() == [0.5, -0.5, -0.5, -0.5]


@pytest.mark.parametrize(
    ("values", "boundary"), [([0.5, 0.5, 0.7, 0.2, 0.1], 2), ([0.5, 0.4], 0), ([0.1, 0.1, 0.6], None), ([0.3], None)]
)
def test_the_boundary_before_the_first_loss_keeps_the_last_episode_that_lost_nothing(
    values: list[float], boundary: int | None
) -> None:
    assert boundary_before_loss(np.array(values)) == boundary


def test_boundaries_are_drawn_evenly_with_an_episode_left_to_add() -> None:
    drawn = [draw_boundary(4, 7, f"p{n}", 0) for n in range(4000)]
    counts = np.bincount(drawn)
    assert len(counts) == 4 and np.abs(counts - 1000).max() < 4 * np.sqrt(4000 * 0.25 * 0.75)
    assert draw_boundary(4, 7, "p0", 0) == drawn[0]
    assert len({draw_boundary(4, 7, "p0", i) for i in range(50)}) == 4


# -- credits and baselines against exact enumeration, on trees with a choice to stop, a choice to open an episode,


Array = NDArray[np.float64]
RULE = Episodes(markers=("Wait",), min_paragraphs=1)
ON, OPEN, STOP, RIGHT, WRONG = b"a", b"\n\nWait", b"</think>", b"1", b"0"
LIMIT, BUDGET = 4, 3
"""Tokens of a thought, and the budget of its area: shorter than some thoughts, longer than others."""
STEP = 1e-5
"""Of finite differences."""


@dataclass(frozen=True)
class Trace:
    """One leaf of a tree of decisions."""

    tokens: tuple[bytes, ...]
    value_of: Callable[[tuple[bytes, ...]], float]

    @cached_property
    def boundaries(self) -> list[int]:
        ended = STOP in self.tokens
        return cut_episodes(self.tokens[: self.tokens.index(STOP)] if ended else self.tokens, RULE)

    @cached_property
    def bounds(self) -> list[int]:
        return credit_bounds(self.tokens, self.boundaries, RULE.markers, STOP)

    @cached_property
    def values(self) -> Array:
        return np.array([self.value_of(self.tokens[:boundary]) for boundary in self.boundaries])

    @property
    def reward(self) -> float:
        return float(self.tokens[-1] == RIGHT)

    def credits(self, credit: Credit, bounds: Sequence[int] | None = None) -> Array:
        traces = ([len(self.tokens)], [self.boundaries], [bounds or self.bounds], [self.values])
        return token_credits(credit, *traces, budget=BUDGET)[0]

    @property
    def area(self) -> float:
        """Under the values up to the budget, over the budget, from a fine grid of points."""
        offsets = [*self.boundaries, max(BUDGET, self.boundaries[-1])]
        points = np.linspace(0, BUDGET, 20 * BUDGET + 1)
        return float(np.trapezoid(np.interp(points, offsets, [*self.values, self.values[-1]]), points)) / BUDGET


@dataclass
class Tree:
    """A tabular policy: at each prefix of the thought it goes on, opens an episode or stops; then it answers, as often
    right as the value of the prefix says. A thought of ``LIMIT`` tokens is cut.
    """

    logits: dict[tuple[bytes, ...], Array] = field(default_factory=dict)
    values: dict[tuple[bytes, ...], float] = field(default_factory=dict)

    def actions(self, prefix: tuple[bytes, ...]) -> tuple[bytes, ...]:
        if prefix and prefix[-1] == STOP:
            return (RIGHT, WRONG)
        ended = (prefix and prefix[-1] in (RIGHT, WRONG)) or len(prefix) == LIMIT
        return () if ended else (ON, OPEN, STOP)

    def probabilities(self, prefix: tuple[bytes, ...], logits: Array | None = None) -> Array:
        if prefix[-1:] == (STOP,):
            return np.array([self.value(prefix[:-1]), 1 - self.value(prefix[:-1])])
        if logits is None:
            logits = self.logits.setdefault(prefix, random(prefix).normal(size=3))
        return np.exp(logits) / np.exp(logits).sum()

    def value(self, prefix: tuple[bytes, ...]) -> float:
        return self.values.setdefault(prefix, float(random(prefix).uniform()))

    @cached_property
    def traces(self) -> list[Trace]:
        return [*self._below(())]

    def _below(self, prefix: tuple[bytes, ...]) -> Iterator[Trace]:
        if not (actions := self.actions(prefix)):
            yield Trace(prefix, self.value)
        for action in actions:
            yield from self._below((*prefix, action))

    def factors(self, trace: Trace, at: tuple[bytes, ...] | None = None, logits: Array | None = None) -> Array:
        """[T] the probability of each action, with other logits at one prefix."""
        steps = enumerate(trace.tokens)
        return np.array(
            [
                self.probabilities(p := trace.tokens[:t], logits if p == at else None)[self.actions(p).index(action)]
                for t, action in steps
            ]
        )

    def update(self, at: tuple[bytes, ...], advantages: Callable[[Trace], Array]) -> Array:
        """[3] the expected update of the logits at one prefix."""
        total, policy = np.zeros(3), self.probabilities(at)
        for trace in self.traces:
            if trace.tokens[: len(at)] == at and len(trace.tokens) > len(at):
                chosen = np.eye(3)[self.actions(at).index(trace.tokens[len(at)])]
                total += self.factors(trace).prod() * advantages(trace)[len(at)] * (chosen - policy)
        return total

    def slope(self, at: tuple[bytes, ...], objective: Callable[[Trace, Array, Array], float]) -> Array:
        """[3] finite differences of the sum over traces of an objective of its factors, moved and unmoved."""
        slopes = []
        for n in range(3):
            ends = []
            for sign in (1, -1):
                logits = self.logits[at] + sign * STEP * np.eye(3)[n]
                ends.append(sum(objective(t, self.factors(t, at, logits), self.factors(t)) for t in self.traces))
            slopes.append((ends[0] - ends[1]) / (2 * STEP))
        return np.array(slopes)


def random(prefix: tuple[bytes, ...]) -> np.random.Generator:
    return np.random.default_rng([7, *b"".join(prefix)])


@pytest.fixture(scope="module")
def tree() -> Tree:
    tree = Tree()
    assert sum(tree.factors(t).prod() for t in tree.traces) == pytest.approx(1)
    assert {len(t.boundaries) for t in tree.traces} == {1, 2, 3, 4, 5} and len(tree.traces) == 46
    return tree


PREFIXES = [(), (ON,), (OPEN,), (ON, OPEN), (ON, OPEN, ON), (ON, ON)]


def own_progress(trace: Trace, moved: Array, still: Array) -> float:
    """The progress of each episode under the moved policy, after a prefix and before a rest of the unmoved one."""
    edges = zip(trace.bounds, trace.bounds[1:], np.diff(trace.values), strict=False)
    return sum(float(still[:a].prod() * moved[a:b].prod() * still[b:].prod() * gain) for a, b, gain in edges)


OBJECTIVES: dict[Credit, Callable[[Trace, Array, Array], float]] = {
    Credit.EPISODE: own_progress,
    Credit.TO_GO: lambda trace, moved, _: float(moved.prod() * (trace.values[-1] - trace.values[0])),
    Credit.AREA: lambda trace, moved, _: float(moved.prod() * trace.area),
    Credit.CONSTANT: lambda *_: 0.0,
}


@pytest.mark.parametrize("at", PREFIXES)
@pytest.mark.parametrize("credit", OBJECTIVES)
def test_each_credit_is_the_gradient_of_its_objective(tree: Tree, credit: Credit, at: tuple[bytes, ...]) -> None:
    update = tree.update(at, lambda trace: trace.credits(credit))
    assert update == pytest.approx(tree.slope(at, OBJECTIVES[credit]), abs=1e-8)
    assert credit is Credit.CONSTANT or np.abs(update).max() > 1e-4


def test_the_reward_less_the_value_of_the_prefix_is_the_gradient_of_the_outcome(tree: Tree) -> None:
    def advantages(trace: Trace) -> Array:
        one = ([len(trace.tokens)], [trace.bounds], [trace.values], [np.zeros(len(trace.tokens))])
        return token_advantages(np.array([trace.reward]), [0], *one, alpha=1.0, baseline=Baseline.PREFIX)[0]

    for at in PREFIXES:
        slope = tree.slope(at, lambda trace, moved, _: float(moved.prod() * trace.reward))
        assert tree.update(at, advantages) == pytest.approx(slope, abs=1e-8)


@pytest.mark.parametrize("stop", [0.2, 0.5, 0.8])
def test_going_on_for_nothing_is_not_paid(stop: float) -> None:
    """The value is .5 after one token and after two."""

    def pushed(bounds: Callable[[Trace], Sequence[int]]) -> float:
        once, twice = (Trace((*[ON] * n, STOP, RIGHT), lambda prefix: 0.5 if prefix else 0.0) for n in (1, 2))
        stopped, went_on = (t.credits(Credit.EPISODE, bounds(t))[1] for t in (once, twice))
        return float(stop * (1 - stop) * (stopped - went_on))

    assert pushed(lambda trace: trace.bounds) == 0
    without_end = {0.2: -0.08, 0.5: -0.125, 0.8: -0.08}[stop]
    assert pushed(lambda trace: trace.boundaries) == pytest.approx(without_end), "the test can notice"


def test_what_ends_an_episode_belongs_to_it() -> None:
    for pieces, wait, bounds in (
        ([b"a", b"\n\n", b"Wait", b" b", b"</think>", b"1"], ["Wait"], [0, 3, 5]),
        ([b"a", b"\n\n", b"But", b" wait", b" b", b"</", b"think", b">", b"1"], ["But wait"], [0, 4, 8]),
        ([b"a", b".\n\nWa", b"it, b", b"\n\n", b"Wait", b"c"], ["Wait"], [0, 3, 5, 6]),
        ([b"</think>", b"1"], ["Wait"], [1]),
        ([b"a", b"b"], ["Wait"], [0, 2]),
    ):
        rule = Episodes(markers=tuple(wait), min_paragraphs=1)
        whole = b"".join(pieces).partition(STOP)[0]
        ends = np.cumsum([len(p) for p in pieces])
        boundaries = cut_episodes(pieces[: int((ends <= len(whole)).sum())], rule)
        assert credit_bounds(pieces, boundaries, rule.markers, STOP) == bounds, pieces


def test_permuted_progress_has_the_same_numbers_in_another_order() -> None:
    episodes = [np.arange(3.0), np.zeros(0), np.arange(3.0, 10)]
    first, again, other = permute(episodes, 1), permute(episodes, 1), permute(episodes, 2)
    assert [len(e) for e in first] == [3, 0, 7] and sorted(np.concatenate(first)) == [*range(10)]
    assert np.concatenate(first).tolist() == np.concatenate(again).tolist() != np.concatenate(other).tolist()
    assert permute([], 1) == []


# Two modes, each of two episodes: a guess whose values are (0, .6, .6), and work whose values are (0, .1, 1).

GUESS, WORK = b"g", b"w"
MODES = {GUESS: (0.0, 0.6, 0.6), WORK: (0.0, 0.1, 1.0)}
ALPHA = 0.7
LEAVES = [(mode, right) for mode in MODES for right in (1.0, 0.0)]


def mode_trace(mode: bytes, right: float) -> Trace:
    tokens = (mode, OPEN, STOP, RIGHT if right else WRONG)
    return Trace(tokens, lambda prefix: MODES[mode][min(len(prefix), 2)])


def groups_of(n: int) -> Iterator[tuple[float, list[Trace]]]:
    """Each group of n leaves with its probability, both modes equally likely."""
    chances = {(mode, right): 0.5 * (MODES[mode][2] if right else 1 - MODES[mode][2]) for mode, right in LEAVES}
    for leaves in combinations_with_replacement(LEAVES, n):
        counts = Counter(leaves)
        ways = prod(comb(n - sum([*counts.values()][:i]), count) for i, count in enumerate(counts.values()))
        yield ways * prod(chances[leaf] for leaf in leaves), [mode_trace(*leaf) for leaf in leaves]


def reference(group: list[Trace], credit: Credit, baseline: Baseline, normalise: Normalise) -> list[Array]:
    """The advantages of one group, written out."""
    rewards, whole = [t.reward for t in group], []
    spread = (sum((r - sum(rewards) / len(rewards)) ** 2 for r in rewards) / len(rewards)) ** 0.5
    for i, trace in enumerate(group):
        others = [r for j, r in enumerate(rewards) if j != i]
        mine = []
        for t in range(len(trace.tokens)):
            episode = max((j for j in range(len(trace.bounds) - 1) if t >= trace.bounds[j]), default=0)
            after = t >= trace.bounds[-1]
            level = trace.values[-1] if after else trace.values[episode]
            base = {"group": sum(rewards) / len(rewards), "leave_one_out": sum(others) / len(others), "prefix": level}
            outcome = rewards[i] - base[baseline]
            if normalise is Normalise.OUTCOME_GROUP_STD:
                scaled = rewards[i] - (0 if baseline is Baseline.PREFIX else base[baseline])
                outcome = scaled / (spread + grpo.STD_FLOOR) - (level if baseline is Baseline.PREFIX else 0)
            mine.append(outcome + (0 if after else ALPHA * trace.credits(credit)[t]))
        whole.append(np.array(mine))
    if normalise in (Normalise.GROUP_STD, Normalise.BATCH_STD):
        scale = (sum(sum(a * a for a in mine) / len(mine) for mine in whole) / len(whole)) ** 0.5 + grpo.STD_FLOOR
        whole = [mine / scale for mine in whole]
    return whole


def learnt(group: list[Trace], credit: Credit, baseline: Baseline, normalise: Normalise, alpha: float) -> list[Array]:
    traces = zip(*((len(t.tokens), t.bounds, t.values, t.credits(credit)) for t in group), strict=True)
    rewards, ways = np.array([t.reward for t in group]), {"baseline": baseline, "normalise": normalise}
    return token_advantages(rewards, [0] * len(group), *map(list, traces), alpha=alpha, **ways)


@pytest.mark.parametrize("normalise", Normalise)
@pytest.mark.parametrize("baseline", Baseline)
def test_advantages_of_a_group_are_those_written_out(tree: Tree, baseline: Baseline, normalise: Normalise) -> None:
    groups = [group for n in (4, 8) for _, group in groups_of(n)][::7]
    groups += [[tree.traces[i] for i in np.random.default_rng(n).integers(len(tree.traces), size=8)] for n in range(9)]
    for credit in OBJECTIVES:
        for group in groups:
            wanted = reference(group, credit, baseline, normalise)
            for got, expected in zip(learnt(group, credit, baseline, normalise, ALPHA), wanted, strict=True):
                assert got == pytest.approx(expected, abs=1e-12)


def push(n: int, alpha: float, credit: Credit, baseline: Baseline, normalise: Normalise = Normalise.NONE) -> float:
    """The expected update of the first choice towards the guess, over all groups of n."""
    total = 0.0
    for chance, group in groups_of(n):
        advantages = learnt(group, credit, baseline, normalise, alpha)
        towards = [(0.5 if t.tokens[0] == GUESS else -0.5) * a[0] for t, a in zip(group, advantages, strict=True)]
        total += chance * sum(towards) / n
    return total


def flip(n: int, credit: Credit, baseline: Baseline, normalise: Normalise = Normalise.NONE) -> float:
    """The alpha above which the update goes towards the guess; it is linear in alpha."""
    at_0, at_1 = (push(n, alpha, credit, baseline, normalise) for alpha in (0.0, 1.0))
    return at_0 / (at_0 - at_1)


@pytest.mark.parametrize(("n", "group", "divided"), [(4, 0.60, 1.33), (8, 0.70, 1.69)])
def test_alpha_has_one_meaning_where_the_baseline_leaves_one_out(n: int, group: float, divided: float) -> None:
    """In an update by own progress work is preferred up to (1 - .6) / (.6 - .1) = .8."""
    assert flip(n, Credit.EPISODE, Baseline.GROUP) == pytest.approx(group, abs=5e-3)
    assert flip(n, Credit.EPISODE, Baseline.GROUP, Normalise.OUTCOME_GROUP_STD) == pytest.approx(divided, abs=5e-3)
    for baseline in (Baseline.LEAVE_ONE_OUT, Baseline.PREFIX):
        assert flip(n, Credit.EPISODE, baseline) == pytest.approx(0.8, abs=1e-12)
    assert push(n, 0, Credit.EPISODE, Baseline.GROUP) == pytest.approx(
        (n - 1) / n * push(n, 0, Credit.EPISODE, Baseline.LEAVE_ONE_OUT), abs=1e-12
    )
    assert push(n, 0, Credit.EPISODE, Baseline.LEAVE_ONE_OUT) == pytest.approx(0.25 * (0.6 - 1.0), abs=1e-12)
    assert push(n, 0, Credit.EPISODE, Baseline.PREFIX) == pytest.approx(0.25 * (0.6 - 1.0), abs=1e-12)


def test_progress_to_go_never_flips() -> None:
    """Its update is that of the outcome, times 1 + alpha."""
    for alpha in (0.5, 1.0, 100.0):
        pushed = push(4, alpha, Credit.TO_GO, Baseline.LEAVE_ONE_OUT)
        assert pushed == pytest.approx((1 + alpha) * 0.25 * (0.6 - 1.0), abs=1e-12)
