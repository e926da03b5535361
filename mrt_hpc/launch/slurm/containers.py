"""Finds the folders beside the run directory that a task's container has to bind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.recipe.schema import HuggingFaceModel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.launch.slurm.site import SlurmSite
    from mrt_hpc.recipe.schema import Recipe


def with_models_bound(site: SlurmSite, recipe: Recipe) -> SlurmSite:
    """Return the site with the folders that the recipe's tasks read added to its container's binds; a site without a
    container is returned unchanged."""
    if site.container is None:
        return site
    given = {bind.partition(":")[0] for bind in site.container.binds}
    more = tuple(folder for folder in folders_read(recipe) if folder not in given)
    return site.model_copy(
        update={"container": site.container.model_copy(update={"binds": (*site.container.binds, *more)})}
    )


def folders_read(recipe: Recipe) -> list[str]:
    """The folders of the model, of the prover's model and of the chat template, and those that their files are links
    into: a snapshot of a download holds nothing else.
    """
    folders = [Path(path) for path in _model_paths(recipe)]
    if recipe.prompt.chat_template is not None:
        folders.append(Path(recipe.prompt.chat_template).parent)
    behind = {file.resolve().parent for folder in folders if folder.is_dir() for file in folder.iterdir()}
    return sorted({str(folder.absolute()) for folder in folders} | {str(folder) for folder in behind})


def _model_paths(recipe: Recipe) -> Iterator[str]:
    if isinstance(recipe.model, HuggingFaceModel):
        yield recipe.model.path
    for prover in (recipe.prover, recipe.evaluation.prover):
        if prover is not None and prover.model is not None:
            yield prover.model
