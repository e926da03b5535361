"""Reads back what the roles of a run have measured, and says what is missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrt_hpc.analysis.model import EvaluationSummary, IterationMetrics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mrt_hpc.run.layout import RunLayout


@dataclass(frozen=True)
class Measurements:
    """What a run directory holds of the numbers that were planned."""

    iterations: tuple[IterationMetrics, ...]
    """In order."""
    evaluations: tuple[EvaluationSummary, ...]
    """By benchmark as planned, then by version."""
    missing: tuple[str, ...]
    """A sentence for each gap."""


def read_measurements(
    layout: RunLayout, iterations_planned: int, versions: Iterable[int], benchmarks: Iterable[str]
) -> Measurements:
    """The metrics of all planned iterations and the summaries of all planned evaluations that are there.

    Raises:
        UserError: a file is there and is not what its name says.
    """
    iterations, absent = [], []
    for number in range(iterations_planned):
        try:
            iterations.append(IterationMetrics.read(layout.metrics(number)))
        except FileNotFoundError:
            absent.append(number)
    missing = [f"metrics of iterations {as_ranges(absent)} of {iterations_planned}"] if absent else []
    evaluations = []
    wanted = list(versions)
    for benchmark in benchmarks:
        absent = []
        for version in wanted:
            try:
                evaluations.append(EvaluationSummary.read(layout.evaluation_summary(version, benchmark)))
            except FileNotFoundError:
                absent.append(version)
        if absent:
            missing.append(f"evaluation on {benchmark} of weights versions {as_ranges(absent)}")
    return Measurements(tuple(iterations), tuple(evaluations), tuple(missing))


def as_ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers in short: ``0-3, 7``."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)
