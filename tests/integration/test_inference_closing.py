r"""Where a boxed answer ends, in the tokens of a real tokenizer and of one that merges braces with their neighbours."""

from __future__ import annotations

import math

import pytest

from mrt_hpc.domains.small_world.model import build_tokenizer
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.provers.box_tokens import Closing, box_end
from mrt_hpc.provers.scoring import Count, _looks

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


@pytest.mark.parametrize(
    ("token_ids", "known"),
    [
        ([ONE, TWO, CLOSE], True),
        ([ONE, TWO, CLOSE_DOT], True),
        ([ONE, TWO_CLOSE], True),
        ([ONE_TWO_CLOSE], True),
        ([ONE, TWO], False),
        ([ONE, ONE, CLOSE], False),
        ([ONE, TWO, TWO_CLOSE], False),
        ([], False),
    ],
)
def test_a_branch_is_known_by_exactly_its_tokens(token_ids: list[int], known: bool) -> None:
    count = written(Count(Closing(Merging()).writing("12", [ONE, TWO]), 5), 0.0)
    assert count.holds(token_ids) is known


def test_the_probability_of_an_answer_sums_its_ways() -> None:
    count = Count(Closing(Merging()).writing("12", [ONE, TWO]), 5)
    assert count.own == [(), (ONE,), (ONE, TWO)]
    # 1/2 at once, 1/4 after one token, three ways of 1/8 after both
    assert written(count, math.log(0.5)).probability == pytest.approx(0.5 + 0.25 + 3 / 8)
    assert count.missing == 0.0


def test_a_way_longer_than_a_branch_is_not_counted() -> None:
    count = written(Count(Closing(Merging()).writing("12", [ONE, TWO]), 2), math.log(0.5))
    assert count.probability == pytest.approx(0.5 + 0.25)
    assert not count.holds([ONE, TWO, CLOSE])


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
