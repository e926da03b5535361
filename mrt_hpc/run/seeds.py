"""Seeds: every random choice of a run follows from the run's one seed and the name of what is drawn."""

import hashlib

SEED_BITS = 31
"""Seeds fit a signed 32-bit integer, which every sampler and generator of the stack takes."""


def derive_seed(run_seed: int, *parts: int | str) -> int:
    """The seed of one draw, e.g. ``derive_seed(seed, "rollout", iteration, problem_id, sample)``.

    Two different lists of parts give independent seeds; the same list gives the same seed on every machine and Python
    version.
    """
    text = "\x1f".join([str(run_seed), *(f"{type(part).__name__}:{part}" for part in parts)])
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big") & ((1 << SEED_BITS) - 1)
