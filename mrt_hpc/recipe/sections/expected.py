"""What the estimate of ``mrt-hpc plan`` assumes."""

from __future__ import annotations

from mrt_hpc.recipe.base import Section, Tokens


class Expected(Section):
    """What the estimate of ``mrt-hpc plan`` assumes. These fields never change a run's result."""

    trace_tokens: Tokens | None = None
    """The mean number of tokens of a trace; null takes half of the token limit."""
    branch_tokens: Tokens | None = None
    """The mean number of tokens of a prover's branch; null takes 64 for an answer, and half of the limit for a
    continuation.
    """
