"""Reads the measurements of the roles of a run, and lists what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics
from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import EvaluationUnit
from mrt_hpc.run.evaluation_settings import EvaluationSettings, has_samples, passed_over, versions_evaluated
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.typed_file import readable


@dataclass(frozen=True)
class Measurements:
    """The planned measurements that a run directory contains."""

    iterations: tuple[IterationMetrics, ...]
    """All iterations, in order."""
    evaluations: tuple[EvaluationSummary, ...]
    """Sorted by benchmark as planned, then by version."""
    missing: tuple[str, ...]
    """A sentence for each gap."""
    unmade: tuple[str, ...] = ()
    """A sentence for each gap that will stay: what cannot be made any more."""
    unreadable: tuple[str, ...] = ()
    """A line for each file that is there and cannot be read."""


def read_measurements(
    layout: RunLayout, iterations_planned: int, versions: Iterable[int], settings: Mapping[str, EvaluationSettings]
) -> Measurements:
    """The metrics of all planned iterations and the summaries of all planned evaluations that are there, and those of
    further versions that were made with the same settings.

    Args:
        layout: the run directory.
        iterations_planned: how many.
        versions: weights versions that are to be evaluated.
        settings: what each benchmark has to be evaluated with; summaries of other settings count as not there.
    """
    iterations, unreadable = readable(map(layout.metrics, range(iterations_planned)), IterationMetrics.read)
    absent = sorted(set(range(iterations_planned)).difference(metrics.iteration for metrics in iterations))
    missing = [f"metrics of iterations {as_ranges(absent)} of {iterations_planned}"] if absent else []
    wanted, pruned = set(versions), set(passed_over(layout))
    evaluations, unmade = [], []
    for benchmark, asked in settings.items():
        summaries, faults = _summaries(layout, benchmark, wanted, asked)
        unreadable += faults
        evaluations += summaries
        absent = sorted(wanted.difference(summary.version for summary in summaries))
        if waited_for := [version for version in absent if version not in pruned]:
            missing.append(f"evaluation on {benchmark} of weights versions {as_ranges(waited_for)}")
        if gone := [version for version in absent if version in pruned]:
            unmade.append(
                f"evaluation on {benchmark} of weights versions {as_ranges(gone)}, which had been pruned before it was "
                "asked for"
            )
    return Measurements(tuple(iterations), tuple(evaluations), tuple(missing), tuple(unmade), tuple(unreadable))


def _summaries(
    layout: RunLayout, benchmark: str, wanted: Iterable[int], settings: EvaluationSettings
) -> tuple[list[EvaluationSummary], list[str]]:
    """The summaries of the wanted versions and of any others that were evaluated with these settings, in order of
    versions; and a line for each that cannot be read.
    """
    versions = sorted({*wanted, *versions_evaluated(layout)})
    paths = [layout.evaluation_summary(version, benchmark) for version in versions]
    summaries, faults = readable(paths, EvaluationSummary.read)
    return [summary for summary in summaries if summary.settings == settings.summarised], faults


def read_summary(layout: RunLayout, version: int, benchmark: str) -> EvaluationSummary:
    """The summary of a weights version on a benchmark.

    Raises:
        FileNotFoundError: there is none.
        UserError: the file holds something else.
    """
    return EvaluationSummary.read(layout.evaluation_summary(version, benchmark))


def is_evaluated(layout: RunLayout, unit: EvaluationUnit, settings: EvaluationSettings) -> bool:
    """Whether a unit has its shard, and its version and benchmark their summary, of these settings."""
    try:
        summary = EvaluationSummary.read(layout.evaluation_summary(unit.version, unit.benchmark))
    except (FileNotFoundError, UserError):  # absent, or damaged
        return False
    shard = layout.evaluation_shard(unit.version, unit.benchmark, unit.shard)
    return summary.settings == settings.summarised and has_samples(shard, settings)


def as_ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers in short: ``0-3, 7``."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)
