"""The site profile of a command about images, and the build of an image on a compute node: the same command, started by
srun.
"""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from mrt_hpc.launch.sites import find_site
from mrt_hpc.launch.slurm.sbatch_options import as_word
from mrt_hpc.launch.slurm.site import SlurmSite, required

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

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
