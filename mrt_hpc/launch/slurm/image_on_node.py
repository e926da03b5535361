"""The build of an image on a compute node: the same command, started by srun."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from mrt_hpc.launch.slurm.sbatch_options import as_word

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mrt_hpc.launch.slurm.site import SlurmSite

CPUS, MEMORY_GIB, MINUTES = 4, 16, 120
"""What a build asks for: installing the environment and compressing the image take most of it."""


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
