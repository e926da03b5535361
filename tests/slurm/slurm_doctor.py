"""The doctor as the ordinary user of a cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from slurm_recipes import SHRUNK, options

if TYPE_CHECKING:
    from pathlib import Path

    from slurm_cluster import Cluster

Finding = dict[str, str]


def examine(cluster: Cluster, run: Path, site: Path, *more: str) -> tuple[int, dict[str, Finding]]:
    """The exit status of the doctor with a node, and its findings by check."""
    words = ("doctor", "--site", str(site), "--recipe", "quickstart", *options(SHRUNK), "--run", str(run / "run"))
    done = cluster.mrt_hpc(*words, "--on-node", "--json", *more, timeout=240)
    assert done.stdout.startswith("{"), done.stderr
    return done.returncode, {one["check"]: one for one in json.loads(done.stdout)["checks"]}
