"""Which weights versions of a run must stay, which its trainer may remove, and which are published in full."""

from __future__ import annotations

from mrt_hpc.recipe.kinds import AlgorithmSettings
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.weights import is_delta, pinned_versions, published_versions, with_bases


def needed_versions(layout: RunLayout, recipe: Recipe, version: int) -> set[int]:
    """The weights versions that must stay once a version is published: those that the recipe needs, those that were
    evaluated, those that evaluations on their own have yet to take over, and those that deltas among them were made of.
    Once the last version is there, no task loads an earlier delta any more, and a delta is no model by itself.
    """
    kept = kept_versions(recipe, version)
    if version == recipe.schedule.iterations:
        kept = {old for old in kept if not is_delta(layout.weights_version(old))}
    return with_bases(layout, kept | evaluated(layout) | pinned_versions(layout))


def kept_versions(recipe: Recipe, version: int) -> set[int]:
    """The weights versions that the recipe needs: the newest few, the first, all that the schedule evaluates, and all
    that sample traces, as a damaged collection is sampled with them again.
    """
    newest = range(version - recipe.training.keep_weights + 1, version + 1)
    return {*newest, *_lasting(recipe)}


def _lasting(recipe: Recipe) -> set[int]:
    """The weights versions that are models of their own to the run, also when it has ended. Those that sample traces
    are not known where the algorithm was not imported: they count as versions that may go.
    """
    algorithm = recipe.algorithm
    known = isinstance(algorithm, AlgorithmSettings)
    traces = algorithm.traces_versions(recipe.schedule.iterations) if known else ()
    return {0, *recipe.evaluated_versions, *traces}


def stays(layout: RunLayout, recipe: Recipe, version: int) -> bool:
    """Whether a weights version is never removed, also without a pin, and is a whole model."""
    kept = kept_versions(recipe, recipe.schedule.iterations) | evaluated(layout)
    return version in kept and is_in_full(layout, recipe, version)


def is_in_full(layout: RunLayout, recipe: Recipe, version: int) -> bool:
    """Whether a weights version is published as a whole model even without a pin: every so many, those at the end of a
    segment, where other tasks begin, and all that are evaluated or sample traces.
    """
    if version % recipe.training.full_weights_every == 0:
        return True
    ends_segment = version % recipe.schedule.iterations_per_job == 0 or version == recipe.schedule.iterations
    return ends_segment or version in _lasting(recipe) or layout.evaluations(version).exists()


def evaluated(layout: RunLayout) -> set[int]:
    """The weights versions that were evaluated, also those that an earlier recipe of the run has asked for: with other
    settings they may be asked for again.
    """
    return {version for version in published_versions(layout) if layout.evaluations(version).exists()}
