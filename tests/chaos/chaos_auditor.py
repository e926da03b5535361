"""The auditor: whether a finished run is what an undisturbed one would be, from its files alone.

    python tests/chaos/chaos_auditor.py RUN

It knows nothing of the faults. What it asks: each (iteration, problem, sample) in training exactly once; weights
versions consecutive; every checksum right; every task done; the report complete.
"""

from __future__ import annotations

import stat
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mrt_hpc.algorithms.batch import batch_digest
from mrt_hpc.analysis.collect import read_measurements
from mrt_hpc.analysis.measures import IterationMetrics
from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import read_plan
from mrt_hpc.plan.kept_weights import kept_versions
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.run.archive import read_sampled, sampled_positions
from mrt_hpc.run.atomic import is_temporary
from mrt_hpc.run.data import draw_problems, read_problems, share
from mrt_hpc.run.evaluation_settings import evaluation_settings
from mrt_hpc.run.events import EventKind, read_events
from mrt_hpc.run.groups import Group, read_group
from mrt_hpc.run.layout import RunLayout, collection_of
from mrt_hpc.run.manifest import MANIFEST, read_manifest, verify
from mrt_hpc.run.task_state import TaskState, read_task
from mrt_hpc.run.weights import is_delta, published_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mrt_hpc.recipe.schema import Recipe
    from mrt_hpc.run.records import Problem, Rollout

T = TypeVar("T")


@dataclass
class Audit:
    """What was found."""

    violations: list[str] = field(default_factory=list)
    steps: int = 0
    """Updates computed, those that were computed again included."""
    iterations: int = 0
    groups_discarded: int = 0
    """Sampled by two, of which the second was dropped."""
    set_aside: int = 0
    leftovers: int = 0
    """Unfinished files of writers that were killed."""

    @property
    def steps_redone(self) -> int:
        """Updates computed more than once."""
        return self.steps - self.iterations

    def check(self, holds: bool, otherwise: str) -> None:
        """Take note of what does not hold."""
        if not holds:
            self.violations.append(otherwise)

    def readable(self, read: Callable[[], T]) -> T | None:
        """What ``read`` gives; None, and a violation, where it is damaged or missing."""
        try:
            return read()
        except (UserError, OSError) as error:
            self.violations.append(str(error))
            return None


def audit(root: Path) -> Audit:
    """Look at all files of a run."""
    layout = RunLayout(root)
    recipe = read_recipe_lock(layout.recipe_lock, looking=True)
    found = Audit(iterations=recipe.schedule.iterations)
    for iteration in range(recipe.schedule.iterations if recipe.algorithm.samples_rollouts else 0):
        check_iteration(found, layout, iteration)
    for version in recipe.algorithm.traces_versions(recipe.schedule.iterations):
        check_collection(found, layout, version)
    check_weights(found, layout)
    check_evaluations(found, layout)
    check_manifests(found, layout)
    check_tasks_and_report(found, layout)
    check_secrecy(found, layout)
    count(found, layout)
    return found


def check_iteration(found: Audit, layout: RunLayout, iteration: int) -> None:
    """Each sample once, of the problems that the seed draws, and trained on as it stands there."""
    recipe = read_recipe_lock(layout.recipe_lock, looking=True)
    sampling = recipe.sampling
    drawn = draw_problems(read_problems(layout.train_data), recipe.seed, iteration, sampling.problems_per_iteration)
    positions = sampled_positions(layout, iteration)
    found.check(positions == set(range(len(drawn))), f"iteration {iteration}: groups {sorted(positions)}")
    groups = [g for p in sorted(positions) if (g := found.readable(partial(read_sampled, layout, iteration, p)))]
    rollouts = [r for g in groups for r in g.rollouts]
    check_samples(found, f"iteration {iteration}", rollouts, drawn, sampling.rollouts_per_problem)
    found.check({r.iteration for r in rollouts} <= {iteration}, f"iteration {iteration} holds rollouts of another")
    check_branches(found, iteration, groups)
    oldest = max(0, iteration - recipe.schedule.max_staleness)
    versions = {r.weights_version for r in rollouts} | {v for r in rollouts for _, v in r.later_weights}
    found.check(all(oldest <= v <= iteration for v in versions), f"iteration {iteration}: weights {sorted(versions)}")
    metrics = found.readable(lambda: IterationMetrics.read(layout.metrics(iteration)))
    if metrics is not None:
        trained = batch_digest(g.digest for g in groups)
        found.check(metrics.batch == trained, f"iteration {iteration} was trained on other groups than those there")


def check_collection(found: Audit, layout: RunLayout, version: int) -> None:
    """Each sample of each problem once, by that weights version."""
    recipe, number = read_recipe_lock(layout.recipe_lock, looking=True), collection_of(version)
    problems, where = read_problems(layout.train_data), f"the collection of version {version}"
    positions = sampled_positions(layout, number)
    found.check(positions == set(range(len(problems))), f"{where}: groups {sorted(positions)}")
    groups = [g for p in sorted(positions) if (g := found.readable(partial(read_sampled, layout, number, p)))]
    rollouts = [r for g in groups for r in g.rollouts]
    size = recipe.algorithm.group_size(recipe, number)
    check_samples(found, where, rollouts, problems, size)
    found.check({r.iteration for r in rollouts} <= {number}, f"{where} holds rollouts of another")
    versions = {r.weights_version for r in rollouts}
    found.check(versions <= {version}, f"{where}: weights {sorted(versions)}")


def check_samples(found: Audit, where: str, rollouts: Sequence[Rollout], drawn: Sequence[Problem], n: int) -> None:
    """Each (problem, sample) exactly once."""
    there = Counter((r.problem_id, r.sample) for r in rollouts)
    wanted = Counter((p.id, s) for p in drawn for s in range(n))
    found.check(there == wanted, f"{where}: missing {wanted - there}, too many {there - wanted}")


def check_branches(found: Audit, iteration: int, groups: Sequence[Group]) -> None:
    """Each boundary of each trace has the same number of branches."""
    for group in groups:
        there = Counter((b.sample, b.boundary) for b in group.branches)
        boundaries = {(r.sample, j) for r in group.rollouts for j in range(len(r.boundaries))}
        whole = not there or (set(there) == boundaries and len(set(there.values())) == 1)
        found.check(whole, f"iteration {iteration}: branches {there} of boundaries {boundaries}")


def check_weights(found: Audit, layout: RunLayout) -> None:
    """Versions are consecutive; those that must stay are there, and are what their manifests say; no delta is left."""
    recipe = read_recipe_lock(layout.recipe_lock, looking=True)
    last = recipe.schedule.iterations
    seen = (EventKind.PUBLISHED, EventKind.WEIGHTS_LOADED)  # one killed in the instant after a commit says nothing
    published = {e["version"] for e in read_events(layout.events) if e["kind"] in seen} | set(
        published_versions(layout)
    )
    found.check(published == set(range(last + 1)), f"published weights versions {sorted(published)} of {last}")
    for version in sorted(kept_versions(recipe, last) & set(range(last + 1))):
        path = layout.weights_version(version)
        if not path.exists() and not stays_as_model(recipe, version):
            continue
        manifest = found.readable(partial(verify, path))
        if manifest is not None:
            found.check(manifest.about["version"] == version, f"weights version {version} says {manifest.about}")
        found.check(not is_delta(path), f"{path} is a delta, which no task loads any more")


def stays_as_model(recipe: Recipe, version: int) -> bool:
    """Whether a version must be there at the end; of the others, those that were published as deltas are removed."""
    every = recipe.training.full_weights_every
    wanted = {0, recipe.schedule.iterations, *recipe.evaluated_versions}
    return every == 1 or version in wanted | set(recipe.algorithm.traces_versions(recipe.schedule.iterations))


def check_evaluations(found: Audit, layout: RunLayout) -> None:
    """Every sample of every evaluation once, by the weights that are there under that number."""
    recipe = read_recipe_lock(layout.recipe_lock, looking=True)
    shards = recipe.evaluation.problem_shards
    for benchmark in recipe.evaluation.benchmarks:
        problems = read_problems(layout.benchmark_data(benchmark.name))
        for version in recipe.evaluated_versions:
            weights = found.readable(partial(read_manifest, layout.weights_version(version)))
            for number in range(shards):
                path = layout.evaluation_shard(version, benchmark.name, number)
                sampled = found.readable(partial(read_group, path))
                rollouts = [] if sampled is None else sampled.rollouts
                check_samples(found, str(path), rollouts, share(problems, number, shards), benchmark.samples)
                shard = found.readable(partial(read_manifest, path))
                same = shard is not None and weights is not None and shard.about["weights"] == weights.digest
                found.check(same, f"{path} was sampled by other weights than version {version}")


def check_manifests(found: Audit, layout: RunLayout) -> None:
    """Every directory that has a manifest is what it says."""
    for path in sorted(layout.root.rglob(MANIFEST)):
        aside = layout.set_aside in path.parents or any(is_temporary(p) for p in path.parents)
        if not aside:
            found.readable(partial(verify, path.parent))


def check_tasks_and_report(found: Audit, layout: RunLayout) -> None:
    """Every task is done, and the report lacks nothing."""
    recipe = read_recipe_lock(layout.recipe_lock, looking=True)
    plan = read_plan(layout.plan)
    for job in plan.jobs:
        states = Counter(read_task(layout, job.name, index).state for index in range(job.tasks))
        found.check(states == {TaskState.DONE: job.tasks}, f"{job.name}: {dict(states)}")
    names = [b.name for b in recipe.evaluation.benchmarks]
    settings = evaluation_settings(layout, recipe)
    wanted = recipe.evaluated_versions
    missing = read_measurements(layout, recipe.schedule.iterations, wanted, names, settings).missing
    found.check(not missing, f"the report lacks {missing}")
    found.check(layout.report.is_file(), "there is no report")


def check_secrecy(found: Audit, layout: RunLayout) -> None:
    """No other user may enter the run directory; the key of the run is in one file only."""
    found.check(stat.S_IMODE(layout.root.stat().st_mode) == 0o700, "others may enter the run directory")
    key = (layout.secrets / "server_key").read_text()
    for path in layout.root.rglob("*"):
        if path.is_file() and path.suffix in {".log", ".json", ".jsonl", ".md", ".yaml", ".sh", ".out", ".err"}:
            found.check(key not in path.read_text(errors="replace"), f"the run's key stands in {path}")


def count(found: Audit, layout: RunLayout) -> None:
    """Figures that are no violations."""
    events = Counter(e["kind"] for e in read_events(layout.events))
    found.steps = events[EventKind.STEP]
    found.groups_discarded = events[EventKind.SHARD_DISCARDED]
    found.set_aside = events[EventKind.SET_ASIDE]
    found.leftovers = sum(is_temporary(p) for p in layout.root.rglob("*") if layout.set_aside not in p.parents)


if __name__ == "__main__":
    result = audit(Path(sys.argv[1]))
    print("\n".join(result.violations) or "nothing is wrong")
    print(f"{result.steps} steps for {result.iterations} iterations, {result.set_aside} set aside, "
          f"{result.groups_discarded} groups discarded, {result.leftovers} left over")  # fmt: skip
    sys.exit(bool(result.violations))
