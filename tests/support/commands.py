"""Runs commands in this process."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from basics import RECIPES, ROOT, look_first_in
from click.testing import CliRunner, Result

from mrt_hpc import Recipe, UserError
from mrt_hpc.cli.main import main
from mrt_hpc.recipe.load import load_recipe

HELP = """
from click import Group
from mrt_hpc.cli.main import main
def show(command, *words):
    main([*words, "--help"], prog_name="mrt-hpc", standalone_mode=False)
    for name, below in sorted(command.commands.items()) if isinstance(command, Group) else ():
        print("\\n")
        show(below, *words, name)
show(main)
"""
"""Prints the help of every command. Click keeps the help option of a command that other tests have called, so a process
of its own prints it.
"""


def typed(*words: object, exits: int = 0, columns: int | str | None = None) -> Result:
    """What ``mrt-hpc`` with these words prints to a terminal of so many columns, or to a pipe, and how it ends."""
    environment = {"COLUMNS": None if columns is None else str(columns)}
    done = CliRunner().invoke(main, [str(word) for word in words], env=environment)
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code == exits, done.output
    return done


def in_a_process(*words: object, exits: int = 0, **environment: str) -> str:
    """The same in a process of its own, which holds the runs that it submits as long as it lives."""
    done = python("-m", "mrt_hpc", *words, exits=exits, **environment)
    return done.stdout + done.stderr


def python(
    *words: object, cwd: Path | None = None, exits: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Python with these words in a process of its own, which has to end so."""
    own = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **environment}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, cwd=cwd, env=own, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == exits, done.stderr
    return done


def refusal(work: Callable[..., object], *arguments: Any) -> UserError:
    with pytest.raises(UserError) as refused:
        work(*arguments)
    return refused.value


def recipe(name: str, *settings: str) -> Recipe:
    return load_recipe(RECIPES / f"{name}.yaml", settings)


def commands_first(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    folder.mkdir()
    look_first_in(folder, patch)
    return folder
