"""The profile of this machine, where the command that submits a run also runs its tasks."""

from typing import ClassVar, Literal

from mrt_hpc.backends.backend import Site
from mrt_hpc.recipe.base import Cores, Gpus, Name


class LocalSite(Site):
    """This machine, without a queue."""

    back_end: ClassVar[str] = "mrt_hpc.backends.local.backend:LocalBackend"
    type: Literal["local"] = "local"
    name: Name = "local"
    """The name of the profile."""
    cpus: Cores | None = None
    """The number of CPU slots for tasks; null takes the machine's cores, or what the largest pair of roles needs where
    that is more.
    """
    gpus: Gpus | None = None
    """The number of GPU slots for tasks; null takes the GPUs that the machine has."""
