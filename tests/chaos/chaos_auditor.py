"""The auditor: whether a finished run is what an undisturbed one would be, from its files alone.

    python tests/chaos/chaos_auditor.py RUN

It knows nothing of the faults. What it asks, beside ``invariants.py``: weights versions consecutive; every task done;
the report complete; the run private.
"""

import stat
import sys
from collections import Counter
from functools import partial
from pathlib import Path

from invariants import Audit, check_evaluated, check_samples, check_trained, check_versions, check_whole, checked_groups
from run_of import read_events

from mrt_hpc.analysis.measures import read_measurements
from mrt_hpc.plan.jobs import read_plan
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.run.archive import read_sampled
from mrt_hpc.run.atomic import is_temporary
from mrt_hpc.run.evaluation_settings import evaluation_settings
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.groups import read_group
from mrt_hpc.run.layout import RunLayout, collection_of
from mrt_hpc.run.manifest import MANIFEST, verify
from mrt_hpc.run.problems import draw_places, read_problems, share
from mrt_hpc.run.task_state import TaskState, read_task
from mrt_hpc.run.weights import kept_versions, published_versions


def audit(root: Path) -> Audit:
    layout = RunLayout(root)
    recipe = read_recipe_lock(layout.recipe_lock, looking=True)
    last = recipe.schedule.iterations
    found = Audit(iterations=last)
    for iteration in range(last if recipe.algorithm.samples_rollouts else 0):
        check_iteration(found, layout, recipe, iteration)
    for version in recipe.algorithm.traces_versions(last):
        where, number = f"the collection of version {version}", collection_of(version)
        size = recipe.algorithm.group_size(recipe, number)
        groups = checked_groups(found, layout, where, number, read_problems(layout.train_data), size)
        check_versions(found, where, groups, {version})
    check_weights(found, layout, recipe)
    check_evaluations(found, layout, recipe)
    for path in sorted(layout.root.rglob(MANIFEST)):  # every directory that has one is what it says
        if layout.set_aside not in path.parents and not any(map(is_temporary, path.parents)):
            check_whole(found, path.parent)
    check_tasks_and_report(found, layout, recipe)
    check_secrecy(found, layout)
    events = Counter(e["kind"] for e in read_events(layout.events))
    found.steps = events[EventKind.STEP]
    found.groups_discarded = events[EventKind.GROUP_DISCARDED]
    found.set_aside = events[EventKind.SET_ASIDE]
    found.leftovers = sum(is_temporary(p) for p in layout.root.rglob("*") if layout.set_aside not in p.parents)
    return found


def check_iteration(found: Audit, layout: RunLayout, recipe: Recipe, iteration: int) -> None:
    """The problems that the seed draws, the same branches everywhere, and trained on as it stands there."""
    where, places = f"iteration {iteration}", draw_places(read_problems(layout.train_data), recipe, iteration)
    reads = (found.readable(partial(read_sampled, layout, iteration, position)) for position in range(len(places)))
    drawn = [place[group.statistics.thrown_groups] for place, group in zip(places, reads, strict=True) if group]
    groups = checked_groups(found, layout, where, iteration, drawn, recipe.sampling.rollouts_per_problem)
    check_versions(found, where, groups, set(range(max(0, iteration - recipe.schedule.max_staleness), iteration + 1)))
    for group in groups:
        there = Counter((b.sample, b.boundary) for b in group.branches)
        boundaries = {(r.sample, j) for r in group.rollouts for j in range(len(r.boundaries))}
        whole = not there or (set(there) == boundaries and len(set(there.values())) == 1)
        found.check(whole, f"{where}: branches {there} of boundaries {boundaries}")
    check_trained(found, layout, iteration, groups)


def check_weights(found: Audit, layout: RunLayout, recipe: Recipe) -> None:
    """Versions are consecutive; those that must stay are there, and are what their manifests say."""
    last = recipe.schedule.iterations
    seen = (EventKind.PUBLISHED, EventKind.WEIGHTS_LOADED)  # one killed in the instant after a commit says nothing
    published = {e["version"] for e in read_events(layout.events) if e["kind"] in seen}
    published |= set(published_versions(layout))
    found.check(published == set(range(last + 1)), f"published weights versions {sorted(published)} of {last}")
    for version in sorted(kept_versions(recipe, last) & set(range(last + 1))):
        manifest = found.readable(partial(verify, layout.weights_version(version)))
        if manifest is not None:
            found.check(manifest.about["version"] == version, f"weights version {version} says {manifest.about}")


def check_evaluations(found: Audit, layout: RunLayout, recipe: Recipe) -> None:
    shards = recipe.evaluation.problem_shards
    places = [(b, v, n) for b in recipe.evaluation.benchmarks for v in recipe.evaluated_versions for n in range(shards)]
    for benchmark, version, number in places:
        problems = share(read_problems(layout.benchmark_data(benchmark.name)), number, shards)
        path = layout.evaluation_shard(version, benchmark.name, number)
        sampled = found.readable(partial(read_group, path))
        check_samples(found, str(path), sampled.rollouts if sampled else [], problems, benchmark.samples)
        check_evaluated(found, layout, version, path)


def check_tasks_and_report(found: Audit, layout: RunLayout, recipe: Recipe) -> None:
    for job in read_plan(layout.plan).jobs:
        states = Counter(read_task(layout, job.name, index).state for index in range(job.tasks))
        found.check(states == {TaskState.DONE: job.tasks}, f"{job.name}: {dict(states)}")
    settings, wanted = evaluation_settings(layout, recipe), recipe.evaluated_versions
    missing = read_measurements(layout, recipe.schedule.iterations, wanted, settings).missing
    found.check(not missing, f"the report lacks {missing}")
    found.check(layout.report.is_file(), "there is no report")


def check_secrecy(found: Audit, layout: RunLayout) -> None:
    """No other user may enter the run directory; the key of the run is in one file only."""
    found.check(stat.S_IMODE(layout.root.stat().st_mode) == 0o700, "others may enter the run directory")
    key = (layout.secrets / "server_key").read_text()
    for path in layout.root.rglob("*"):
        if path.is_file() and path.suffix in {".log", ".json", ".jsonl", ".md", ".yaml", ".sh", ".out", ".err"}:
            found.check(key not in path.read_text(errors="replace"), f"the run's key stands in {path}")


if __name__ == "__main__":
    result = audit(Path(sys.argv[1]))
    print("\n".join(result.violations) or "nothing is wrong")
    print(f"{result.steps} steps for {result.iterations} iterations, {result.set_aside} set aside, "
          f"{result.groups_discarded} groups discarded, {result.leftovers} left over")  # fmt: skip
    sys.exit(bool(result.violations))
