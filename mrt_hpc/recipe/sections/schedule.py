"""How many iterations, and how they are cut into jobs."""

from __future__ import annotations

from enum import StrEnum

from mrt_hpc.recipe.base import Count, NotNegative, Section, Tokens


class Coupling(StrEnum):
    """How inference and trainer of a segment are queued."""

    CONCURRENT = "concurrent"
    """Both jobs start together; the trainer updates while inference samples."""
    SEQUENTIAL = "sequential"
    """The trainer starts when inference has ended: small jobs for queues where only short jobs start."""
    COLOCATED = "colocated"
    """Both are one job, and take turns on the same GPUs: for those who have one to four GPUs. Trainer and server leave
    the memory of the GPUs to each other: each waits in the memory of the node while the other computes.
    """


class WeightSwap(StrEnum):
    """What happens to traces that are being sampled when an inference task takes over a newer weights version."""

    DRAIN = "drain"
    """All running traces end first, with the old weights: the longest of them holds up all others."""
    KEEP = "keep"
    """Running traces are paused while the weights are loaded, and continue with the new ones. They keep the keys and
    values of their tokens, which the old weights have computed.
    """
    RECOMPUTE = "recompute"
    """As ``keep``, but the new weights compute the keys and values of all tokens of a running trace again."""


class LengthStage(Section):
    """One step of a length curriculum."""

    first_iteration: NotNegative
    """The first iteration of this stage."""
    max_tokens: Tokens
    """The maximum number of tokens of a trace in this stage."""


class Schedule(Section):
    """How many iterations, and how they are cut into jobs."""

    iterations: Count
    """The number of iterations, N: of updates, and of weights versions after version 0."""
    iterations_per_job: Count
    """The number of iterations of a segment, that is of one pair of jobs, or of one colocated job."""
    coupling: Coupling = Coupling.CONCURRENT
    """Whether a segment's two jobs run together or one after the other, or are one job whose trainer and server take
    turns on its GPUs.
    """
    max_staleness: NotNegative = 0
    """The number of weights versions that the sampling policy may lag behind the trained one; 0 is strictly on-policy.
    """
    weight_swap: WeightSwap = WeightSwap.DRAIN
    """How inference takes over newer weights. With ``keep`` and ``recompute`` the server is never drained: the groups
    of the next iteration begin while the last traces of this one are sampled, as far as max_staleness allows, and one
    trace may be sampled by several weights versions. Staleness counts from the oldest of them.
    """
    length_curriculum: tuple[LengthStage, ...] = ()
    """Shorter limits than sampling.max_tokens for the first iterations, in ascending order; empty keeps one limit
    throughout.
    """

    def max_tokens(self, iteration: int, limit: int) -> int:
        """The limit of an iteration.

        Args:
            iteration: which.
            limit: ``sampling.max_tokens``, which holds where no stage does.
        """
        reached = [stage.max_tokens for stage in self.length_curriculum if stage.first_iteration <= iteration]
        return reached[-1] if reached else limit
