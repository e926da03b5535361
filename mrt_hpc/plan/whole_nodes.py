"""Fills whole nodes with a plan's tasks, where a site gives out and charges no less."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from mrt_hpc.plan.hours import Throughput, expected_hours, throughput
from mrt_hpc.plan.jobs import Plan
from mrt_hpc.plan.memory_fit import fits
from mrt_hpc.recipe.schema import Experiment, Recipe
from mrt_hpc.recipe.sections import RoleResources, nodes_of
from mrt_hpc.recipe.site import SiteSettings

S = TypeVar("S", bound=BaseModel)
Changes = tuple[tuple[str, object], ...]
"""Dotted fields that change together, with values."""


@dataclass(frozen=True)
class FilledNodes:
    """A change that leaves fewer GPUs idle."""

    changes: Changes
    gpu_hours: float
    """Expected and charged."""

    @property
    def words(self) -> str:
        """The options that make it."""
        return " ".join(f"--set {field}={value}" for field, value in self.changes)


def filled_nodes(recipe: Experiment, site: SiteSettings, plan_of: Callable[[Experiment], Plan]) -> FilledNodes | None:
    """The change that fills a site's nodes, if it fits and costs less.

    Args:
        recipe: its tasks may be smaller than a node.
        plan_of: compiles a recipe for that site.
    """
    node, rates = site.limits.node_gpus, throughput(recipe, site)
    changes = () if node is None else tuple(_changes(recipe, node))
    if not changes or rates is None:
        return None
    filled = set_fields(recipe, changes)
    try:
        filled.check()
    except ValidationError:
        return None
    faster = _rates_of_larger(recipe, filled, site)
    if faster is None or fits(filled, site).refused_roles:
        return None
    before, after = _gpu_hours(recipe, rates, plan_of), _gpu_hours(filled, faster, plan_of)
    return FilledNodes(changes, after) if after < before else None


def set_fields(recipe: S, change: Changes) -> S:
    """A recipe with other values in some fields."""
    for field, value in change:
        name, _, below = field.partition(".")
        inner = set_fields(getattr(recipe, name), ((below, value),)) if below else value
        recipe = recipe.model_copy(update={name: inner})
    return recipe


def _rates_of_larger(recipe: Experiment, filled: Experiment, site: SiteSettings) -> Throughput | None:
    """Rates of larger tasks: a measured rate is the smaller task's, and grows with the GPUs."""
    rates, role = throughput(filled, site), "inference" if recipe.trains else "evaluation"
    before, after = (getattr(one.resources, role).gpus for one in (recipe, filled))
    if rates is None or not before or site.throughput.sampled_tokens_per_second is None:
        return rates
    return replace(rates, sampled_per_s=rates.sampled_per_s * after / before)


def _gpu_hours(recipe: Experiment, rates: Throughput, plan_of: Callable[[Experiment], Plan]) -> float:
    return sum(each.gpu_hours for each in expected_hours(plan_of(recipe), recipe, rates).values())


def _changes(recipe: Experiment, node: int) -> Iterator[tuple[str, int]]:
    """Larger and fewer tasks, and a node's GPUs as ranks."""
    resources, evaluation = recipe.resources, recipe.evaluation
    if isinstance(recipe, Recipe):
        trainer, inference = resources.trainer, resources.inference
        if trainer.gpus and trainer.ranks * trainer.gpus < node:
            yield "resources.trainer.ranks", node // trainer.gpus
        if not recipe.is_colocated and (factor := _factor(inference, node)) > 1:
            yield "resources.inference.tasks", ceil(inference.tasks / factor)
            yield "resources.inference.gpus", node
    if evaluation.benchmarks and (factor := _factor(resources.evaluation, node)) > 1:
        yield "resources.evaluation.gpus", node
        yield "evaluation.problem_shards", ceil(evaluation.problem_shards / factor)


def _factor(resources: RoleResources, node: int) -> int:
    """Tasks of this size that share a node."""
    is_part = resources.gpus and not node % resources.gpus and nodes_of(resources) == 1
    return node // resources.gpus if is_part else 1
