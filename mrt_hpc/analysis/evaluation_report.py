"""The report of an evaluation on its own: every model on every benchmark, and its difference to the first model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrt_hpc.analysis.estimates import mean_of
from mrt_hpc.analysis.intervals import IntervalEstimate, paired_difference
from mrt_hpc.analysis.render import templates
from mrt_hpc.run.atomic import write_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mrt_hpc.analysis.measures import EvaluationSummary


@dataclass(frozen=True, kw_only=True)
class ModelEvaluations:
    """All values that the report of an evaluation on its own shows."""

    name: str
    suite: str | None
    models: tuple[str, ...]
    """The names of the models; model *i* is weights version *i* of the evaluations."""
    evaluations: tuple[EvaluationSummary, ...]
    missing: tuple[str, ...]
    """What should be there and is not, a sentence each."""
    results: str | None
    """The results folder."""
    versions: dict[str, str]
    """The versions of the packages that matter."""


@dataclass(frozen=True)
class ModelRow:
    """One model on one benchmark."""

    model: str
    evaluation: EvaluationSummary
    difference: IntervalEstimate | None
    """pass@1 less that of the first model, paired by problem; None for that model itself, and for other problems."""


def model_rows(found: ModelEvaluations) -> list[ModelRow]:
    """The rows of the table of results: by benchmark, then by model."""
    first: dict[str, EvaluationSummary] = {}
    rows = []
    for one in found.evaluations:
        base = first.setdefault(one.benchmark, one)
        comparable = base is not one and base.per_problem.keys() == one.per_problem.keys()
        difference = paired_difference(base.per_problem, one.per_problem) if comparable else None
        rows.append(ModelRow(found.models[one.version], one, difference))
    return rows


def regret_rows(found: ModelEvaluations) -> list[tuple[str, str, int, IntervalEstimate]]:
    """Benchmark, model, budget and normalised regret with its interval, where prefixes were valued."""
    return [
        (one.benchmark, found.models[one.version], budget, mean_of(by_problem))
        for one in found.evaluations
        for budget, by_problem in one.regret.items()
    ]


def write_evaluation_report(found: ModelEvaluations, directory: Path) -> Path:
    """Write ``report.md`` into a directory, and return its path."""
    path = directory / "report.md"
    write_text(path, render_evaluation(found, model_rows(found)))
    return path


def render_evaluation(found: ModelEvaluations, rows: Sequence[ModelRow]) -> str:
    """The report as Markdown."""
    return templates().get_template("evaluation.md.j2").render(found=found, rows=rows, regrets=regret_rows(found))
