"""Judges the samples of a run's evaluations again with the grader of today, and says which verdicts changed."""

import asyncio
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mrt_hpc.analysis.measures import read_summary
from mrt_hpc.attempt.ledger import claimed
from mrt_hpc.backends.queued_jobs import refuse_live
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.recipe.sections import Benchmark
from mrt_hpc.roles.evaluation_summary import Regrader, changed_verdicts, summary_of
from mrt_hpc.roles.stored_parts import grader_of
from mrt_hpc.run.atomic import commit_directory, sync_names
from mrt_hpc.run.evaluation_settings import versions_evaluated
from mrt_hpc.run.groups import Sampled, commit_group, read_group
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import read_manifest
from mrt_hpc.run.prompt_files import read_experiment
from mrt_hpc.run.quarantine import set_aside
from mrt_hpc.run.records import Gold, Rollout
from mrt_hpc.run.retries import retrying
from mrt_hpc.run.weights import full_versions


@dataclass(frozen=True)
class Regraded:
    """The result of judging one weights version on one benchmark again."""

    version: int
    benchmark: str
    samples: int
    changed: tuple[tuple[Rollout, Rollout], ...]
    """The samples whose verdict is another one, as they were before and as they are now."""
    golds: Mapping[str, Gold]
    """The gold answer of each problem."""
    accuracy: tuple[float, float]
    """pass@1 before and now."""


def regrade_run(layout: RunLayout, show: Callable[[str], None]) -> list[Regraded]:
    """Judge all finished evaluations of a run again that another grader has judged.

    What they had is moved to ``set_aside``, and their summaries are computed again.

    Args:
        layout: the run directory.
        show: called with a sentence about each evaluation that needs nothing.

    Raises:
        UserError: tasks of the run are queued or running, or the grader processes cannot be started.
        DamagedError: samples are damaged.
    """
    experiment = read_experiment(layout)
    with claimed(layout, experiment.resilience.heartbeat_limit_s):
        refuse_live(layout, "so nothing is judged again")
        units = [_regrade(layout, experiment, *unit, show) for unit in finished(layout, experiment)]
    return [unit for unit in units if unit is not None]


def finished(layout: RunLayout, experiment: Experiment) -> Iterator[tuple[int, Benchmark]]:
    """The weights versions and benchmarks whose evaluation has a summary."""
    for version in versions_evaluated(layout):
        for benchmark in experiment.evaluation.benchmarks:
            if layout.evaluation_summary(version, benchmark.name).is_file():
                yield version, benchmark


def _regrade(
    layout: RunLayout, experiment: Experiment, version: int, benchmark: Benchmark, show: Callable[[str], None]
) -> Regraded | None:
    """Judge one evaluation again; None where today's grader has judged it."""
    paths = layout.evaluation_shards(version, benchmark.name, experiment.evaluation.problem_shards)
    grader, waiting = grader_of(experiment, benchmark), layout.regraded(version, benchmark.name)
    interrupted = _finish_interrupted(waiting, paths)
    if not interrupted and all(read_manifest(path).about.get("grader") == grader for path in paths):
        show(f"version {version} on {benchmark.name}: this grader has judged it already")
        return None
    before = [read_group(path) for path in paths]
    regrader = Regrader(layout, experiment, benchmark, tokenizer_of(layout, experiment, version))
    now = asyncio.run(regrader.all(before))
    _replace(layout, waiting, paths, now, grader)
    old = read_summary(layout, version, benchmark.name)
    new = summary_of(layout, experiment, benchmark, version, now, [grader])
    new.write(layout.evaluation_summary(version, benchmark.name))
    retrying(lambda: shutil.rmtree(waiting), f"removing {waiting}")
    samples, changed = sum(len(part.rollouts) for part in now), tuple(changed_verdicts(before, now))
    return Regraded(version, benchmark.name, samples, changed, regrader.golds, (old.accuracy, new.accuracy))


def tokenizer_of(layout: RunLayout, experiment: Experiment, version: int) -> Path:
    """A model directory with the tokenizer of a weights version: another version's where training has pruned it."""
    there = full_versions(layout)
    if version in there or not experiment.trains:
        return layout.weights_version(version)
    return layout.weights_version(max(there, default=version))


def _replace(layout: RunLayout, waiting: Path, paths: Sequence[Path], judged: Sequence[Sampled], grader: str) -> None:
    """Put the samples with their new verdicts in the places of the shards. They are written whole first, so that a
    shard is in one place or the other whenever this is interrupted.
    """
    for path, sampled in zip(paths, judged, strict=True):
        about = {key: value for key, value in read_manifest(path).about.items() if key not in ("statistics", "grader")}
        retrying(partial(commit_group, waiting / path.name, sampled, **about, grader=grader), f"the shard {path}")
    for path in paths:
        set_aside(layout, [path], "its verdicts were those of another grader; the samples were judged again")
        commit_directory(waiting / path.name, path)


def _finish_interrupted(waiting: Path, paths: Sequence[Path]) -> bool:
    """Put shards in their places that an interrupted command has left without any, and drop its other ones.

    Returns:
        Whether a command was interrupted, so that the summary may be that of the earlier verdicts.
    """
    if not waiting.exists():
        return False
    for path in paths:
        if not path.exists() and (waiting / path.name).exists():
            commit_directory(waiting / path.name, path)
        sync_names(path.parent)  # the one that was interrupted may not have done it
    shutil.rmtree(waiting)
    waiting.mkdir()
    return True
