"""The profile of this machine, where the command that submits a run also runs its tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mrt_hpc.launch.backend import Site
from mrt_hpc.recipe.base import Cores, Gpus, Name

if TYPE_CHECKING:
    from mrt_hpc.launch.backend import Backend


class LocalSite(Site):
    """This machine, without a queue."""

    type: Literal["local"] = "local"
    name: Name = "local"
    """The name of the profile."""
    cpus: Cores | None = None
    """The number of CPU slots for tasks; null takes the machine's cores, or what the largest pair of roles needs where
    that is more.
    """
    gpus: Gpus | None = None
    """The number of GPU slots for tasks; null takes the GPUs that the machine has."""

    def backend(self) -> Backend:
        """Runs tasks as processes of the submitting command."""
        from mrt_hpc.launch.local.backend import LocalBackend

        return LocalBackend(self)
