"""Judges a run's evaluation samples again with today's grader, and says which verdicts changed."""

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

from mrt_hpc.analysis.measures import read_summary
from mrt_hpc.attempt.ledger import claim_run
from mrt_hpc.backends.queued_jobs import refuse_live
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.recipe.sections import Benchmark
from mrt_hpc.roles.evaluation_summary import summary_of
from mrt_hpc.roles.regrading import Regrader, changed_verdicts
from mrt_hpc.roles.stored_parts import grader_of
from mrt_hpc.run.atomic import commit_directory, sync_names
from mrt_hpc.run.evaluation_settings import versions_evaluated
from mrt_hpc.run.groups import Sampled, commit_group, read_group
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import read_manifest
from mrt_hpc.run.prompt_files import read_experiment
from mrt_hpc.run.quarantine import set_aside
from mrt_hpc.run.records import Gold, Rollout
from mrt_hpc.run.retries import retry_action
from mrt_hpc.run.weights import published_versions


@dataclass(frozen=True)
class Regraded:
    """One version on one benchmark, judged again."""

    version: int
    benchmark: str
    samples: int
    changed: tuple[tuple[Rollout, Rollout], ...]
    """Samples with another verdict: before and now."""
    golds: Mapping[str, Gold]
    """By problem."""
    accuracy: tuple[float, float]
    """pass@1 before and now."""


def regrade_run(layout: RunLayout, show: Callable[[str], None]) -> list[Regraded]:
    """Judge finished evaluations again that another grader judged.

    Earlier samples move to ``set_aside``, and summaries are recomputed.

    Args:
        show: gets a sentence on each evaluation that needs nothing.

    Raises:
        DamagedError: samples are damaged.
    """
    experiment = read_experiment(layout)
    with claim_run(layout, experiment.resilience.heartbeat_limit_s):
        refuse_live(layout, "so nothing is judged again")
        units = product(versions_evaluated(layout), experiment.evaluation.benchmarks)
        finished = [unit for unit in units if layout.evaluation_summary(unit[0], unit[1].name).is_file()]
        regraded = [_regrade(layout, experiment, *unit, show) for unit in finished]
    return [unit for unit in regraded if unit is not None]


def _regrade(
    layout: RunLayout, experiment: Experiment, version: int, benchmark: Benchmark, show: Callable[[str], None]
) -> Regraded | None:
    """None where today's grader judged it."""
    paths = layout.evaluation_shards(version, benchmark.name, experiment.evaluation.problem_shards)
    grader, waiting = grader_of(experiment, benchmark), layout.regraded_folder(version, benchmark.name)
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
    retry_action(lambda: shutil.rmtree(waiting), f"removing {waiting}")
    samples, changed = sum(len(part.rollouts) for part in now), tuple(changed_verdicts(before, now))
    golds = {name: problem.answer for name, problem in regrader.problems.items()}
    return Regraded(version, benchmark.name, samples, changed, golds, (old.accuracy, new.accuracy))


def tokenizer_of(layout: RunLayout, experiment: Experiment, version: int) -> Path:
    """A model directory with a version's tokenizer: another version's where that is pruned."""
    there = published_versions(layout)
    is_there = version in there or not experiment.trains
    return layout.weights_version(version if is_there else max(there, default=version))


def _replace(layout: RunLayout, waiting: Path, paths: Sequence[Path], judged: Sequence[Sampled], grader: str) -> None:
    """Replace shards by newly judged ones, written whole first: an interruption leaves each in one place or the
    other.
    """
    for path, sampled in zip(paths, judged, strict=True):
        about = {key: value for key, value in read_manifest(path).about.items() if key not in ("statistics", "grader")}
        retry_action(partial(commit_group, waiting / path.name, sampled, **about, grader=grader), f"the shard {path}")
    for path in paths:
        set_aside(layout, [path], "its verdicts were those of another grader; the samples were judged again")
        commit_directory(waiting / path.name, path)


def _finish_interrupted(waiting: Path, paths: Sequence[Path]) -> bool:
    """Finish an interrupted command: fill empty places and drop other shards. Returns whether there was one, as the
    summary may then be old.
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
