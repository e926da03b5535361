"""Where metrics are written beside the plain files."""

from __future__ import annotations

from mrt_hpc.recipe.base import Name, Section


class Tracking(Section):
    """Where metrics are written beside the plain files."""

    wandb: bool = False
    """Whether an offline W&B run is written, under one run id over all attempts."""
    project: Name = "mrt-hpc"
    """The name of the W&B project."""
    tensorboard: bool = False
    """Whether the same metrics are written as TensorBoard event files, into the folder tensorboard of the run."""
