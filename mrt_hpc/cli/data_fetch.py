"""``mrt-hpc data fetch``: data sets of the hub by their names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mrt_hpc.datasets.fetch import Fetched

LISTED = 10
"""The number of rows that were left out that are listed one by one."""


@click.command(short_help="Fetch a data set from the Hugging Face hub.")
@click.argument("name", required=False)
@click.argument("output", metavar="[OUT]", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--list", "listing", is_flag=True, help="List the names that are known, and what each of them means.")
@click.option("--drop-bad", is_flag=True, help="Leave out rows of a data set of the hub that make no problem.")
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
def fetch(name: str | None, output: Path | None, listing: bool, drop_bad: bool, force: bool) -> None:
    """Fetch the data set NAME and write it to OUT, one JSON object a line with id, problem and answer.

    NAME is one of the data sets of the paper, whose commits are fixed, or hub:OWNER/NAME[@REVISION][/SPLIT]. Without
    OUT the file is data/NAME.jsonl. OUT.source.json keeps the commit and the checksums. Type it on a node with network
    access; a file that is there already is not fetched again.

    \b
    Examples:
      mrt-hpc data fetch --list
      mrt-hpc data fetch math500
      mrt-hpc data fetch numina_math_4000 /shared/me/data/numina_math_4000.jsonl
      mrt-hpc data fetch hub:openai/gsm8k/test
    """
    from mrt_hpc.datasets.fetch import fetch_data
    from mrt_hpc.errors import UserError

    if listing:
        _print_list()
        return
    if name is None:
        raise UserError("the name of a data set is missing", advice="mrt-hpc data fetch --list")
    _print(fetch_data(name, output, drop_bad=drop_bad, force=force))


def _print(fetched: Fetched) -> None:
    """Print what was written, where it is from, and what to type next."""
    from mrt_hpc.datasets.source_record import record_file

    record, output = fetched.prepared.record, fetched.prepared.output
    drawn = f", a sample of {record.sampled_of:,} with seed {record.sample_seed}" if record.sampled_of else ""
    kept = f", {record.kept}" if record.kept else ""
    click.echo(f"{'wrote' if fetched.new else 'there already:'} {output}: {record.problems:,} problems{kept}{drawn}")
    commit = "" if record.revision is None or record.revision in record.source else f", commit {record.revision}"
    click.echo(f"  from {record.source}{commit}: {record.rows:,} rows")
    if record.dropped:
        click.echo(f"  {record.dropped:,} rows made no problem and were left out")
    for row in () if drawn else fetched.prepared.dropped[:LISTED]:
        click.echo(f"    {row.where}: {row.reason}")
    click.echo(f"  source and checksums: {record_file(output)}")
    click.echo(f"next: mrt-hpc data check {output}")


def _print_list() -> None:
    """Print the known data sets."""
    import sys

    from rich.table import Table

    from mrt_hpc.cli.console import console_of
    from mrt_hpc.datasets.named import SOURCES

    table = Table(title="data sets of the paper", title_justify="left")
    for column in ("name", "problems", "of rows", "meaning", "on the hub", "split", "columns"):
        table.add_column(column, justify="right" if column in ("problems", "of rows") else "left", overflow="fold")
    for source in SOURCES:
        columns = f"{source.columns.problem}, {source.columns.answer}"
        place = f"{source.repository}@{source.revision[:8]}"
        counts = (f"{source.problems:,}", f"{source.rows:,}")
        table.add_row(source.name, *counts, source.about, place, source.split, columns)
    console = console_of(sys.stdout)
    console.print(table)
    console.print("next: mrt-hpc data fetch NAME", highlight=False)
