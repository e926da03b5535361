"""Finds the folders beside the run directory that a task's container has to bind."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from mrt_hpc.backends.sites import find_site
from mrt_hpc.backends.slurm.site import SlurmSite, as_word, required
from mrt_hpc.recipe.hub_models import cache_of, is_hub_name
from mrt_hpc.recipe.schema import Experiment


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
    """The folders of the models, of the prover's model and of results, and those that the
    files of models are links into: a snapshot of a download holds nothing else. Of a model in the hub's cache it is the
    whole cache, where a link may lead to another link.
    """
    published = [model.run for model in recipe.models if model.run is not None]  # a version to come has no folder yet
    named = (*recipe.model_directories.values(), *published)
    folders = [Path(path) for path in named if not is_hub_name(path)]
    behind = {file.resolve().parent for folder in folders if folder.is_dir() for file in folder.iterdir()}
    behind |= {cache for folder in folders if (cache := cache_of(folder)) is not None}
    results = set() if recipe.evaluation.results is None else {str(Path(recipe.evaluation.results).absolute())}
    return sorted({str(folder.absolute()) for folder in folders} | {str(folder) for folder in behind} | results)


# -- image on node -----------------------------------------------------------------------------------------------------
# The site profile of a command about images, and the build of an image on a compute node: the same command, started by
# srun.


CPUS, MEMORY_GIB, MINUTES = 4, 16, 120
"""What a build asks for: installing the environment and compressing the image take most of it."""


def profile_with_image(image: Path | None, name: str | None) -> SlurmSite | None:
    """The site profile that is named, or the user's default where no image is named either; None where that is no
    cluster.

    Args:
        image: the image that the user has named.
        name: of the profile, or its path.

    Raises:
        UserError: there is no such profile, or the one that is named is no Slurm cluster.
    """
    if name is not None:
        return required(find_site(name))
    default = find_site(None) if image is None else None
    return default if isinstance(default, SlurmSite) else None


def srun_command(site: SlurmSite, arguments: Sequence[str]) -> list[str]:
    """The command that runs ``mrt-hpc`` with these arguments on a compute node, after the site's setup lines.

    Args:
        site: the profile.
        arguments: of mrt-hpc, without ``--on-node``.
    """
    minutes = min(MINUTES, site.max_time_minutes or MINUTES)
    asked = {"account": site.account, "qos": site.qos, "partition": site.partitions.cpu, **site.sbatch}
    options = [as_word(name, value) for name, value in asked.items() if value is not None]
    memory = [f"--mem={MEMORY_GIB}G"] if site.memory_request else []
    python = shlex.join([site.python or sys.executable, "-m", "mrt_hpc.cli.main", *arguments])
    script = "\n".join([*site.setup, "export PYTHONSAFEPATH=1", f"exec {python}"])
    return ["srun", *options, *memory, "--ntasks=1", f"--cpus-per-task={CPUS}", f"--time={minutes}",
            "--job-name=mrt-hpc-container", "bash", "-c", script]  # fmt: skip
