"""The segmentation rule: worked cases, and properties over random text and random tokenisations."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrt_hpc.mrt.episodes import cut_episodes, episode_starts, merge_steps, paragraph_starts
from mrt_hpc.recipe.sections import Episodes

ONE = Episodes(markers=("Wait", "Alternatively"), min_paragraphs=1, max_episodes=6)


def words(text: str) -> list[bytes]:
    """Tokens of up to three bytes, so that boundaries and characters do not fall together."""
    raw = text.encode()
    return [raw[i : i + 3] for i in range(0, len(raw), 3)]


@pytest.mark.parametrize(
    "text",
    ["a\n\nb", "a\n\n\nWait", "a\n\n\n\nWait", "a\n\n\n\n\nb\nc\n\nd", "a\n\n  Wait", "\n\na", "a"],
)
def test_paragraphs_are_those_of_a_split_at_two_newlines(text: str) -> None:
    ends = [0, *paragraph_starts(text.encode())]
    found = [text[a:b].removesuffix("\n\n") for a, b in pairwise([*ends, len(text)])]
    assert found == text.split("\n\n")


def test_an_empty_paragraph_counts_but_one_at_the_end_of_the_text_is_none() -> None:
    rule = Episodes(min_paragraphs=3)
    assert episode_starts(b"a\n\n\n\nb\n\nWait", rule) == [8]
    assert paragraph_starts(b"a\n\nb\n\n") == [3]


@pytest.mark.parametrize("between", ["\n\n\n", "\n \n", "\n\n "])
def test_a_marker_behind_a_newline_or_spaces_is_not_at_the_start_of_its_paragraph(between: str) -> None:
    assert episode_starts(f"a{between}Wait".encode(), ONE) == []


def test_a_marker_opens_an_episode_only_at_the_start_of_a_paragraph() -> None:
    assert episode_starts(b"Try 3.\n\nWait, try 4. Wait.\n\nAnd so on.\n\nWait, 5.", ONE) == [8, 40]


def test_min_paragraphs_counts_from_the_last_boundary() -> None:
    text = b"p0\n\nWait 1\n\nWait 2\n\nWait 3\n\nWait 4\n\nWait 5\n\nWait 6"
    starts = episode_starts(text, Episodes(min_paragraphs=3))
    assert [text[s : s + 6] for s in starts] == [b"Wait 3", b"Wait 6"]


def test_max_cuts_bounds_the_cuts() -> None:
    text = b"a" + b"\n\nWait" * 9
    assert len(episode_starts(text, Episodes(min_paragraphs=1, max_cuts=4))) == 4


def test_steps_merge_in_groups_counted_from_the_start() -> None:
    # steps start at 0, 10, 20, 30, 40, 50; groups of three: 0-20 and 30-50
    assert merge_steps([10, 20, 30, 40, 50], 3) == [30]
    assert merge_steps([10, 20], 1) == [10, 20]


def test_boundaries_are_token_offsets() -> None:
    pieces = [b"Try", b" 3", b".", b"\n\n", b"Wait", b", 4", b"\n\n", b"Wait", b", 5"]
    assert cut_episodes(pieces, ONE) == [0, 4, 7, 9]


def test_a_cut_inside_a_token_moves_to_the_start_of_that_token() -> None:
    assert cut_episodes([b"Try 3.", b"\n\nWait", b", 4"], ONE) == [0, 1, 3]


def test_a_cut_in_the_first_token_is_no_cut() -> None:
    assert cut_episodes([b"a\n\nWait", b", 4"], ONE) == [0, 2]


def test_what_lies_beyond_the_cap_joins_the_last_episode() -> None:
    pieces = [b"a"] + [b"\n\n", b"Wait"] * 9
    boundaries = cut_episodes(pieces, ONE)
    assert boundaries == [0, 2, 4, 6, 8, 10, 19]


def test_an_empty_thought_has_one_boundary_and_no_episode() -> None:
    assert cut_episodes([], ONE) == [0]


paragraphs = st.lists(
    st.sampled_from(["Wait", "Wait, é", "Alternatively", "x", "日本", "\n", " "]) | st.text(max_size=8)
)


@given(paragraphs, st.integers(1, 4), st.integers(0, 6), st.integers(1, 3), st.integers(1, 5))
def test_episodes_concatenate_to_the_trace_for_any_text_and_rule(
    parts: list[str], gap: int, cuts: int, group: int, cap: int
) -> None:
    pieces = words("\n\n".join(parts))
    rule = Episodes(min_paragraphs=gap, max_cuts=cuts, group_size=group, max_episodes=cap)
    boundaries = cut_episodes(pieces, rule)
    assert boundaries[0] == 0
    assert boundaries[-1] == len(pieces)
    assert all(a < b for a, b in pairwise(boundaries))
    assert len(boundaries) - 1 <= cap
    episodes = [b"".join(pieces[a:b]) for a, b in pairwise(boundaries)]
    assert b"".join(episodes) == "\n\n".join(parts).encode()
