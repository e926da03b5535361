"""What many tests begin with: recipes, the jobs of the quickstart, a stand-in for a command, the resources of a job."""

import os
from pathlib import Path
from typing import Any

import pytest

from mrt_hpc.plan.jobs import JobResources

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "recipes"
QUICKSTART = RECIPES / "quickstart.yaml"
ROLES = ("prepare", "inference", "trainer", "evaluation", "report")
TRAINER, INFERENCE, EVALUATION = (f"segment-000.{role}" for role in ("trainer", "inference", "evaluation"))
JOBS = ("prepare", INFERENCE, TRAINER, EVALUATION, "report")  # the jobs of the quickstart, in the order of its plan


def resources(**changes: Any) -> JobResources:
    small = {"nodes": 1, "ranks_per_node": 1, "gpus_per_rank": 0, "cpus_per_rank": 1, "memory_gib_per_node": 1.0}
    return JobResources(**{**small, "time_limit_minutes": 1, **changes})


def executable(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def look_first_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
