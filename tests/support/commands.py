"""Runs commands in this process, and makes run directories of which nothing is done."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.cli.main import main
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from collections.abc import Callable

    from mrt_hpc.recipe.schema import Recipe
    from mrt_hpc.run.layout import RunLayout

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "recipes"
QUICKSTART = RECIPES / "quickstart.yaml"


def typed(*words: object, exits: int = 0, columns: int | str | None = None) -> Result:
    """What ``mrt-hpc`` with these words prints to a terminal of so many columns, or to a pipe, and how it ends."""
    environment = {"COLUMNS": None if columns is None else str(columns)}
    done = CliRunner().invoke(main, [str(word) for word in words], env=environment)
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code == exits, done.output
    return done


def refusal(work: Callable[..., object], *arguments: Any) -> UserError:
    """The error with which a function refuses these arguments."""
    with pytest.raises(UserError) as refused:
        work(*arguments)
    return refused.value


def recipe(name: str, *settings: str) -> Recipe:
    """A recipe of the package with settings laid over it."""
    return load_recipe(RECIPES / f"{name}.yaml", settings)


def new_run(root: Path, *settings: str, name: str = "quickstart") -> RunLayout:
    """A run directory of which nothing has been done."""
    asked = recipe(name, *settings)
    return create_or_open(root, asked, compile_plan(asked, LocalSite()))


def commands_first(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """A new folder in which commands are looked for before all others."""
    folder.mkdir()
    patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def put_command(folder: Path, name: str, script: str) -> None:
    """Put a shell script in the place of a command."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
