"""All that a command writes to a terminal, a file or a pipe. Texts of others, such as names of folders and model
output, have no effect there: each character is seen, and markup is text.
"""

import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator
from io import TextIOWrapper
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.style import Style
from rich.table import Table
from rich.text import Text

from mrt_hpc.errors import visible

FILE_WIDTH = 160
"""Of a table that goes to a file or a pipe."""
LONGEST = 30
"""From so many characters on a column may break a word, such as a path."""


class ClosedPipe(Exception):
    """The program that reads what this one writes has gone."""


class Terminal(Console):
    """As wide as the terminal or the variable COLUMNS says; wide where there is neither."""

    def __init__(self, stream: TextIO) -> None:
        width = None if stream.isatty() or os.environ.get("COLUMNS") else FILE_WIDTH
        super().__init__(file=stream, width=width, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Invisible characters take room too."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Control codes of the program's own, and texts that have none."""
        for part in super().render(renderable, options):
            yield part if part.control else Segment(visible(part.text), part.style)

    def on_broken_pipe(self) -> None:
        """Write the rest to nowhere, and raise ClosedPipe."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())
        raise ClosedPipe


def prepare_streams() -> None:
    """Drop a variable COLUMNS that is no width, such as the 0 of a shell without a terminal, which would empty tables.
    Write characters that the terminal's encoding lacks by their numbers.
    """
    width = os.environ.get("COLUMNS", "")
    if not width.isdecimal() or int(width) == 0:
        os.environ.pop("COLUMNS", None)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def echo(text: object = "", style: str = "", *, err: bool = False, end: str = "\n") -> None:
    """Write a text without further line breaks; with ``err``, to stderr."""
    segment = Segment(f"{text}{end}", Style.parse(style))
    Terminal(sys.stderr if err else sys.stdout).print(Segments([segment]), soft_wrap=True)


def echo_json(value: object) -> None:
    """For programs; a number that JSON lacks becomes null."""
    from pydantic_core import to_jsonable_python  # a help page does without

    echo(json.dumps(to_jsonable_python(value, inf_nan_mode="null"), indent=2, allow_nan=False))


def print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        echo(f"note: {note}")


# -- tables ------------------------------------------------------------------------------------------------------------


class FittedTable(Table):
    """Keeps words and numbers whole: where it is too wide for that, its rows are paragraphs."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        texts = [[visible(str(cell)) for cell in (one.header, *one.cells, one.footer)] for one in self.columns]
        most = [_widest(line for text in column for line in text.split("\n")) for column in texts]
        # to keep words whole, but for very long ones
        least = [min(LONGEST, _widest(word for text in column for word in text.split())) for column in texts]
        _, right, _, left = self.padding
        room = options.max_width - len(most) * (left + right) - (len(most) + 1 if self.box else 0)
        if sum(least) > room:
            yield from self._paragraphs(options.max_width)
            return
        for column, width in zip(self.columns, _share_room(room, least, most), strict=True):
            column.width = width
        yield from super().__rich_console__(console, options)

    def _paragraphs(self, width: int) -> Iterator[RenderableType]:
        """The title; then the first cell of each row, with the others below it, each behind its column's name."""
        if self.title:
            yield Text(str(self.title), "bold")
        footers = [column.footer for column in self.columns] if self.show_footer else []
        names = [str(column.header) for column in self.columns]
        for first, *others in [*zip(*(column.cells for column in self.columns), strict=True), *filter(None, [footers])]:
            yield _cell_text(first)
            named = zip(names[1:], others, strict=True)
            values = [Text.assemble((f"{name}: ", "dim"), _cell_text(cell)) for name, cell in named if str(cell)]
            yield from (Padding(line, (0, 0, 0, 2), expand=False) for line in _lines(values, width - 2))


def _cell_text(cell: RenderableType) -> Text:
    return cell if isinstance(cell, Text) else Text(visible(str(cell)))


def _lines(texts: Iterable[Text], width: int) -> list[Text]:
    """None is broken that fits a line."""
    lines: list[Text] = []
    for text in texts:
        if lines and lines[-1].cell_len + 2 + text.cell_len <= width:
            lines[-1] = Text("; ").join([lines[-1], text])
        else:
            lines.append(text)
    return lines


def _widest(texts: Iterable[str]) -> int:
    return max(map(cell_len, texts), default=0)


def _share_room(room: int, least: list[int], most: list[int]) -> list[int]:
    """Columns in so much room together: the widest give way, down to their least."""
    widths = list(most)
    while sum(widths) > room:
        widest = max((n for n, width in enumerate(widths) if width > least[n]), key=widths.__getitem__)
        widths[widest] -= 1
    return widths


def table_of(title: str | None, *columns: str, right: Collection[str] = (), bare: bool = False) -> FittedTable:
    """No rows; long texts fold, columns of ``right`` are numbers. A bare table has no lines."""
    look: dict[str, Any] = {"box": None, "pad_edge": False, "padding": (0, 2, 0, 0)} if bare else {}
    table = FittedTable(title=title, title_justify="left", **look)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table
