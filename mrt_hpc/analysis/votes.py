"""maj@k: the chance that a vote of k samples is right, estimated from n samples of a problem.

Right answers are one class. Wrong answers are classed by their text after a cleanup, or by what the caller gives. A
sample without an answer has no vote. Classes with the same number of votes share the outcome equally.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import binom

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

Representative = Callable[[str], str]
"""Gives for a wrong answer the answer that stands for its class."""

_NOISE = re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\[,;!: ]|[$~\s]")
_FRACTION = re.compile(r"\\[dt]frac(?![a-zA-Z])")


def cleaned_answer(answer: str) -> str:
    """The text of an answer without white space, dollar signs, spacing commands, a final point, and the commands
    ``\\left`` and ``\\right``; ``\\dfrac`` and ``\\tfrac`` become ``\\frac``. Capital letters stay.
    """
    return _FRACTION.sub(r"\\frac", _NOISE.sub("", answer)).rstrip(".")


@dataclass(frozen=True)
class AnswerCounts:
    """The number of samples of one problem, by what they answer."""

    right: int
    wrong: tuple[int, ...] = ()
    """By class, most frequent first."""
    silent: int = 0
    """The samples without an answer."""

    @property
    def samples(self) -> int:
        """n."""
        return self.right + sum(self.wrong) + self.silent

    @classmethod
    def of(
        cls, samples: Iterable[tuple[float, str | None]], representative: Representative = cleaned_answer
    ) -> AnswerCounts:
        """Count the samples of one problem.

        Args:
            samples: the reward and the answer of each; a sample is right when its reward is 1.
            representative: of a wrong answer.
        """
        right, silent, wrong = 0, 0, Counter[str]()
        for reward, answer in samples:
            if reward >= 1.0:
                right += 1
            elif answer is None:
                silent += 1
            else:
                wrong[representative(answer)] += 1
        return cls(right, tuple(sorted(wrong.values(), reverse=True)), silent)


def majority_at_k(counts: AnswerCounts, k: int) -> float:
    """Return the chance that the right answer wins the vote of k of the n samples, drawn without replacement.

    This is exact. The number of drawn samples of each class is taken as binomial with the same chance k / n, given that
    all of them together are k: that is the law of a draw without replacement, in numbers that cannot overflow. The sum
    goes over the votes v for the right answer, and over the number t of wrong classes with as many votes, each of which
    leaves the right answer a share of 1 / (1 + t).

    Args:
        counts: of the n samples.
        k: the voters.

    Returns:
        In [0, 1]; unbiased for the chance that k new samples would give.

    Raises:
        ValueError: k exceeds n, or is below 1.
    """
    if not 1 <= k <= counts.samples:
        raise ValueError(f"maj@{k} cannot be estimated from {counts.samples} samples")
    drawn = k / counts.samples
    right = binom.pmf(np.arange(k + 1), counts.right, drawn)
    silent = binom.pmf(np.arange(k + 1), counts.silent, drawn)
    classes = [binom.pmf(np.arange(min(size, k) + 1), size, drawn) for size in counts.wrong]
    wins = sum(right[v] * _share(classes, silent, v, k) for v in range(1, min(counts.right, k) + 1))
    return float(min(1.0, wins / binom.pmf(k, counts.samples, drawn)))


def _share(classes: list[FloatArray], silent: FloatArray, votes: int, k: int) -> float:
    """The expected share of the right answer with so many votes, over all draws of the other ``k - votes`` samples.

    Args:
        classes: of each wrong class the chance of 0, 1 .. drawn samples.
        silent: [k + 1] the same of the samples without an answer.
        votes: v.
        k: the voters.
    """
    others = k - votes
    table = np.zeros((others + 1, others // votes + 1))  # [drawn samples of wrong classes, tied classes]
    table[0, 0] = 1.0
    for chances in classes:
        table = _with_class(table, chances, votes)
    shares = 1.0 / (1.0 + np.arange(table.shape[1]))
    return float(silent[others::-1] @ table @ shares)


def _with_class(table: FloatArray, chances: FloatArray, votes: int) -> FloatArray:
    """The table with one more wrong class, which may have at most ``votes`` drawn samples."""
    rows, columns = table.shape
    added = np.zeros_like(table)
    for drawn in range(min(len(chances), votes + 1, rows)):
        tied = int(drawn == votes)
        added[drawn:, tied:] += chances[drawn] * table[: rows - drawn, : columns - tied]
    return added
