"""Seeds: every random choice of a run follows from the run's one seed and the name of what is drawn."""

import hashlib

SEED_BITS = 31
"""Fits a signed 32-bit integer, which all samplers and generators take."""


def derive_seed(run_seed: int, *parts: int | str) -> int:
    """The seed of one draw, e.g. ``derive_seed(seed, "rollout", iteration, problem_id, sample)``.

    Different parts give independent seeds; equal parts the same on every machine and Python.
    """
    text = "\x1f".join([str(run_seed), *(f"{type(part).__name__}:{part}" for part in parts)])
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big") & ((1 << SEED_BITS) - 1)
