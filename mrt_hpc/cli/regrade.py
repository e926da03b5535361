"""``mrt-hpc regrade``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
from rich.table import Table

from mrt_hpc.analysis.number_formats import percent
from mrt_hpc.cli.console import console_of
from mrt_hpc.cli.status import open_run
from mrt_hpc.errors import word
from mrt_hpc.launch.regrade import regrade_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mrt_hpc.launch.regrade import Regraded


def regrade(runs: Sequence[Path]) -> None:
    """Judge the samples of runs' evaluations again, and print the verdicts that changed.

    Raises:
        UserError: a directory is no run, or its tasks are queued or running.
    """
    console = console_of(sys.stdout)
    for run in runs:
        layout, _ = open_run(run)
        for one in regrade_run(layout, click.echo):
            before, now = (percent(accuracy) for accuracy in one.accuracy)
            click.echo(
                f"version {one.version} on {one.benchmark}: {len(one.changed)} of {one.samples} verdicts changed, "
                f"pass@1 {before} -> {now}"
            )
            if one.changed:
                console.print(_table(one))
        click.echo(f"mrt-hpc report {word(run)} writes the report with these verdicts")


def _table(regraded: Regraded) -> Table:
    table = Table(title="changed verdicts", title_justify="left")
    for column in ("problem", "sample", "gold", "answer before", "answer now", "reward before", "reward now"):
        table.add_column(column, overflow="fold")
    for one in regraded.changed:
        answers = [answer or "none" for answer in one.answers]
        table.add_row(one.problem_id, str(one.sample), one.gold, *answers, *(f"{reward:g}" for reward in one.rewards))
    return table
