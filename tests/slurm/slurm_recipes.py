"""The quickstart recipe, shrunk for a real cluster on one host."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from slurm_cluster import Cluster

SHRUNK = {
    "sampling.problems_per_iteration": 4,
    "sampling.rollouts_per_problem": 4,
    "prover.branches": 2,
    "schedule.iterations": 2,
    "schedule.iterations_per_job": 2,
    "evaluation.benchmarks.0.problems": "{type: small_world, split: held_out, problems: 8}",
    "evaluation.benchmarks.0.samples": 1,
    "resources.inference.tasks": 2,
    "resources.trainer.ranks": 2,
    "resources.prepare.cpus": 2,
    "resources.inference.cpus": 1,
    "resources.trainer.cpus": 1,
    "resources.evaluation.max_parallel": 1,
}


def site_file(cluster: Cluster, run: Path, **changes: object) -> Path:
    """The cluster's profile as a user would write it."""
    path = run.parent / "site.yaml"
    path.write_text(cluster.site(**changes).model_dump_json())  # JSON is YAML
    return path


def options(changes: Mapping[str, object]) -> list[str]:
    """Changes of a recipe, as the command line takes them."""
    return [word for field, value in changes.items() for word in ("--set", f"{field}={value}")]


def accounting(ids: Iterable[str]) -> str:
    """sacct's table of a run."""
    fields = "JobID%-12,JobName%-36,Partition,AllocCPUS,NTasks,NodeList,Elapsed,State,ExitCode"
    command = ["sacct", f"--jobs={','.join(ids)}", f"--format={fields}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
