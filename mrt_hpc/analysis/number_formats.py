"""How reports write numbers."""

import csv
import math
from collections.abc import Iterable
from io import StringIO

DASH = "–"


def cell(value: object) -> str:
    """The text cannot break a table."""
    return str(value).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def percent(share: float | None) -> str:
    """A text such as ``28.1 %``."""
    return DASH if share is None else f"{100 * share:.1f} %"


def points(difference: float) -> str:
    """A difference of shares in percentage points: ``+1.3``."""
    tenths = round(100 * difference, 1) + 0.0  # no "−0.0"
    return f"{tenths:+.1f}".replace("-", "−")


def number(value: float | None) -> str:
    """The number has three significant digits, scientific where that is shorter to read."""
    if value is None:
        return DASH
    if not math.isfinite(value):
        return str(value)
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.2e}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def count(value: int | None) -> str:
    """The number has separators."""
    return DASH if value is None else f"{value:,}"


def duration(seconds: float | None) -> str:
    """The two largest units that matter: ``3 h 12 min``."""
    if seconds is None:
        return DASH
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def plural(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def span_text(numbers: Iterable[int]) -> str:
    """Ascending numbers in short: ``0-3, 7``."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)


def csv_text(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    stream = StringIO()
    csv.writer(stream, lineterminator="\n").writerows([columns, *rows])
    return stream.getvalue()
