"""The console that commands print tables and sentences to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TextIO

import click
from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Iterable

FILE_WIDTH = 160
"""Columns of a table that goes to a file or a pipe."""


def console_of(stream: TextIO) -> Console:
    """A console as wide as the terminal or as the variable COLUMNS says; wide where there is neither."""
    return Console(file=stream, width=None if stream.isatty() or os.environ.get("COLUMNS") else FILE_WIDTH)


def print_notes(notes: Iterable[str]) -> None:
    """Print what a reader has to know beside the numbers, a line each."""
    for note in notes:
        click.echo(f"note: {note}")
