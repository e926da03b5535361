"""The options of analyses that generate their samples: an evaluation on its own is queued, or run, before."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from mrt_hpc.cli import options
from mrt_hpc.cli.completion import complete_suite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Generation:
    """How the samples that an analysis lacks are generated."""

    suite: str
    site: str | None
    overrides: tuple[str, ...]
    results: Path
    data: Path | None


def generating(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of the evaluation that generates its samples, as one argument ``generation``."""

    @click.option(
        "--suite",
        shell_complete=complete_suite,
        help="Evaluate WHAT on this suite before, where samples are not there yet.",
    )
    @options.site
    @options.overrides
    @options.results
    @options.data_folder
    @wraps(command)
    def wrapped(
        *arguments: Any,
        suite: str | None,
        site: str | None,
        overrides: tuple[str, ...],
        results: Path,
        data: Path | None,
        **others: Any,
    ) -> None:
        if suite is None and (site is not None or overrides or data is not None):
            raise click.UsageError("--site, --set and --data belong to the evaluation on a suite: add --suite SUITE")
        generation = None if suite is None else Generation(suite, site, overrides, results, data)
        command(*arguments, generation=generation, **others)

    return wrapped


def generated(generation: Generation, what: Sequence[str]) -> Path | None:
    """Evaluate models on a suite, and return the directory of the finished evaluation; None while it is queued.

    Raises:
        UserError: models, suite, site or data are wrong, the site refuses, or a task failed.
    """
    from mrt_hpc.cli.options import run_path
    from mrt_hpc.cli.submit import listener
    from mrt_hpc.launch.evaluated_models import models_asked
    from mrt_hpc.launch.evaluation import EvaluationAsked, evaluation_recipe, submit_evaluation
    from mrt_hpc.launch.run_progress import progress
    from mrt_hpc.launch.sites import find_site
    from mrt_hpc.plan.jobs import read_plan
    from mrt_hpc.run.layout import RunLayout

    asked = models_asked(what)
    wanted = EvaluationAsked(asked, generation.suite, generation.overrides, generation.results, generation.data)
    recipe = evaluation_recipe(wanted)
    root = run_path(recipe.name, None)
    submit_evaluation(recipe, asked.awaited, find_site(generation.site), root, listener())
    layout = RunLayout(root)
    now = progress(read_plan(layout.plan), layout)
    if now.evaluations_done == now.evaluations:
        return root
    click.echo(f"{now.evaluations_done} of {now.evaluations} evaluations are done: type the same command again then")
    return None
