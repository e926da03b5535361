"""The segmentation rule on a page of drawn cases, on tokens, and over random text and random tokenisations."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import tables

from mrt_hpc.mrt.episodes import cut_episodes
from mrt_hpc.recipe.sections import Episodes

ONE = Episodes(markers=("Wait", "Alternatively"), min_paragraphs=1, max_episodes=6)


TABLES = tables("episodes")
PARAGRAPHS: dict[str, str] = TABLES["paragraphs"]
REFERENCE = {"min_paragraphs": 3, "max_cuts": 49, "group_size": 1, "max_episodes": 100}


@pytest.mark.parametrize(("drawn", "changes"), TABLES["drawn"])
def test_the_rule_cuts_where_it_is_drawn(drawn: str, changes: dict[str, int]) -> None:
    episodes = [e for e in drawn.split("|") if e]
    pieces = [piece for letter in "".join(episodes) for piece in (PARAGRAPHS[letter].encode(), b"\n\n")][:-1]
    boundaries = cut_episodes(pieces, Episodes(**{**REFERENCE, **changes}))
    letters = {text.encode(): letter for letter, text in PARAGRAPHS.items()}
    assert ["".join(letters.get(piece, "") for piece in pieces[a:b]) for a, b in pairwise(boundaries)] == episodes


@pytest.mark.parametrize(("pieces", "boundaries"), [
    ([b"Try", b" 3", b".", b"\n\n", b"Wait", b", 4", b"\n\n", b"Wait", b", 5"], [0, 4, 7, 9]),
    ([b"Try 3.", b"\n\nWait", b", 4"], [0, 1, 3]),  # a cut inside a token moves to the start of that token
    ([b"a\n\nWait", b", 4"], [0, 2]),  # in the first token it is none
    ([b"a"] + [b"\n\n", b"Wait"] * 9, [0, 2, 4, 6, 8, 10, 19]),  # what lies beyond the cap joins the last episode
    ([], [0]),  # an empty thought has one boundary and no episode
])  # fmt: skip
def test_boundaries_are_offsets_of_tokens(pieces: list[bytes], boundaries: list[int]) -> None:
    assert cut_episodes(pieces, ONE) == boundaries


paragraphs = st.lists(
    st.sampled_from(["Wait", "Wait, é", "Alternatively", "x", "日本", "\n", " "]) | st.text(max_size=8)
)


@given(paragraphs, st.integers(1, 4), st.integers(0, 6), st.integers(1, 3), st.integers(1, 5))
def test_episodes_concatenate_to_the_trace(parts: list[str], gap: int, cuts: int, group: int, cap: int) -> None:
    raw = "\n\n".join(parts).encode()
    pieces = [raw[i : i + 3] for i in range(0, len(raw), 3)]  # boundaries and characters do not fall together
    boundaries = cut_episodes(pieces, Episodes(min_paragraphs=gap, max_cuts=cuts, group_size=group, max_episodes=cap))
    assert (boundaries[0], boundaries[-1]) == (0, len(pieces))
    assert all(a < b for a, b in pairwise(boundaries))
    assert len(boundaries) - 1 <= cap
    assert b"".join(b"".join(pieces[a:b]) for a, b in pairwise(boundaries)) == raw
