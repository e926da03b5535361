r"""Where a boxed answer ends, in the tokens of a real tokenizer and of one that merges braces with their neighbours."""

from __future__ import annotations

import math

import pytest

from mrt_hpc.inference.closing import Closing, Writing, box_end
from mrt_hpc.inference.scoring import _looks, probability
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.world.tokenizer import build_tokenizer

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


def test_every_way_of_closing_after_every_beginning_is_counted() -> None:
    writing = Closing(Merging()).writing("12", [ONE, TWO])
    assert writing == Writing("12", (ONE, TWO), ((ONE_TWO_CLOSE,), (TWO_CLOSE,), (CLOSE, CLOSE_DOT, 7)))
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
    assert Closing(Merging()).writing("12", [ONE, TWO]).is_written_by(token_ids) is known


def test_the_probability_of_an_answer_sums_its_ways() -> None:
    writing = Closing(Merging()).writing("12", [ONE, TWO])
    looks = _looks([writing])
    assert looks == {
        (): [ONE, ONE_TWO_CLOSE],
        (ONE,): [TWO, TWO_CLOSE],
        (ONE, TWO): [CLOSE, CLOSE_DOT, 7],
    }
    half = math.log(0.5)
    logprobs = {prefix: dict.fromkeys(ids, half) for prefix, ids in looks.items()}
    # 1/2 at once, 1/4 after one token, three ways of 1/8 after both
    assert probability(writing, logprobs) == pytest.approx(0.5 + 0.25 + 3 / 8)


def test_answers_share_the_looks_at_their_common_beginnings() -> None:
    closing = Closing(Merging())
    looks = _looks([closing.writing("1", [ONE]), closing.writing("12", [ONE, TWO])])
    assert set(looks) == {(), (ONE,), (ONE, TWO)}
    assert looks[ONE,] == [TWO, CLOSE, CLOSE_DOT, TWO_CLOSE, 7]


def test_a_real_tokenizer_has_one_brace_of_its_own() -> None:
    closing = Closing(TokenBytes(TOKENIZER))
    writing = closing.writing("12", TOKENIZER.encode("12"))
    (brace,) = TOKENIZER.encode("}")
    assert writing.closings[-1] == (brace,)
    assert writing.is_written_by(TOKENIZER.encode("12}"))
    assert closing.is_closed(TOKENIZER.encode("12}"))
    assert not closing.is_closed(TOKENIZER.encode("{12}"))
