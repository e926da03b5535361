"""The report of a run: ``report.md`` and its figures, from a ``RunSummary``.

The module decides the content and its order: outcome, evaluation, training, cost, set-up. A run
that is cut short or not evaluated gets a report as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jinja2

from mrt_hpc.analysis.estimates import majority_estimates, pass_estimates, stage_estimates
from mrt_hpc.analysis.measures import RunSummary, few_answers, several_graders
from mrt_hpc.analysis.number_formats import (
    cell,
    count,
    decimal_text,
    duration,
    interval,
    number,
    percent,
    points,
    share_text,
)
from mrt_hpc.analysis.report_figures import FigureFile, draw_figures
from mrt_hpc.analysis.result_rows import evaluation_rows, mean_rows, outcomes, phase_totals, regret_rows, sample
from mrt_hpc.mrt.votes import RULE
from mrt_hpc.run.atomic import write_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MOST_ROWS = 12
"""Rows of the training table: the first, the last, and others evenly between."""
VOTES = f"maj@k is the chance that a vote of k samples is right: {RULE.removeprefix('votes: ')}."
"""What a table of maj@k says of its votes."""


def write_report(summary: RunSummary, directory: Path) -> Path:
    """Write ``report.md`` and ``plots/*.png`` into ``directory``; the report last, so that its figures are there.

    Args:
        summary: all values that the report shows.
        directory: the run directory.

    Returns:
        The path of the report.
    """
    figures = draw_figures(summary, directory / "plots")
    path = directory / "report.md"
    write_text(path, render(summary, figures))
    return path


def templates() -> jinja2.Environment:
    """The templates of reports in Markdown, with the filters that write their numbers."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mrt_hpc.analysis"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # Markdown, not HTML: cells are escaped by the filter
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        cell=cell, percent=percent, points=points, interval=interval, number=number, count=count, duration=duration,
        share=share_text, decimal=decimal_text, passes=pass_estimates, majorities=majority_estimates,
        by_stage=stage_estimates,
    )  # fmt: skip
    environment.globals["votes"] = VOTES
    return environment


def render(summary: RunSummary, figures: Sequence[FigureFile]) -> str:
    """The report as Markdown."""
    rows = evaluation_rows(summary.evaluations)
    return (
        templates()
        .get_template("report.md.j2")
        .render(
            summary=summary,
            rows=rows,
            outcomes=outcomes(rows),
            means=mean_rows(summary.evaluations),
            regrets=regret_rows(summary.evaluations),
            sampled=sample(summary.iterations, MOST_ROWS),
            phases=phase_totals(summary.iterations),
            figures=figures,
            few_answers=last_few_answers(summary),
            mixed_verdicts=mixed_verdicts(summary),
        )
    )


def last_few_answers(summary: RunSummary) -> str | None:
    """The warning of the last iteration, or else of the last evaluation, where nearly no trace has an answer."""
    training = [few_answers(m.answered_share, f"iteration {m.iteration}") for m in summary.iterations[-1:]]
    evaluations = [
        few_answers(e.answered_share, f"version {e.version} on {e.benchmark}") for e in summary.evaluations[-1:]
    ]
    return next((warning for warning in (*training, *evaluations) if warning), None)


def mixed_verdicts(summary: RunSummary) -> list[str]:
    """A warning for each evaluation whose samples several graders have judged."""
    found = (several_graders(e.graders, f"version {e.version} on {e.benchmark}") for e in summary.evaluations)
    return [warning for warning in found if warning is not None]
