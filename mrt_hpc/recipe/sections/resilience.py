"""What the run does when tasks are lost, wait or fail."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mrt_hpc.recipe.base import Count, Minutes, NotNegative, Seconds, Section


class Resilience(Section):
    """What the run does when tasks are lost, wait or fail. These fields never change a run's result."""

    retries: NotNegative = 3
    """The number of consecutive failures without progress after which a task is not retried and the run stops.
    Preemptions do not count.
    """
    heartbeat_limit_s: Seconds = 60.0
    """The number of seconds without a heartbeat after which a task counts as lost and other tasks take over its work.
    """
    wait_limit_minutes: Minutes = 10.0
    """The number of minutes that a role waits for another role that does not run, before it returns its nodes."""
    stall_limit_minutes: Minutes = 720.0
    """The number of minutes that a role waits for another role that runs and finishes nothing, before it returns its
    nodes.
    """
    skipped_steps: Count = 3
    """The number of optimiser steps in a row that are skipped, because their loss or gradient is not finite, before the
    run ends. A skipped step changes no weights.
    """
    sampler_disagreement: Annotated[float, Field(ge=1e-6, le=100)] | None = None
    """The largest disagreement between the trainer's and the sampler's log-probabilities of the first sampled group,
    above which no update is made and the run ends: the mean absolute difference in nats a token, as a share of the
    sampler's mean negative log-likelihood where that is below one nat. null takes 0.25 where the trainer or the server
    computes in 16 bits, or with weights that were rounded to 16, and else 0.02.
    """
    full_disk_minutes: Minutes = 60.0
    """The number of minutes that a role waits for room on a full disk, before it returns its nodes."""
