"""Finds near duplicates among many texts: all pairs whose 5-grams of words overlap enough, without comparing each pair.

Two sets whose Jaccard similarity is at least t share an element among their first ``n - ceil(t n) + 1`` ones, if both
are sorted by one order. Sorted by rarity these first elements are seldom in other texts, so few pairs are compared, and
none is missed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

GRAM_WORDS = 5
"""The number of consecutive words that make one element."""
LEAST_OVERLAP = 0.8
"""The Jaccard similarity from which two texts are told as similar."""
_ROUNDING = 1e-9


@dataclass(frozen=True)
class SimilarPair:
    """Two texts, by index, and the Jaccard similarity of their 5-grams."""

    first: int
    second: int
    overlap: float


def similar_pairs(texts: Sequence[tuple[str, ...]], least: float = LEAST_OVERLAP) -> list[SimilarPair]:
    """All pairs of texts whose overlap is at least ``least``, in order of their indices.

    Args:
        texts: the words of each text. Texts of fewer than five words have no overlap with others.
        least: the smallest overlap, above 0.
    """
    grams = _ranked([_grams(text) for text in texts])
    order = sorted((index for index in range(len(grams)) if len(grams[index])), key=lambda i: (len(grams[i]), i))
    postings: dict[int, list[int]] = defaultdict(list)
    found = []
    for index in order:
        prefix = _prefix(grams[index], least)
        candidates = {other for gram in prefix for other in postings[gram]}
        found += list(_verified(index, candidates, grams, least))
        for gram in prefix:
            postings[gram].append(index)
    return sorted(found, key=lambda pair: (pair.first, pair.second))


def _grams(text: tuple[str, ...]) -> np.ndarray:
    """The distinct 5-grams of a text as 64-bit hashes."""
    count = max(len(text) - GRAM_WORDS + 1, 0)
    hashes = [hash(text[start : start + GRAM_WORDS]) for start in range(count)]
    return np.unique(np.array(hashes, dtype=np.int64))


def _ranked(grams: list[np.ndarray]) -> list[np.ndarray]:
    """Each text's grams as their ranks among all grams, the rarest first, sorted."""
    if not grams:
        return []
    _, inverse, counts = np.unique(np.concatenate(grams), return_inverse=True, return_counts=True)
    rank = np.empty(len(counts), dtype=np.int64)
    rank[np.argsort(counts, kind="stable")] = np.arange(len(counts))
    ends = np.cumsum([len(part) for part in grams])[:-1]
    return [np.sort(part) for part in np.split(rank[inverse], ends)]


def _prefix(ranks: np.ndarray, least: float) -> list[int]:
    shared = math.ceil(least * len(ranks) - _ROUNDING)
    return [int(rank) for rank in ranks[: len(ranks) - shared + 1]]


def _verified(index: int, candidates: set[int], grams: list[np.ndarray], least: float) -> Iterator[SimilarPair]:
    """The candidates that overlap enough; each is as long as the text or shorter."""
    size = len(grams[index])
    for other in candidates:
        if len(grams[other]) >= least * size - _ROUNDING:
            common = len(np.intersect1d(grams[index], grams[other], assume_unique=True))
            overlap = common / (size + len(grams[other]) - common)
            if overlap >= least - _ROUNDING:
                yield SimilarPair(min(index, other), max(index, other), overlap)
