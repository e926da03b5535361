"""The console that commands print tables and sentences to."""

from __future__ import annotations

import os
from typing import TextIO

from rich.console import Console

FILE_WIDTH = 160
"""Columns of a table that goes to a file or a pipe."""


def console_of(stream: TextIO) -> Console:
    """A console as wide as the terminal or as the variable COLUMNS says; wide where there is neither."""
    return Console(file=stream, width=None if stream.isatty() or os.environ.get("COLUMNS") else FILE_WIDTH)
