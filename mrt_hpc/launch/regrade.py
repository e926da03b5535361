"""Judges the samples of a run's evaluations again with the grader of today, and says which verdicts changed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrt_hpc.analysis.collect import read_summary
from mrt_hpc.errors import UserError
from mrt_hpc.launch.ledger import claimed
from mrt_hpc.launch.queued_jobs import live_jobs
from mrt_hpc.recipe.lock import read_lock
from mrt_hpc.roles.benchmarks.regrading import Regrader
from mrt_hpc.roles.benchmarks.stored_parts import grader_of
from mrt_hpc.roles.benchmarks.summary import summary_of
from mrt_hpc.run.data import read_problems
from mrt_hpc.run.groups import commit_group, read_group
from mrt_hpc.run.manifest import read_manifest
from mrt_hpc.run.quarantine import set_aside
from mrt_hpc.run.retries import list_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mrt_hpc.recipe.evaluation_recipe import Experiment
    from mrt_hpc.recipe.schema import Benchmark
    from mrt_hpc.run.groups import Sampled
    from mrt_hpc.run.layout import RunLayout
    from mrt_hpc.run.records import Rollout


@dataclass(frozen=True)
class ChangedVerdict:
    """A sample whose verdict is another one than before."""

    version: int
    benchmark: str
    problem_id: str
    sample: int
    gold: str
    answers: tuple[str | None, str | None]
    """The answer that was found before, and the one that is found now."""
    rewards: tuple[float, float]
    """Before and now."""


@dataclass(frozen=True)
class Regraded:
    """The result of judging one weights version on one benchmark again."""

    version: int
    benchmark: str
    samples: int
    changed: tuple[ChangedVerdict, ...]
    accuracy: tuple[float, float]
    """pass@1 before and now."""


def regrade_run(layout: RunLayout, tell: Callable[[str], None]) -> list[Regraded]:
    """Judge all finished evaluations of a run again that another grader has judged.

    What they had is moved to ``set_aside``, and their summaries are computed again.

    Args:
        layout: the run directory.
        tell: called with a sentence about each evaluation that needs nothing.

    Raises:
        UserError: tasks of the run are queued or running, or the grader processes cannot be started.
        DamagedError: samples are damaged.
    """
    experiment = read_lock(layout.recipe_lock)
    with claimed(layout, experiment.resilience.heartbeat_limit_s):
        if live := live_jobs(layout):
            raise UserError(
                "tasks of the run are queued or running",
                value=", ".join(live),
                where=layout.root,
                advice=f"wait for their end (mrt-hpc status {layout.root}), or mrt-hpc cancel {layout.root}",
            )
        found = [_regrade(layout, experiment, *unit, tell) for unit in finished(layout, experiment)]
    return [one for one in found if one is not None]


def finished(layout: RunLayout, experiment: Experiment) -> Iterator[tuple[int, Benchmark]]:
    """The weights versions and benchmarks whose evaluation has a summary."""
    numbers = (layout.version_of(path) for path in list_directory(layout.root / "evals"))
    for version in sorted(number for number in numbers if number is not None):
        for benchmark in experiment.evaluation.benchmarks:
            if layout.evaluation_summary(version, benchmark.name).is_file():
                yield version, benchmark


def _regrade(
    layout: RunLayout, experiment: Experiment, version: int, benchmark: Benchmark, tell: Callable[[str], None]
) -> Regraded | None:
    """Judge one evaluation again; None where today's grader has judged it."""
    shards = range(experiment.evaluation.problem_shards)
    paths = [layout.evaluation_shard(version, benchmark.name, shard) for shard in shards]
    grader = grader_of(experiment, benchmark)
    if all(read_manifest(path).about.get("grader") == grader for path in paths):
        tell(f"version {version} on {benchmark.name}: this grader has judged it already")
        return None
    before = [read_group(path) for path in paths]
    golds = {p.id: p.answer for p in read_problems(layout.benchmark_data(benchmark.name))}
    regrader = Regrader.of(experiment, benchmark, layout.weights_version(version))
    now = asyncio.run(regrader.all(before, golds))
    for path, sampled in zip(paths, now, strict=True):
        _replace(layout, path, sampled, grader)
    old = read_summary(layout, version, benchmark.name)
    new = summary_of(layout, experiment, benchmark, version, now)
    new.write(layout.evaluation_summary(version, benchmark.name))
    pairs = [(b, n) for one, other in zip(before, now, strict=True) for b, n in _pairs(one, other)]
    changed = [_changed(version, benchmark.name, golds, *pair) for pair in pairs if pair[0].reward != pair[1].reward]
    return Regraded(version, benchmark.name, len(pairs), tuple(changed), (old.accuracy, new.accuracy))


def _replace(layout: RunLayout, path: Path, sampled: Sampled, grader: str) -> None:
    """Put the samples with their new verdicts in the place of a shard."""
    about = {name: value for name, value in read_manifest(path).about.items() if name not in ("statistics", "grader")}
    set_aside(layout, [path], "its verdicts were those of another grader; the samples were judged again")
    commit_group(path, sampled, **about, grader=grader)


def _pairs(before: Sampled, now: Sampled) -> Iterator[tuple[Rollout, Rollout]]:
    there = {(r.problem_id, r.sample): r for r in now.rollouts}
    for rollout in before.rollouts:
        yield rollout, there[rollout.problem_id, rollout.sample]


def _changed(version: int, benchmark: str, golds: dict[str, str], before: Rollout, now: Rollout) -> ChangedVerdict:
    return ChangedVerdict(
        version,
        benchmark,
        before.problem_id,
        before.sample,
        golds[before.problem_id],
        (before.answer, now.answer),
        (before.reward, now.reward),
    )
