"""Prints what ``mrt-hpc data`` has prepared and found."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from rich.markup import escape
from rich.table import Table

from mrt_hpc.cli.console import console_of
from mrt_hpc.datasets.findings import FindingKind
from mrt_hpc.datasets.source_record import record_file

if TYPE_CHECKING:
    from rich.console import Console

    from mrt_hpc.datasets.findings import CheckReport, Finding, Place
    from mrt_hpc.datasets.prepare import Prepared

SHOWN = 10
"""The number of findings of one kind that are listed for a file, or for two files."""
DOUBTFUL_SHOWN = 5
"""The number of rows with several boxes that are named."""
SHOWN_CHARS = 100
"""The number of characters of a text in a list."""

TITLES = {
    FindingKind.CHANGED_FILE: "changed files",
    FindingKind.BAD_LINE: "bad lines",
    FindingKind.REPEATED_ID: "repeated ids",
    FindingKind.REPEATED_PROBLEM: "repeated problems",
    FindingKind.SIMILAR_PROBLEM: "similar problems",
    FindingKind.UNREADABLE_ANSWER: "unreadable answers",
    FindingKind.SPECIAL_TOKEN: "special tokens",
    FindingKind.SHARED_PROBLEM: "problems in both",
    FindingKind.SHARED_SIMILAR_PROBLEM: "similar problems in both",
}
OF_PAIRS = (FindingKind.SHARED_PROBLEM, FindingKind.SHARED_SIMILAR_PROBLEM)
OF_FILES = tuple(kind for kind in TITLES if kind not in OF_PAIRS)


def print_prepared(prepared: Prepared) -> None:
    """Print what was written, from which columns, and which rows were left out."""
    record = prepared.record
    part = f" ({record.config}, {record.split})" if record.split else ""
    revision = f" at {record.revision}" if record.revision else ""
    click.echo(f"wrote {prepared.output}: {record.problems} problems of {record.rows} rows")
    click.echo(f"  from {record.source}{part}{revision}: {', '.join(file.name for file in record.files)}")
    click.echo(
        f"  problem from column {record.columns.problem}, answer from {record.columns.answer}, "
        + (f"id from {record.columns.id}" if record.columns.id else "ids made")
    )
    if record.columns.choices:
        click.echo(f"  choices from {record.columns.choices}: the answers are letters, for the verifier choice")
    if prepared.unread:
        click.echo(f"  not read: {_printable(', '.join(prepared.unread))}")
    if prepared.doubtful:
        shown = ", ".join(prepared.doubtful[:DOUBTFUL_SHOWN])
        click.echo(
            f"  {len(prepared.doubtful)} solutions box different answers, of which the last is the gold answer: "
            f"look at {_printable(shown)}"
        )
    click.echo(f"  its source is told in {record_file(prepared.output)}")
    for row in prepared.dropped:
        click.echo(f"left out {_printable(row.where)}: {_printable(row.reason)}", err=True)


def print_checked(report: CheckReport, *, as_json: bool) -> None:
    """Print the findings: as tables of their numbers and lists of the first of each kind, or all as JSON."""
    if as_json:
        click.echo(json.dumps({"clean": report.clean, **asdict(report)}, indent=2))
        return
    console = console_of(sys.stdout)
    console.print(_file_table(report))
    if report.compared:
        pairs = _pair_table(report)
        console.print(pairs if pairs.rows else pairs.title, highlight=False)
    for kind in TITLES:
        _print_kind(console, report, kind)
    console.print("nothing was found" if report.clean else f"{len(report.findings)} findings", highlight=False)


def _file_table(report: CheckReport) -> Table:
    table = Table(title="each file", title_justify="left")
    for column in ("file", "problems", *(TITLES[kind] for kind in OF_FILES)):
        table.add_column(column, justify="left" if column == "file" else "right", overflow="fold")
    for checked in report.files:
        counts = [str(len(report.of(kind, checked.file)) or "") for kind in OF_FILES]
        table.add_row(escape(checked.file), str(checked.problems), *counts)
    return table


def _pair_table(report: CheckReport) -> Table:
    """The pairs that share problems; the title counts all."""
    table = Table(title_justify="left")
    for column in ("file", "other file", *(TITLES[kind] for kind in OF_PAIRS)):
        table.add_column(column, justify="left" if column.endswith("file") else "right", overflow="fold")
    for one, other in report.compared:
        counts = [len(report.of(kind, one, other)) for kind in OF_PAIRS]
        if any(counts):
            table.add_row(escape(one), escape(other), *(str(count or "") for count in counts))
    table.title = f"{table.row_count} of {len(report.compared)} pairs of files share problems"
    return table


def _print_kind(console: Console, report: CheckReport, kind: FindingKind) -> None:
    """List the findings of one kind, the first of each file or pair of files."""
    found = [finding for finding in report.findings if finding.kind is kind]
    for files in dict.fromkeys(finding.files for finding in found):
        of_files = [finding for finding in found if finding.files == files]
        console.print(f"[bold]{TITLES[kind]}:[/] {escape(' and '.join(files))}", highlight=False, soft_wrap=True)
        for finding in of_files[:SHOWN]:
            console.print(f"  {escape(_line(finding))}", highlight=False, soft_wrap=True)
        if len(of_files) > SHOWN:
            console.print(f"  and {len(of_files) - SHOWN} more; --json tells all", highlight=False)


def _line(finding: Finding) -> str:
    """The places of a finding, and what was found."""
    places = ", ".join(_place(place) for place in finding.places if place.line)
    overlap = f"overlap {finding.overlap:.2f}" if finding.overlap is not None else ""
    return _printable("; ".join(filter(None, (places, overlap, _cut(finding.detail)))))


def _place(place: Place) -> str:
    return f"line {place.line}" + (f" ({place.id})" if place.id else "")


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."


def _printable(text: str) -> str:
    """A text that any terminal can show: halves of characters and control characters are written as escapes."""
    plain = text.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in plain)
