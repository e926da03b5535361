"""The reference segmentation rule on a page of cases.

A case is drawn: ``p`` is a paragraph, a capital letter one that begins with a marker, ``|`` a cut that the rule makes.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from mrt_hpc.mrt.episodes import cut_episodes
from mrt_hpc.recipe.sections import Episodes

PARAGRAPHS = {
    "p": "So 3 and 4 make 7, wait for it.",
    "l": "wait, in small letters.",
    "q": "Hm. Wait, not at the start.",
    "i": "  Wait, behind blanks.",
    "W": "Wait, 3 and 5 make 8.",
    "B": "But wait, that is too much.",
    "A": "Alternatively, count down.",
    "T": "Is there another way to see it?",
    "C": "But let me double-check.",
    "H": "But hold on, is it 4?",
}
REFERENCE = {"min_paragraphs": 3, "max_cuts": 49, "group_size": 1, "max_episodes": 100}
CASES = [
    # no cut
    ("p", {}),
    ("pppppp", {}),
    ("W", {}),
    ("Wpp", {}),
    ("pWp", {}),
    ("ppW", {}),  # three paragraphs are asked for, two are there
    # the first cut comes three paragraphs after the beginning, at any of the markers
    ("ppp|W", {}),
    ("ppp|B", {}),
    ("ppp|A", {}),
    ("ppp|T", {}),
    ("ppp|C", {}),
    ("ppp|H", {}),
    ("ppp|Wpp", {}),
    ("pppp|A", {}),
    # what looks like a marker and is none
    ("pppl", {}),
    ("pppq", {}),
    ("pppi", {}),  # blanks before a paragraph belong to it
    # the next one three paragraphs after the last
    ("ppp|WWW|W", {}),
    ("ppp|Wpp|W", {}),
    ("ppp|WpW|A", {}),
    ("ppp|WpWp|A", {}),
    ("WWW|WWW|WWW|W", {}),
    ("pWp|Wpp|Hpp|C", {}),
    # other distances
    ("p|W|W|W", {"min_paragraphs": 1}),
    ("pW|Wp|A", {"min_paragraphs": 2}),
    ("pppWp|Wpppp|H", {"min_paragraphs": 5}),
    # at most so many cuts
    ("p|W|WWWW", {"min_paragraphs": 1, "max_cuts": 2}),
    ("ppp|WppWppWpp", {"max_cuts": 1}),
    ("pppWpp", {"max_cuts": 0}),
    # every group of steps is one episode, counted from the beginning
    ("pW|WW|WW", {"min_paragraphs": 1, "group_size": 2}),
    ("pWW|WWW|W", {"min_paragraphs": 1, "group_size": 3}),
    ("pWW", {"min_paragraphs": 1, "group_size": 3}),
    ("pppWpp|WppWpp|W", {"group_size": 2}),
    ("pW|WWWW", {"min_paragraphs": 1, "group_size": 2, "max_cuts": 3}),  # steps are cut first, then merged
    # what lies beyond the cap joins the last episode
    ("p|W|WWWW", {"min_paragraphs": 1, "max_episodes": 3}),
    ("pWWW", {"min_paragraphs": 1, "max_episodes": 1}),
    ("pW|WWWW", {"min_paragraphs": 1, "group_size": 2, "max_episodes": 2}),
]


@pytest.mark.parametrize(("drawn", "changes"), CASES)
def test_the_rule_cuts_where_it_is_drawn(drawn: str, changes: dict[str, int]) -> None:
    episodes = [e for e in drawn.split("|") if e]
    pieces = [piece for letter in "".join(episodes) for piece in (PARAGRAPHS[letter].encode(), b"\n\n")][:-1]
    boundaries = cut_episodes(pieces, Episodes(**{**REFERENCE, **changes}))
    found = ["".join(letters_of(pieces[a:b])) for a, b in pairwise(boundaries)]
    assert found == episodes


def letters_of(pieces: list[bytes]) -> list[str]:
    """Which paragraphs these are."""
    names = {text.encode(): letter for letter, text in PARAGRAPHS.items()}
    return [names[piece] for piece in pieces if piece in names]
