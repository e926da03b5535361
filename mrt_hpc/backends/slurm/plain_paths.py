"""Refuses run directories that Slurm or a container would misread, and finds the folders that a container binds."""

from dataclasses import replace
from pathlib import Path

from mrt_hpc.backends.slurm.site import Container, SlurmSite
from mrt_hpc.backends.slurm.slurm_output import MARKS
from mrt_hpc.errors import UserError, word
from mrt_hpc.recipe.find import absolute
from mrt_hpc.recipe.hub_models import cache_of, is_hub_name
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.run.layout import RunLayout


def require_plain_path(layout: RunLayout, container: Container | None = None) -> RunLayout:
    """Makes the root absolute, as tasks start in another folder; refuses paths that Slurm or the container would
    misread.
    """
    root, another = absolute(layout.root), "the same command with --run DIR, another run directory"
    if container is not None:
        _refuse_unbindable(root, another)
    for holds, what, why in (
        ("%" in str(root), "a percent sign", "which Slurm would replace in the names of log files"),
        (any(mark in str(root) for mark in MARKS), f"one of {'  '.join(MARKS)}", "between which squeue lists the jobs"),
        ("\\" in str(root), "a backslash", "which Slurm drops from the names of log files: they would be elsewhere"),
        (not str(root).isprintable(), "a line break or a control character", "which would end the line of an option"),
    ):
        if holds:
            held, expected = f"the run directory's path holds {what}", f"a path without {what}, {why}"
            raise UserError(held, value=str(root), expected=expected, advice=another)
    return replace(layout, root=root)


def _refuse_unbindable(folder: Path, advice: str) -> None:
    """Apptainer ends a path at some characters."""
    if any(mark in str(folder) for mark in ",:"):
        raise UserError(
            "a folder that the container has to bind has a comma or a colon in its path",
            value=str(folder),
            expected="a path without them, as Apptainer reads more than one path there",
            advice=advice,
        )


def bind_models(site: SlurmSite, recipe: Experiment) -> SlurmSite:
    """The container also binds the folders that the recipe's tasks read."""
    if site.container is None:
        return site
    given = {bind.partition(":")[0] for bind in site.container.binds}
    more = tuple(folder for folder in folders_read(recipe) if folder not in given)
    for folder in more:
        _refuse_unbindable(Path(folder), f"name a link to it in the recipe: ln -s {word(Path(folder))} LINK")
    container = site.container.model_copy(update={"binds": (*site.container.binds, *more)})
    return site.model_copy(update={"container": container})


def folders_read(recipe: Experiment) -> list[str]:
    """With those that models' files link to; for the hub the whole cache, where a link may lead to another folder."""
    published = [model.run for model in recipe.models if model.run is not None]  # a version to come has no folder yet
    named = (*recipe.model_directories.values(), *published)
    folders = [Path(path) for path in named if not is_hub_name(path)]
    behind = {file.resolve().parent for folder in folders if folder.is_dir() for file in folder.iterdir()}
    behind |= {cache for folder in folders if (cache := cache_of(folder)) is not None}
    results = set() if recipe.evaluation.results is None else {str(absolute(Path(recipe.evaluation.results)))}
    return sorted({str(absolute(folder)) for folder in folders} | {str(folder) for folder in behind} | results)
