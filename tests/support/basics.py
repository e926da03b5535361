"""What many tests begin with: a run directory, a stand-in for a command, the resources of a job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.jobs import JobResources
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    import pytest

    from mrt_hpc.backends.backend import Site
    from mrt_hpc.run.layout import RunLayout

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "recipes" / "quickstart.yaml"
ROLES = ("prepare", "inference", "trainer", "evaluation", "report")
TRAINER, INFERENCE, EVALUATION = (f"segment-000.{role}" for role in ("trainer", "inference", "evaluation"))
JOBS = ("prepare", INFERENCE, TRAINER, EVALUATION, "report")
"""The jobs of the quickstart, in the order of its plan."""


def made_run(root: Path, *changes: str, site: Site | None = None) -> RunLayout:
    """The directory of a run of the quickstart, of which nothing is submitted."""
    recipe = load_recipe(QUICKSTART, changes)
    return create_or_open(root, recipe, compile_plan(recipe, site or LocalSite()))


def resources(**changes: Any) -> JobResources:
    """What a small job asks for."""
    small = {"nodes": 1, "ranks_per_node": 1, "gpus_per_rank": 0, "cpus_per_rank": 1, "memory_gib_per_node": 1.0}
    return JobResources(**{**small, "time_limit_minutes": 1, **changes})


def executable(path: Path, script: str) -> Path:
    """A shell script in the place of a command."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def look_first_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of this folder stand before all others."""
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
