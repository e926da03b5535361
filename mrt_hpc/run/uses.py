"""The uses of the time of a task, as its events record them."""

from __future__ import annotations

from enum import StrEnum


class Use(StrEnum):
    """What the time of a task is used for. The values are the words of tables and events."""

    STARTING = "starting"
    """From the start of the job to the first work: imports, the vLLM server, the model and its optimiser."""
    PREPARING = "preparing"
    """The checks of the first job, and weights version 0."""
    LOADING = "loading"
    """Loading weights into the server, or rollouts into the trainer."""
    GENERATING = "generating"
    """Sampling traces, and grading them."""
    BRANCHING = "branching"
    """Sampling the prover's branches. They share the server with the traces, so the time of both is divided by the
    tokens that were sampled for each.
    """
    TRAINING = "training"
    """Forward, backward and update."""
    SAVING = "saving"
    """Writing weights versions and checkpoints."""
    REPORTING = "reporting"
    """Writing the report."""
    WAITING = "waiting for a peer"
    """Waiting for another task: for a weights version, for rollouts, or for samples."""
    ENDING = "ending"
    """From the last work to the end of the job."""
    LOST = "lost to preemption or failure"
    """Work of an attempt that did not end well, since its last result that stays."""
    UNACCOUNTED = "unaccounted"
    """Time of which nothing is known."""
