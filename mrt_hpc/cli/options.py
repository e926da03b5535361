"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

ROLES = ["prepare", "inference", "trainer", "evaluation", "report"]

site = click.option(
    "--site",
    metavar="SITE",
    help="Site profile: a path, or a name in slurm/sites or ~/.config/mrt-hpc/sites. Default: this machine.",
)
overrides = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Set one field of the recipe, as in training.learning_rate=2e-6. Repeatable.",
)
run_directory = click.option(
    "--run",
    type=click.Path(path_type=Path, file_okay=False),
    help="Run directory, on a filesystem that all nodes share. Default: runs/NAME, NAME being the recipe's.",
)


def run_path(name: str, run: Path | None) -> Path:
    """The run directory: the one given, or the default for a recipe's name."""
    return (run if run is not None else Path("runs") / name).absolute()
