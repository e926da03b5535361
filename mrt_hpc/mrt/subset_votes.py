"""The success of a vote of p answers, exactly, from G answers of which every p are equally likely to be the voters.

The paper's scaling curves show [maj@p]_j for several p from the same G branches. Drawing subsets would add noise; this
module counts them instead. Right answers vote together, since all of them equal the gold answer; wrong answers vote
together where their texts agree; a branch without an answer votes for nothing. Answers that tie for the most votes
share the win equally.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from math import comb
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

RIGHT = 1.0
"""The reward of a right answer."""


@dataclass(frozen=True)
class Ballot:
    """G answers, counted."""

    right: int
    """The number of right answers."""
    wrong: tuple[int, ...]
    """The number of times that each different wrong answer was given, ascending."""
    blank: int
    """The number of texts without an answer."""

    @property
    def size(self) -> int:
        """G."""
        return self.right + sum(self.wrong) + self.blank


def ballot_of(answers: Iterable[tuple[str | None, float]]) -> Ballot:
    """Count answers.

    Args:
        answers: each with its reward.

    Source: paper, Section 5 (maj@p at a prefix); its votes compare texts.
    """
    given = list(answers)
    wrong = Counter(answer for answer, reward in given if answer is not None and reward < RIGHT)
    blank = sum(answer is None for answer, _ in given)
    return Ballot(len(given) - blank - wrong.total(), tuple(sorted(wrong.values())), blank)


@lru_cache(maxsize=1 << 16)
def expected_majority(ballot: Ballot, size: int) -> float:
    """Return the expected reward of the vote of ``size`` answers drawn from a ballot without replacement.

    The subsets are counted by r, the votes for the right answer: the other answers then have at most r votes each, and
    t of them have exactly r and share the win.

    Args:
        ballot: G answers.
        size: p, the number of voters.

    Raises:
        ValueError: p is not from 1 to G.

    Source: paper, Section 5 (maj@p by subsampling of the branches).
    """
    if not 1 <= size <= ballot.size:
        raise ValueError(f"{size} voters cannot be drawn from {ballot.size} answers")
    won = 0.0
    for votes in range(1, min(ballot.right, size) + 1):
        ways = _ways_of_the_others(ballot, votes, size - votes)
        won += comb(ballot.right, votes) * float(ways @ (1.0 / np.arange(1, len(ways) + 1)))
    return won / comb(ballot.size, size)


def _ways_of_the_others(ballot: Ballot, most: int, size: int) -> NDArray[np.float64]:
    """[1 + wrong answers] the number of ways to draw ``size`` blank and wrong answers with at most ``most`` votes for
    each wrong one, by how many of these have exactly ``most``.
    """
    ways = np.zeros((size + 1, len(ballot.wrong) + 1))
    ways[:, 0] = [comb(ballot.blank, drawn) for drawn in range(size + 1)]
    for count in ballot.wrong:
        ways = _with_answer(ways, count, most)
    return np.asarray(ways[size])


def _with_answer(ways: NDArray[np.float64], count: int, most: int) -> NDArray[np.float64]:
    """The ways by size and ties when an answer that was given ``count`` times may get up to ``most`` votes."""
    size = len(ways) - 1
    found = ways.copy()
    for votes in range(1, min(count, most, size) + 1):
        tie = int(votes == most)
        found[votes:, tie:] += comb(count, votes) * ways[: size + 1 - votes, : ways.shape[1] - tie]
    return found
