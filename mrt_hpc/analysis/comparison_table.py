"""Comparisons as rows of numbers, for CSV and JSON, and the notes that belong to them."""

from __future__ import annotations

import csv
import math
from dataclasses import asdict, dataclass, fields
from io import StringIO
from typing import TYPE_CHECKING, Any

from mrt_hpc.analysis.comparing import requirement, verdict
from mrt_hpc.analysis.model_samples import other_settings
from mrt_hpc.analysis.problem_measures import MajorityAtK
from mrt_hpc.mrt.votes import RULE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mrt_hpc.analysis.comparing import Comparison, Side
    from mrt_hpc.analysis.model_samples import ModelSamples


@dataclass(frozen=True)
class ComparisonRow:
    """One comparison in plain numbers: shares in [0, 1], or tokens."""

    benchmark: str
    measure: str
    problems: int
    first: str
    first_samples: int
    first_mean: float
    first_low: float | None
    first_high: float | None
    second: str
    second_samples: int
    second_mean: float
    second_low: float | None
    second_high: float | None
    difference: float
    """Of the second over the first."""
    difference_low: float
    difference_high: float
    p: float
    corrected_p: float
    """With Holm's correction."""
    detectable: float | None
    """The smallest difference that 80 % of such comparisons would show; None where a single problem tells nothing."""
    asked: float
    """The difference that the next two are about."""
    problems_needed: int | None
    samples_needed: int | None
    verdict: str
    requirement: str | None


def row_of(comparison: Comparison, points: float) -> ComparisonRow:
    """A comparison as a row.

    Args:
        comparison: of two models.
        points: the difference to be told, see ``asked_difference``.
    """
    asked = asked_difference(comparison, points)
    needed = comparison.needed(asked)
    gain, scale = comparison.gain.interval, comparison.scale
    return ComparisonRow(
        benchmark=comparison.benchmark,
        measure=comparison.measure.name,
        problems=comparison.problems,
        **_side("first", comparison.first),
        **_side("second", comparison.second),
        difference=gain.mean * scale,
        difference_low=gain.low * scale,
        difference_high=gain.high * scale,
        p=comparison.gain.p_value,
        corrected_p=comparison.corrected_p,
        detectable=finite(comparison.detectable),
        asked=asked,
        problems_needed=None if needed is None else needed.problems,
        samples_needed=None if needed is None else needed.samples,
        verdict=verdict(comparison),
        requirement=requirement(comparison, asked),
    )


def _side(which: str, side: Side) -> dict[str, Any]:
    ends = (None, None) if side.interval is None else map(finite, (side.interval.low, side.interval.high))
    values = (side.name, side.samples, side.mean, *ends)
    return dict(zip([which, *(f"{which}_{of}" for of in ("samples", "mean", "low", "high"))], values, strict=True))


def finite(number: float) -> float | None:
    """The number, or None where it is infinite: JSON has no such number."""
    return number if math.isfinite(number) else None


def asked_difference(comparison: Comparison, points: float) -> float:
    """The difference of so many percentage points in the measure's unit; of tokens, per cent of the first model's."""
    return points / 100 * (1.0 if comparison.measure.is_share else comparison.first.mean)


def csv_of(rows: Sequence[ComparisonRow]) -> str:
    """The rows as CSV with a heading."""
    stream = StringIO()
    writer = csv.DictWriter(stream, [field.name for field in fields(ComparisonRow)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return stream.getvalue()


def notes(comparisons: Sequence[Comparison], models: Sequence[Sequence[ModelSamples]]) -> list[str]:
    """What a reader has to know beside the numbers, a sentence each.

    Args:
        comparisons: all that were made together.
        models: the samples of each model, one item a benchmark.
    """
    found = ["intervals are 95 %, over problems; a difference that can be shown is found in 80 % of such comparisons"]
    if len(comparisons) > 1:
        corrected = f"p, verdicts and differences that can be shown are corrected for {len(comparisons)} comparisons"
        found.append(f"{corrected} (Holm); intervals are not")
    if any(isinstance(one.measure, MajorityAtK) for one in comparisons):
        found.append(RULE)
    found += dict.fromkeys(_left_out(one) for one in comparisons if one.left_out)
    return found + [note for samples in zip(*models, strict=True) for note in other_settings(samples[0], samples[1:])]


def _left_out(one: Comparison) -> str:
    names = f"{one.first.name} and {one.second.name}"
    return f"{one.left_out} problems of {one.benchmark} are left out, which not both of {names} have"
