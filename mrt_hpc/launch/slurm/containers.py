"""Finds the folders beside the run directory that a task's container has to bind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.recipe.evaluation_recipe import EvaluationRecipe
from mrt_hpc.recipe.hub_models import cache_of, is_hub_name
from mrt_hpc.recipe.sections.model import HuggingFaceModel
from mrt_hpc.run.prompt_files import prompt_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.launch.slurm.site import SlurmSite
    from mrt_hpc.recipe.evaluation_recipe import Experiment


def with_models_bound(site: SlurmSite, recipe: Experiment) -> SlurmSite:
    """Return the site with the folders that the recipe's tasks read added to its container's binds; a site without a
    container is returned unchanged."""
    if site.container is None:
        return site
    given = {bind.partition(":")[0] for bind in site.container.binds}
    more = tuple(folder for folder in folders_read(recipe) if folder not in given)
    return site.model_copy(
        update={"container": site.container.model_copy(update={"binds": (*site.container.binds, *more)})}
    )


def folders_read(recipe: Experiment) -> list[str]:
    """The folders of the models, of the prover's model, of files that prompts name and of results, and those that the
    files of models are links into: a snapshot of a download holds nothing else. Of a model in the hub's cache it is the
    whole cache, where a link may lead to another link.
    """
    folders = [Path(path) for path in _model_paths(recipe) if not is_hub_name(path)]
    folders += [path.parent for path in prompt_files(recipe).values()]  # runs of earlier versions have no copies
    behind = {file.resolve().parent for folder in folders if folder.is_dir() for file in folder.iterdir()}
    behind |= {cache for folder in folders if (cache := cache_of(folder)) is not None}
    results = set() if recipe.evaluation.results is None else {str(Path(recipe.evaluation.results).absolute())}
    return sorted({str(folder.absolute()) for folder in folders} | {str(folder) for folder in behind} | results)


def _model_paths(recipe: Experiment) -> Iterator[str]:
    if isinstance(recipe, EvaluationRecipe):
        yield from (model.run or model.path for model in recipe.models)  # a version to come has no folder yet
    elif isinstance(recipe.model, HuggingFaceModel):
        yield recipe.model.path
    for prover in (getattr(recipe, "prover", None), recipe.evaluation.prover):
        if prover is not None and prover.model is not None:
            yield prover.model
