"""Comparisons as rows of plain numbers, for CSV and JSON, and the notes that a reader of them needs."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from io import StringIO
from typing import Any

import numpy as np

from mrt_hpc.analysis.comparing import Comparison, Side, counted, quantity, requirement, verdict
from mrt_hpc.analysis.model_samples import other_settings
from mrt_hpc.analysis.named_models import Arm
from mrt_hpc.analysis.problem_measures import MajorityAtK, Regret
from mrt_hpc.mrt.votes import RULE


def row_of(comparison: Comparison, points: float) -> dict[str, Any]:
    """A comparison in plain numbers, shares in [0, 1] or tokens, by the columns of the CSV file.

    ``detectable`` is the smallest difference that 80 % of such comparisons would show, None where a single problem
    shows nothing. ``asked`` is the difference that the next three columns are about; ``seeds_needed`` are those of each
    arm where both have several runs, None where more than a thousand are needed.

    Args:
        comparison: of two models.
        points: the difference to be shown, see ``asked_difference``.
    """
    asked = asked_difference(comparison, points)
    needed = comparison.needed(asked)
    gain, scale = comparison.gain.interval, comparison.scale
    return {
        "benchmark": comparison.benchmark,
        "measure": comparison.measure.name,
        "problems": comparison.problems,
        **_columns("first", comparison.first),
        **_columns("second", comparison.second),
        "difference": gain.mean * scale,
        "difference_low": gain.low * scale,
        "difference_high": gain.high * scale,
        "p": comparison.gain.p_value,
        "corrected_p": comparison.corrected_p,
        "detectable": finite(comparison.detectable),
        "asked": asked,
        "problems_needed": None if needed is None else needed.problems,
        "samples_needed": None if needed is None else needed.samples,
        "seeds_needed": comparison.seeds_needed(asked),
        "verdict": verdict(comparison),
        "requirement": requirement(comparison, asked),
    }


def _columns(which: str, side: Side) -> dict[str, Any]:
    """The columns of one side: its runs, each with a seed of its own, and None for the deviation of a single run."""
    low, high = (None, None) if side.interval is None else map(finite, (side.interval.low, side.interval.high))
    return {
        which: side.name,
        f"{which}_runs": side.runs,
        f"{which}_samples": side.samples,
        f"{which}_mean": side.mean,
        f"{which}_low": low,
        f"{which}_high": high,
        f"{which}_deviation": side.deviation,
    }


def finite(number: float) -> float | None:
    """The number, or None where it is infinite: JSON has no such number."""
    return number if math.isfinite(number) else None


def asked_difference(comparison: Comparison, points: float) -> float:
    """The difference of so many percentage points in the measure's unit; of tokens, per cent of the first model's."""
    return points / 100 * (1.0 if comparison.measure.is_share else comparison.first.mean)


def csv_of(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as CSV with a heading."""
    stream = StringIO()
    writer = csv.DictWriter(stream, [*rows[0]], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


FEW = 10
"""Below so many problems an interval depends on how the gains are distributed."""


def notes(comparisons: Sequence[Comparison], arms: Sequence[Sequence[Arm]]) -> list[str]:
    """What a reader has to know beside the numbers, a sentence each.

    Args:
        comparisons: all that were made together.
        arms: the samples of each arm, one item a benchmark.
    """
    several = any(len(arm[0].runs) > 1 for arm in arms)
    over = "problems, and over the seeds of an arm of several runs" if several else "problems"
    sentences = [
        f"intervals are 95 %, over {over}; a difference that can be shown is found in 80 % of such comparisons"
    ]
    sentences += _on_seeds(comparisons)
    if len(comparisons) > 1:
        corrected = f"p, verdicts and differences that can be shown are corrected for {len(comparisons)} comparisons"
        sentences.append(f"{corrected} (Holm); intervals are not")
    if any(isinstance(comparison.measure, MajorityAtK) for comparison in comparisons):
        sentences.append(RULE)
    if any(isinstance(comparison.measure, Regret) for comparison in comparisons):
        first = arms[0][0].runs[0]
        sentences.append(
            f"regret of all counts the {first.counted} tokens, as evaluation.regret_tokens of {first.name}"
        )
    sentences += dict.fromkeys(_on_problems(comparison) for comparison in comparisons if comparison.left_out)
    sentences += dict.fromkeys(_on_few(comparison) for comparison in comparisons if comparison.problems < FEW)
    runs = [[run for arm in of_benchmark for run in arm.runs] for of_benchmark in zip(*arms, strict=True)]
    return sentences + [note for mine in runs for note in other_settings(mine[0], mine[1:], seeds=not several)]


def _on_seeds(comparisons: Sequence[Comparison]) -> list[str]:
    """How far the runs of an arm differ, and what follows where an arm has a single one."""
    sentences = list(
        dict.fromkeys(
            _on_seeds_of(side, comparison) for comparison in comparisons for side in comparison.sides if side.runs > 1
        )
    )
    if all(comparison.of_recipes for comparison in comparisons):
        return sentences
    about = "a verdict with a single run on a side is about trained models and not about recipes"
    other = "another training seed of the same recipe may differ from it by about as much"
    return [f"{about}: {other}; --arm NAME=RUN,RUN,... takes the seeds of a recipe as one arm", *sentences]


def _on_seeds_of(side: Side, comparison: Comparison) -> str:
    most, deviation = (quantity(comparison.measure, x) for x in (float(np.ptp(side.means)), side.deviation or 0.0))
    where = f"{comparison.measure.name} on {comparison.benchmark}"
    return f"the {side.runs} seeds of {side.name} differ by up to {most} in {where} (standard deviation {deviation})"


def _on_problems(comparison: Comparison) -> str:
    names = f"{comparison.first.name} and {comparison.second.name}"
    return f"{comparison.left_out} problems of {comparison.benchmark} are left out, which not both of {names} have"


def _on_few(comparison: Comparison) -> str:
    return (
        f"{comparison.benchmark} has {counted(comparison.problems, 'problem')}: with fewer than {FEW} an interval "
        "assumes that gains follow a normal distribution; where a few problems gain much more than the others, it "
        "holds the truth less often than it says"
    )
