"""Which weights versions of a run must stay, and which its trainer may remove."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrt_hpc.plan.compile import evaluated_versions
from mrt_hpc.run.pins import pinned_versions
from mrt_hpc.run.weights import published_versions

if TYPE_CHECKING:
    from mrt_hpc.recipe.schema import Recipe
    from mrt_hpc.run.layout import RunLayout


def needed_versions(layout: RunLayout, recipe: Recipe, version: int) -> set[int]:
    """The weights versions that must stay once a version is published: those that the recipe needs, those that were
    evaluated, and those that evaluations on their own have yet to take over.
    """
    return kept_versions(recipe, version) | evaluated(layout) | pinned_versions(layout)


def kept_versions(recipe: Recipe, version: int) -> set[int]:
    """The weights versions that the recipe needs: the newest few, the first, all that the schedule evaluates, and all
    that sample traces, as a damaged collection is sampled with them again.
    """
    newest = range(version - recipe.training.keep_weights + 1, version + 1)
    return {0, *newest, *evaluated_versions(recipe), *recipe.algorithm.traces_versions(recipe.schedule.iterations)}


def stays(layout: RunLayout, recipe: Recipe, version: int) -> bool:
    """Whether a weights version is never removed, also without a pin."""
    return version in kept_versions(recipe, recipe.schedule.iterations) | evaluated(layout)


def evaluated(layout: RunLayout) -> set[int]:
    """The weights versions that were evaluated, also those that an earlier recipe of the run has asked for: with other
    settings they may be asked for again.
    """
    return {version for version in published_versions(layout) if layout.evaluations(version).exists()}
