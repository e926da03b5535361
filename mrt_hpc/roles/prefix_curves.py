"""Reads for the page what the prover of an evaluation found at the prefixes of its traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrt_hpc.analysis.episode_progress import progress_by_episode
from mrt_hpc.analysis.evaluated_run import EvaluatedRun
from mrt_hpc.analysis.page.content import PrefixCurves
from mrt_hpc.analysis.scaling_curves import prefix_curve, votes_of
from mrt_hpc.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.analysis.measures import RunSummary
    from mrt_hpc.analysis.model_samples import ModelSamples
    from mrt_hpc.recipe.evaluation_recipe import Experiment
    from mrt_hpc.run.layout import RunLayout


def prefix_curves(
    layout: RunLayout, recipe: Experiment, summary: RunSummary
) -> tuple[tuple[PrefixCurves, ...], tuple[str, ...]]:
    """The curves of the first and the last evaluated version of each benchmark; nothing where no prover was asked.

    Args:
        layout: the run directory.
        recipe: of the run, or of the evaluation on its own.
        summary: whose evaluations are wanted.

    Returns:
        The curves, and a sentence for each evaluation that cannot be read.
    """
    if recipe.evaluation.prover is None:
        return (), ()
    run = EvaluatedRun(layout, recipe, str(layout.root))
    found: list[PrefixCurves] = []
    troubles: list[str] = []
    for benchmark, version in _wanted(summary):
        try:
            found.append(curves_of_samples(run.samples(version, benchmark, benchmark), version))
        except (UserError, OSError) as error:
            reason = error.what if isinstance(error, UserError) else str(error)
            whose = "" if run.models else f" of version {version}"
            troubles.append(f"Not shown, as it cannot be read: the evaluation{whose} on {benchmark} ({reason}).")
    return tuple(found), tuple(troubles)


def _wanted(summary: RunSummary) -> Iterator[tuple[str, int]]:
    """Benchmark and version of the first and the last evaluation of each benchmark."""
    for name in dict.fromkeys(one.benchmark for one in summary.evaluations):
        versions = [one.version for one in summary.evaluations if one.benchmark == name]
        yield from ((name, version) for version in sorted({min(versions), max(versions)}))


def curves_of_samples(samples: ModelSamples, version: int) -> PrefixCurves:
    """The curves of one weights version on one benchmark."""
    return PrefixCurves(
        benchmark=samples.benchmark,
        version=version,
        problems=len(samples.problems),
        progress=progress_by_episode(samples.problems) if samples.is_valued else (),
        votes=tuple(prefix_curve(samples, voters) for voters in votes_of(samples)),
    )
