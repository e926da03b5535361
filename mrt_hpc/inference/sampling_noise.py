"""The random numbers of samples without a generator for each: one draw for the whole batch, keyed by seed and place.

vLLM's kernel for CPUs takes one key for each sequence, and hashes key and token id to the Gumbel noise of each token.
vLLM itself draws the key of a step from a generator that every request owns, one after the other in Python, which
costs 1.5 ms of CPU time a step of 256 sequences. Here the key is a hash of the request's seed and the number of tokens
that it has generated: one operation for the whole batch. The key is the same whatever else is in the batch, however
long the prompt is, and after vLLM has removed the request from the batch and computed it again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)
_FIRST_SHIFT, _SECOND_SHIFT, _LAST_SHIFT = np.uint64(30), np.uint64(27), np.uint64(31)


def step_keys(seeds: Words, positions: NDArray[np.integer]) -> Words:
    """The keys of one step: number ``position`` of the SplitMix64 sequence that begins at the hash of the seed.

    The seed is hashed first, because seeds that follow one another would share parts of their sequences.

    Args:
        seeds: of each sequence, shape (sequences,).
        positions: the number of tokens that each has generated, shape (sequences,).

    Returns:
        One key for each sequence, shape (sequences,).
    """
    counted = positions.astype(np.uint64) + np.uint64(1)
    return _mixed(_mixed(seeds + _STEP) + counted * _STEP)


def _mixed(words: Words) -> Words:
    """SplitMix64's function from 64 bits to 64 bits; it is invertible, so that different words stay different."""
    words = (words ^ (words >> _FIRST_SHIFT)) * _FIRST_FACTOR
    words = (words ^ (words >> _SECOND_SHIFT)) * _SECOND_FACTOR
    return words ^ (words >> _LAST_SHIFT)
