"""The options of analyses that generate their samples: an evaluation on its own is queued, or run, before."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mrt_hpc.cli import options
from mrt_hpc.cli.completion import complete_suite
from mrt_hpc.cli.options import site_of_command
from mrt_hpc.evaluate.analysed_benchmark import Needs, analysed_benchmark
from mrt_hpc.run.layout import RunLayout

if TYPE_CHECKING:
    from mrt_hpc.evaluate.asked_models import ModelsAsked
    from mrt_hpc.recipe.schema import EvaluationRecipe


SUITE_HELP = (
    "Evaluate WHAT on a benchmark of this suite before, where samples are not there yet. RUN@first and RUN are then "
    "the first and last weights versions, EVALDIR the models of that evaluation."
)


@dataclass(frozen=True)
class Generation:
    """How the samples that an analysis lacks are generated."""

    suite: str
    site: str | None
    overrides: tuple[str, ...]
    results: Path | None
    """None where the user named no folder."""
    data: Path | None

    def options(self) -> list[str]:
        """Return the options as the user types them."""
        folders = [(name, str(path)) for name, path in (("--results", self.results), ("--data", self.data)) if path]
        changes = [("--set", override) for override in self.overrides]
        named = [("--suite", self.suite), ("--site", self.site), *changes, *folders]
        return [word for name, value in named if value is not None for word in (name, value)]


@dataclass(frozen=True)
class AnalysisAsked:
    """The arguments and options that all analyses have."""

    analysis: str
    """The name of the command."""
    what: tuple[str, ...]
    out: Path | None
    benchmark: str | None
    generation: Generation | None
    """None where no suite is named, so that nothing is generated."""


def analysing(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the arguments and options that all analyses have, as its one positional argument."""

    @options.what
    @click.option(
        "--out",
        type=options.FOLDER,
        help="The directory of the results. Default: analysis/NAME in the first RUN or EVALDIR.",
    )
    @click.option(
        "--benchmark",
        metavar="NAME",
        help="Needed where the models share several, or the suite has several: it alone is evaluated.",
    )
    @click.option("--suite", shell_complete=complete_suite, help=SUITE_HELP)
    @options.site
    @options.overrides
    @options.results
    @options.data_folder
    @wraps(command)
    def wrapped(
        what: tuple[str, ...],
        out: Path | None,
        benchmark: str | None,
        suite: str | None,
        site: str | None,
        overrides: tuple[str, ...],
        results: Path,
        data: Path | None,
        **others: Any,
    ) -> None:
        source = click.get_current_context().get_parameter_source("results")
        named = None if source is ParameterSource.DEFAULT else results
        if suite is None and not (site is None and not overrides and named is None and data is None):
            raise click.UsageError(
                "--site, --set, --results and --data belong to the evaluation on a suite: add --suite SUITE"
            )
        generation = None if suite is None else Generation(suite, site, overrides, named, data)
        command(AnalysisAsked(command.__name__, what, out, benchmark, generation), **others)

    return wrapped


def generated(analysis: AnalysisAsked, how: Generation, needs: Needs) -> Path | None:
    """Evaluate models on a benchmark of a suite that has what the analysis needs, and return the directory of the
    finished evaluation; None while it is queued.

    Raises:
        UserError: models, suite, site or data are wrong, the evaluation does not suit the analysis, the site refuses,
            or a task failed.
    """
    from mrt_hpc.analysis.named_models import models_to_evaluate
    from mrt_hpc.attempt.run_progress import progress
    from mrt_hpc.cli.submit import listener
    from mrt_hpc.evaluate.asked_models import models_asked
    from mrt_hpc.evaluate.evaluation_alone import submit_evaluation
    from mrt_hpc.plan.jobs import read_plan

    asked = models_asked(models_to_evaluate(analysis.what))
    recipe = suiting_recipe(analysis, how, needs, asked)
    root = options.run_path(recipe.name, None)
    layout = RunLayout(root)
    site = site_of_command(how.site, layout).checked().site
    submit_evaluation(recipe, asked.awaited, site, root, listener())
    now = progress(read_plan(layout.plan), layout)
    if now.evaluations_done == now.evaluations:
        return root
    click.echo(f"{now.evaluations_done} of {now.evaluations} evaluations are done: type the same command again then")
    return None


def suiting_recipe(analysis: AnalysisAsked, how: Generation, needs: Needs, asked: ModelsAsked) -> EvaluationRecipe:
    """Return the recipe of the evaluation on the one benchmark that the analysis is of.

    Raises:
        UserError: suite or data are wrong, or the evaluation does not suit the analysis.
    """
    from mrt_hpc.evaluate.evaluation_alone import evaluation_recipe, narrowed

    def typed(suite: str | None, benchmark: str) -> str:
        """Return the command on a suite (None for the same one) and a benchmark, as the user types it."""
        words = (how if suite is None else replace(how, suite=suite)).options()
        return shlex.join(["mrt-hpc", "analyze", analysis.analysis, *analysis.what, *words, "--benchmark", benchmark])

    recipe = evaluation_recipe(asked, how.suite, how.overrides, how.results, how.data)
    return narrowed(recipe, analysed_benchmark(recipe, needs, analysis.benchmark, typed))
