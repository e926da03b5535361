"""The exact chance that a vote of k answers is right, from n answers of which every k are equally likely to vote: maj@k
of complete samples, and [maj@p]_j of answers forced at a prefix.

Right answers are one class, since all equal a gold answer. Wrong answers are classed by their text after a cleanup, or
as the caller says. A text without an answer has no vote. Classes with the same number of votes share the win.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb, exp, log, log1p
from typing import Self

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.mrt.rewards import is_right
from mrt_hpc.mrt.values import Vote, majority

FloatArray = NDArray[np.float64]

RULE = "votes: right answers are one class, wrong ones are classed by their text after a cleanup"
"""The classes of a vote in words."""

Representative = Callable[[str], str]
"""Gives for a wrong answer the answer that stands for its class."""

_NOISE = re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\[,;!: ]|[$~\s]")
_FRACTION = re.compile(r"\\[dt]frac(?![a-zA-Z])")


def cleaned_answer(answer: str) -> str:
    """An answer without white space, dollar signs, spacing commands, a final point, ``\\left`` and ``\\right``;
    ``\\dfrac`` and ``\\tfrac`` become ``\\frac``. Capital letters stay.

    Source: the project's own rule; the paper's votes compare texts.
    """
    return _FRACTION.sub(r"\\frac", _NOISE.sub("", answer)).rstrip(".")


@dataclass(frozen=True)
class AnswerCounts:
    right: int
    wrong: tuple[int, ...] = ()
    """By class, the most frequent first."""
    none: int = 0
    """Texts without an answer."""

    @property
    def total(self) -> int:
        """n."""
        return self.right + sum(self.wrong) + self.none

    @classmethod
    def of(cls, answers: Iterable[tuple[str | None, float]], representative: Representative = cleaned_answer) -> Self:
        """``answers`` to one problem, each with its reward."""
        right, none, wrong = 0, 0, Counter[str]()
        for answer, reward in answers:
            if is_right(reward):
                right += 1
            elif answer is None:
                none += 1
            else:
                wrong[representative(answer)] += 1
        return cls(right, tuple(sorted(wrong.values(), reverse=True)), none)


@lru_cache(maxsize=1 << 16)
def majority_at_k(counts: AnswerCounts, k: int) -> float:
    """The chance that the right answer wins the vote of k of the n answers, drawn without replacement; unbiased for k
    new answers.

    The number of drawn answers of each class is taken as binomial with the same chance, given that all of them together
    are k: that is the law of a draw without replacement, whatever the chance is, in numbers that cannot overflow. The
    sum goes over the votes v for the right answer, and over the number t of wrong classes with as many votes, each of
    which leaves the right answer a share of 1 / (1 + t).

    Raises:
        ValueError: k exceeds n, or is below 1.

    Source: paper, Section 5 (maj@k, and maj@p at a prefix by subsampling of the branches).
    """
    if not 1 <= k <= counts.total:
        raise ValueError(f"maj@{k} cannot be estimated from {counts.total} answers")
    chance = (k + 0.5) / (counts.total + 1)  # near k / n, where all k drawn are most likely, and below 1
    right, none, every = (_chances(size, k, chance) for size in (counts.right, counts.none, counts.total))
    classes = [_chances(size, min(size, k), chance) for size in counts.wrong]
    wins = sum(right[v] * _share(classes, none, v, k) for v in range(1, min(counts.right, k) + 1))
    return float(min(1.0, wins / every[k]))


MOST_DRAWS = 1000
"""Of k of the n answers in a weighted vote."""


def weighted_majority_at_k(votes: Sequence[Vote], k: int) -> float:
    """The chance that the right answer wins the weighted vote of k of the n answers, drawn without replacement.

    It is the mean over all draws, where :func:`mrt_hpc.mrt.values.majority` decides each: ties count one half.

    Args:
        votes: [n] right answers share one text.
        k: the voters.

    Raises:
        ValueError: k exceeds n or is below 1, or there are more than ``MOST_DRAWS`` draws.

    Source: paper, Section 5, and the authors' code (episode_scaling_curve.ipynb), which draws at random.
    """
    if not 1 <= k <= len(votes) or comb(len(votes), k) > MOST_DRAWS:
        raise ValueError(f"the weighted vote of {k} of {len(votes)} answers is none of at most {MOST_DRAWS:,} draws")
    return float(np.mean([majority(drawn).value for drawn in combinations(votes, k)]))


def _chances(size: int, most: int, chance: float) -> FloatArray:
    """[most + 1] the binomial chance that 0, 1 .. of ``size`` answers are drawn."""
    chances = np.zeros(most + 1)
    for drawn in range(min(size, most) + 1):
        chances[drawn] = exp(log(comb(size, drawn)) + drawn * log(chance) + (size - drawn) * log1p(-chance))
    return chances


def _share(classes: Sequence[FloatArray], none: FloatArray, votes: int, k: int) -> float:
    """The expected share of the right answer with v ``votes``, over all draws of the other k - v answers. ``classes``:
    of each wrong class the chance of 0, 1 .. drawn answers; ``none``: [k + 1] the same of texts without an answer.
    """
    others = k - votes
    table = np.zeros((others + 1, others // votes + 1))  # [drawn answers of wrong classes, tied classes]
    table[0, 0] = 1.0
    for chances in classes:
        table = _add_class(table, chances, votes)
    shares = 1.0 / (1.0 + np.arange(table.shape[1]))
    return float(none[others::-1] @ table @ shares)


def _add_class(table: FloatArray, chances: FloatArray, votes: int) -> FloatArray:
    """The table with one more wrong class, which may have at most ``votes`` drawn answers."""
    rows, columns = table.shape
    added = np.zeros_like(table)
    for drawn in range(min(len(chances), votes + 1, rows)):
        tied = int(drawn == votes)
        added[drawn:, tied:] += chances[drawn] * table[: rows - drawn, : columns - tied]
    return added
