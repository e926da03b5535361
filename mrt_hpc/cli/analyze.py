"""``mrt-hpc analyze``: analyses of evaluated samples, each as CSV, PNG and SVG."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from mrt_hpc.analysis.analysis_files import Analysis, DataTable
    from mrt_hpc.analysis.model_samples import ModelSamples


@click.group(short_help="Analyse regret, scaling, efficiency or progress of models.")
def analyze() -> None:
    """Analyse the evaluated samples of models: tables as CSV, figures as PNG and SVG.

    WHAT is a run directory, or RUN@VERSION for one of its weights versions (default: the last that was evaluated).
    Several of them give a line each.

    \b
    Examples:
      mrt-hpc analyze regret   runs/mrt-online runs/grpo
      mrt-hpc analyze progress runs/mrt-online@0 runs/mrt-online
    """


class PositiveNumbers(click.ParamType):
    """Positive numbers with commas between them."""

    name = "numbers"

    def __init__(self, kind: type[int] | type[float]) -> None:
        self.kind = kind

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """The numbers of a text such as ``1024,2048``; anything else is a wrong use of the command."""
        try:
            found = tuple(self.kind(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as 1024,2048", param, ctx)
        if min(found) <= 0:
            self.fail(f"{value!r} has a number that is not positive", param, ctx)
        return found


WHAT = click.argument("what", nargs=-1, required=True, metavar="WHAT...")
OUT = click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="The directory of the results. Default: analysis/NAME in the first run directory.",
)
BENCHMARK = click.option("--benchmark", help="The benchmark; needed where a run has several.")


@analyze.command(short_help="Normalised regret against the budget of tokens.")
@WHAT
@OUT
@BENCHMARK
@click.option("--budgets", metavar="TOKENS,...", type=PositiveNumbers(int), help="Default: up to the longest trace.")
@click.option(
    "--tokens",
    type=click.Choice(["sampled", "all"]),
    default="sampled",
    show_default=True,
    help="The tokens that count before a boundary, as `evaluation.regret_tokens`.",
)
def regret(
    what: tuple[str, ...],
    out: Path | None,
    benchmark: str | None,
    budgets: tuple[int, ...] | None,
    tokens: Literal["sampled", "all"],
) -> None:
    """Normalised regret against the budget of tokens, and how much of the area the first episodes give.

    \b
    Examples:
      mrt-hpc analyze regret runs/mrt-online@0 runs/mrt-online
      mrt-hpc analyze regret runs/mrt-online --budgets 4096,8192,12288,16384
    """
    from mrt_hpc.analysis.regret_by_budget import analyse_regret

    _write("regret", what, out, benchmark, lambda models: analyse_regret(models, budgets or (), tokens))


def _write(
    name: str,
    what: tuple[str, ...],
    out: Path | None,
    benchmark: str | None,
    analyse: Callable[[list[ModelSamples]], Analysis],
) -> None:
    """Read the models, write the analysis, and print its summary and paths."""
    from mrt_hpc.analysis.analysis_files import write_analysis
    from mrt_hpc.analysis.named_models import read_models, root_of

    models = read_models(what, benchmark)
    analysis = analyse(models)
    paths = write_analysis(analysis, root_of(what[0]) / "analysis" / name if out is None else out)
    _print_table(f"{analysis.summary.name} on {models[0].benchmark}", analysis.summary)
    for remark in analysis.remarks:
        click.echo(remark)
    for path in paths:
        click.echo(path)


def _print_table(title: str, table: DataTable) -> None:
    from rich.table import Table

    from mrt_hpc.cli.console import console_of

    shown = Table(title=title, title_justify="left")
    for column in table.columns:
        shown.add_column(column, overflow="fold")
    for row in table.rows:
        shown.add_row(*map(str, row))
    console_of(sys.stdout).print(shown)
