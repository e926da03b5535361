"""``mrt-hpc analyze``: analyses of evaluated samples, each as CSV, PNG and SVG."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from mrt_hpc.analysis.model_samples import Counted, ModelSamples, other_settings
from mrt_hpc.cli import options
from mrt_hpc.cli.generation import AnalysisAsked, analysing, generated
from mrt_hpc.cli.options import console_of, print_notes, table_of
from mrt_hpc.errors import UserError
from mrt_hpc.evaluate.analysed_benchmark import Needs

if TYPE_CHECKING:
    from mrt_hpc.analysis.analysis_files import Analysis, DataTable
    from mrt_hpc.analysis.named_models import NamedModel


@click.group(short_help="Analyse regret, scaling, extrapolation, efficiency or progress.", epilog=options.WHAT)
def analyze() -> None:
    """Analyse the evaluated samples of models: tables as CSV, figures as PNG and SVG. Each model gives a line.

    \b
    Examples:
      mrt-hpc analyze regret   runs/mrt-online runs/grpo
      mrt-hpc analyze progress runs/mrt-online@0 runs/mrt-online
      mrt-hpc analyze scaling  runs/eval-paper_20
      mrt-hpc analyze regret runs/grpo runs/mrt-online --suite paper_regret --benchmark aime24
    """


def _budgets(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int, ...]:
    """The budgets of a text such as ``1024,2048``."""
    return tuple(map(int, _parts(text, r"0*[1-9]\d*", "1024,2048")))


def _accuracies(_: click.Context, __: click.Parameter, text: str | None) -> tuple[float, ...]:
    """The accuracies of a text such as ``0.3,0.4``."""
    return tuple(map(float, _parts(text, r"0?\.\d*[1-9]\d*|1(\.0*)?", "0.3,0.4")))


def _parts(text: str | None, form: str, example: str) -> list[str]:
    """The parts of a text with commas between them; none where the option was not given.

    Raises:
        BadParameter: a part has another form.
    """
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(form, part) for part in parts):
        raise click.BadParameter(f"{text!r} is not of the form {example}")
    return parts


count_tokens = click.option(
    "--tokens",
    type=click.Choice(["sampled", "all"]),
    help="The tokens that count before a boundary. Default: `evaluation.regret_tokens` of the first RUN or EVALDIR.",
)


def _counted(models: Sequence[ModelSamples], tokens: Counted | None) -> list[ModelSamples]:
    """The models with the tokens that the user asked for; None leaves those of their recipe."""
    return [model if tokens is None else replace(model, counted=tokens) for model in models]


@analyze.command(short_help="Normalised regret against the budget of tokens.", epilog=options.WHAT)
@analysing
@click.option("--budgets", metavar="TOKENS,...", callback=_budgets, help="Default: up to the longest trace.")
@count_tokens
def regret(asked: AnalysisAsked, budgets: tuple[int, ...], tokens: Counted | None) -> None:
    """Normalised regret against the budget of tokens, and how much of the area the first episodes give.

    \b
    Examples:
      mrt-hpc analyze regret runs/mrt-online@0 runs/mrt-online
      mrt-hpc analyze regret runs/mrt-online --budgets 4096,8192,12288,16384
    """
    from mrt_hpc.analysis.regret_by_budget import analyse_regret

    needs = Needs(values=True, answers=tokens == "all", episodes=True)
    _write(asked, needs, lambda models: analyse_regret(_counted(models, tokens), budgets))


@analyze.command(short_help="Votes at each episode against complete samples of equal tokens.", epilog=options.WHAT)
@analysing
@click.option(
    "--margin",
    type=click.FloatRange(0, 100, min_open=True, max_open=True),
    default=2.0,
    show_default=True,
    metavar="POINTS",
    help="The loss, in percentage points, below which a vote at an earlier episode counts as good as the last one.",
)
def scaling(asked: AnalysisAsked, margin: float) -> None:
    """Whether thinking pays: votes of answers that are forced at each episode, and votes of complete samples.

    \b
    Examples:
      mrt-hpc analyze scaling runs/mrt-online
      mrt-hpc analyze scaling runs/mrt-online runs/without-thinking
    """
    from mrt_hpc.analysis.scaling import analyse_scaling

    needs = Needs(values=True, answers=True, episodes=True)
    _write(asked, needs, lambda models: analyse_scaling(models, margin / 100))


@analyze.command(short_help="Mean progress by episode, split by outcome and difficulty.", epilog=options.WHAT)
@analysing
def progress(asked: AnalysisAsked) -> None:
    """Mean progress V(j+1) - V(j) by episode, split by outcome and by how hard the problem is.

    \b
    Examples:
      mrt-hpc analyze progress runs/mrt-online@0 runs/mrt-online
    """
    from mrt_hpc.analysis.episode_progress import analyse_progress

    needs = Needs(values=True, episodes=True)
    _write(asked, needs, analyse_progress)


@analyze.command(short_help="Tokens to a given accuracy, and their ratio between models.", epilog=options.WHAT)
@analysing
@click.option(
    "--accuracy",
    "accuracies",
    metavar="SHARE,...",
    callback=_accuracies,
    help="Default: shares of the best accuracy that all models reach.",
)
@count_tokens
@click.option("--seed", type=int, default=0, show_default=True, help="The seed of the bootstrap.")
def efficiency(asked: AnalysisAsked, accuracies: tuple[float, ...], tokens: Counted | None, seed: int) -> None:
    """Tokens to a given accuracy, those of the answer included; ratios are to the first model.

    \b
    Examples:
      mrt-hpc analyze efficiency runs/grpo runs/mrt-online --accuracy 0.3,0.4
    """
    from mrt_hpc.analysis.efficiency import analyse_efficiency

    needs = Needs(values=tokens == "all", answers=tokens == "all")
    _write(asked, needs, lambda models: analyse_efficiency(_counted(models, tokens), accuracies, seed))


@analyze.command(short_help="Accuracy past the budget of the training.", epilog=options.WHAT)
@analysing
def extrapolate(asked: AnalysisAsked) -> None:
    """Accuracy against the budget of thinking, past that of the training: evaluations whose mode is extrapolation.

    \b
    Examples:
      mrt-hpc analyze extrapolate runs/grpo runs/mrt-online --suite paper_extrapolation --benchmark aime24
      mrt-hpc analyze extrapolate runs/eval-paper_extrapolation-grpo-1a2b3c4d
    """
    from mrt_hpc.analysis.accuracy_by_budget import analyse_extrapolation

    needs = Needs(values=True, budgets=True)
    _write(asked, needs, analyse_extrapolation)


def _write(asked: AnalysisAsked, needs: Needs, analyse: Callable[[list[ModelSamples]], Analysis]) -> None:
    """Read the models, write the analysis, and print its summary and paths. Where a suite is named, what is not there
    yet is generated or queued before.
    """
    from mrt_hpc.analysis.analysis_files import write_analysis
    from mrt_hpc.analysis.named_models import named_models

    what: Sequence[str] = asked.what
    if asked.generation is not None:
        if (evaluation := generated(asked, asked.generation, needs)) is None:
            return
        what = [str(evaluation)]
    named = named_models(what)
    models = _read(named, asked.benchmark)
    analysis = analyse(models)
    out = asked.out or named[0].run.layout.root / "analysis" / asked.analysis
    out.mkdir(parents=True, exist_ok=True)
    paths = write_analysis(analysis, out)
    _print_table(f"{analysis.summary.name} on {models[0].benchmark}", analysis.summary)
    for verdict in analysis.verdicts:
        click.echo(verdict)
    print_notes([*analysis.remarks, *other_settings(models[0], models[1:])])
    for path in paths:
        click.echo(path)


def _read(named: Sequence[NamedModel], benchmark: str | None) -> list[ModelSamples]:
    """The samples of the models on one benchmark.

    Raises:
        UserError: it is not said on which, or the models were evaluated on different problems.
    """
    from mrt_hpc.analysis.named_models import chosen_benchmarks, read_models, require_same_problems

    benchmarks = chosen_benchmarks(named, () if benchmark is None else (benchmark,))
    if len(benchmarks) > 1:
        raise UserError(
            "the models share several benchmarks, and an analysis is of one",
            where="--benchmark",
            expected=f"one of {', '.join(benchmarks)}",
            advice=f"--benchmark {benchmarks[0]}",
        )
    models = [samples for (samples,) in read_models(named, benchmarks)]
    require_same_problems(models)
    return models


def _print_table(title: str, table: DataTable) -> None:
    shown = table_of(title, *table.columns)
    for row in table.rows:
        shown.add_row(*map(str, row))
    console_of(sys.stdout).print(shown)
