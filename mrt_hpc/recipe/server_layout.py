"""How the GPUs of a task are divided among its vLLM servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrt_hpc.recipe.base import misfit

if TYPE_CHECKING:
    from mrt_hpc.recipe.evaluation_recipe import Experiment
    from mrt_hpc.recipe.schema import Serving


@dataclass(frozen=True)
class ServerLayout:
    """The servers of one task."""

    servers: int
    """The number of servers side by side."""
    tensor_parallel: int
    """The number of GPUs of each; without GPUs, of processes."""

    @staticmethod
    def of(serving: Serving, gpus: int) -> ServerLayout:
        """Return the servers of a task.

        Args:
            serving: the section of the recipe.
            gpus: of the task; 0 where it computes on CPU.
        """
        servers, width = serving.servers, serving.tensor_parallel
        if not gpus:
            return ServerLayout(servers or 1, width or 1)
        width = width or max(1, gpus // (servers or 1))
        return ServerLayout(servers or max(1, gpus // width), width)


def layout_fits(recipe: Experiment, *roles: str) -> None:
    """Refuse GPUs that the servers of a task do not use, or that they lack.

    Args:
        recipe: what is checked.
        roles: those whose tasks have servers.
    """
    for role in roles:
        gpus = getattr(recipe.resources, role).gpus
        layout = ServerLayout.of(recipe.serving, gpus)
        needed = layout.servers * layout.tensor_parallel
        if gpus and needed != gpus:
            raise misfit(
                f"resources.{role}.gpus",
                f"{needed}, which is {layout.servers} x {layout.tensor_parallel}: serving.servers times "
                "serving.tensor_parallel, as each server has GPUs of its own",
            )
