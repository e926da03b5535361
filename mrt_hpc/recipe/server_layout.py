"""How the GPUs of a task are divided among its vLLM servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrt_hpc.recipe.base import misfit
from mrt_hpc.recipe.sections.resources import InferenceResources

if TYPE_CHECKING:
    from mrt_hpc.recipe.evaluation_recipe import Experiment
    from mrt_hpc.recipe.sections.resources import RoleResources
    from mrt_hpc.recipe.sections.serving import Serving


@dataclass(frozen=True)
class ServerLayout:
    """The servers of one task."""

    servers: int
    """The number of servers side by side."""
    tensor_parallel: int
    """The number of GPUs that each layer is divided over; without GPUs, of processes."""
    stages: int = 1
    """The number of parts into which the layers of each are divided, one after the other."""

    @staticmethod
    def of(serving: Serving, gpus: int, nodes: int = 1) -> ServerLayout:
        """Return the servers of a task.

        Args:
            serving: the section of the recipe.
            gpus: of each node of the task; 0 where it computes on CPU.
            nodes: of the task.
        """
        servers, width = serving.servers, serving.tensor_parallel
        if gpus and nodes > 1:
            width = width or gpus
            return ServerLayout(servers or 1, width, max(1, gpus * nodes // width))
        if not gpus:
            return ServerLayout(servers or 1, width or 1)
        width = width or (max(1, gpus // servers) if servers else 1)
        return ServerLayout(servers or max(1, gpus // width), width)


def layout_fits(recipe: Experiment, *roles: str) -> None:
    """Refuse GPUs that the servers of a task do not use, or that they lack.

    Args:
        recipe: what is checked.
        roles: those whose tasks have servers.
    """
    for role in roles:
        resources = getattr(recipe.resources, role)
        gpus = resources.gpus
        if gpus and nodes_of(resources) > 1:
            _spanning_fits(recipe, gpus, nodes_of(resources))
            continue
        layout = ServerLayout.of(recipe.serving, gpus)
        needed = layout.servers * layout.tensor_parallel
        if gpus and needed != gpus:
            raise misfit(
                f"resources.{role}.gpus",
                f"{needed}, which is {layout.servers} x {layout.tensor_parallel}: serving.servers times "
                "serving.tensor_parallel, as each server has GPUs of its own; section serving holds for all roles",
                str(needed),
            )


def serving_roles(recipe: Experiment) -> tuple[str, ...]:
    """The roles whose tasks start vLLM servers."""
    algorithm, prover = getattr(recipe, "algorithm", None), getattr(recipe, "prover", None)
    samples = algorithm is not None and (algorithm.samples_rollouts or algorithm.collects)
    attached = recipe.serving.attach is not None and (prover is None or prover.model is None)
    wanted = {"inference": samples and not attached, "evaluation": bool(recipe.evaluation.benchmarks)}
    return tuple(role for role, starts in wanted.items() if starts)


def nodes_of(resources: RoleResources) -> int:
    """The number of nodes of an inference or evaluation task."""
    return resources.nodes if isinstance(resources, InferenceResources) else 1


def _spanning_fits(recipe: Experiment, gpus: int, nodes: int) -> None:
    """Refuse a server that does not span exactly the nodes of its task."""
    if (recipe.serving.servers or 1) > 1:
        raise misfit(
            "serving.servers",
            "1 with resources.inference.nodes above 1: one server spans the nodes of a task; more servers on one node "
            "each are more tasks (resources.inference.tasks)",
            "1",
        )
    prover = getattr(recipe, "prover", None)  # an evaluation on its own has none, and no inference tasks
    if prover is not None and prover.model is not None:
        raise misfit(
            "resources.inference.nodes",
            "1 where prover.model is a model of its own: two servers cannot share GPUs across nodes",
            "1",
        )
    if gpus * nodes % (width := recipe.serving.tensor_parallel or gpus):
        raise misfit(
            "serving.tensor_parallel",
            f"a divisor of {gpus * nodes}, the GPUs of {nodes} nodes, and not {width}: one server spans the nodes of a "
            "task",
        )
