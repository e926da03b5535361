"""How reports write numbers."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mrt_hpc.analysis.intervals import IntervalEstimate

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


def share_text(estimate: "IntervalEstimate") -> str:
    """A text such as ``28.1 % (20.4 % to 37.3 %)``, or without an interval."""
    return estimate_text(estimate, percent)


def decimal_text(estimate: "IntervalEstimate") -> str:
    """A text such as ``0.281 (0.204 to 0.373)``, or without an interval."""
    return estimate_text(estimate, "{:.3f}".format)


def estimate_text(estimate: "IntervalEstimate", written: Callable[[float], str]) -> str:
    mean = written(estimate.mean)
    return f"{mean} ({written(estimate.low)} to {written(estimate.high)})" if math.isfinite(estimate.low) else mean


def interval(estimate: "IntervalEstimate") -> str:
    """A difference in percentage points: ``+1.3 (−0.4 to +3.0)``."""
    return f"{points(estimate.mean)} ({points(estimate.low)} to {points(estimate.high)})"


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
