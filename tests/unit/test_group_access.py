"""Who may read a run: its owner, and the group where the site profile says so."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from mrt_hpc.attempt.entry import run_task
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.weights import publish
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.layout import RunLayout

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"


@pytest.fixture(autouse=True)
def closed_by_umask() -> Iterator[None]:
    """The strictest umask that users have; put back afterwards."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def made(root: Path, *, group_access: bool) -> RunLayout:
    recipe = load_recipe(QUICKSTART)
    return create_or_open(root, recipe, compile_plan(recipe, LocalSite()), group_access=group_access)


def run_one_task(layout: RunLayout) -> None:
    """A task that publishes weights, started with the strict umask."""
    os.umask(0o077)

    def role(task: Task) -> None:
        publish(task.layout, 1, lambda directory: save_file({"a": torch.ones(2)}, directory / "model.safetensors"))

    run_task(str(layout.root), "prepare", 0, Placement(0, 1, 0, "1"), role)


def test_the_group_reads_a_run_of_a_site_that_allows_it_and_writes_nothing(tmp_path: Path) -> None:
    layout = made(tmp_path / "run", group_access=True)
    run_one_task(layout)
    assert stat.S_IMODE(layout.root.stat().st_mode) == 0o2750
    inside = [p for p in layout.root.rglob("*") if p != layout.secrets and layout.secrets not in p.parents]
    for path in inside:
        wanted = 0o750 if path.is_dir() else 0o640
        assert stat.S_IMODE(path.stat().st_mode) & 0o777 == wanted, path
    assert any(p.suffix == ".safetensors" for p in inside)
    assert any(p.parent == layout.events for p in inside)
    assert stat.S_IMODE(layout.secrets.stat().st_mode) & 0o777 == 0o700
    assert stat.S_IMODE((layout.secrets / "server_key").stat().st_mode) == 0o600


def test_without_the_field_a_run_is_its_owner_s_alone(tmp_path: Path) -> None:
    layout = made(tmp_path / "run", group_access=False)
    run_one_task(layout)
    assert stat.S_IMODE(layout.root.stat().st_mode) == 0o700
    assert not any(p.stat().st_mode & 0o077 for p in layout.root.rglob("*"))


def test_a_profile_without_the_field_gives_the_group_nothing() -> None:
    assert not LocalSite().group_access
    assert not SlurmSite(type="slurm", name="here").group_access
