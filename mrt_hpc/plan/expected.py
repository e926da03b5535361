"""Estimates the hours of a plan: tokens from the recipe, seconds from the throughput, hours of each job.

An estimate for planning: it leaves out waiting in the queue, preemptions, the loading of weights and rollouts, and the
draining of a batch at the end of a round. What it reckons with can be stated in the recipe (``expected``) and the site
profile (``throughput``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.plan.cost import UseHours
from mrt_hpc.plan.jobs import Role
from mrt_hpc.plan.token_counts import tokens_per_value
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.sections.schedule import Coupling
from mrt_hpc.run.layout import is_collection
from mrt_hpc.run.uses import Use

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mrt_hpc.plan.jobs import EvaluationUnit, Job, Plan
    from mrt_hpc.plan.throughput import Throughput
    from mrt_hpc.recipe.evaluation_recipe import Experiment
    from mrt_hpc.recipe.sections.data import Problems
    from mrt_hpc.recipe.site import SiteSettings

START_S = 180.0
"""The start-up seconds of a job with a server or a trainer: imports, loading weights, compiling."""
SHORT_JOB_S = 360.0
"""The seconds of the first job, and of the report."""


@dataclass(frozen=True)
class ExpectedHours:
    """The expected hours of one job."""

    hours: float
    """Wall time of one task, over all its attempts."""
    gpu_hours: float
    """The GPU-hours of all tasks."""
    longest: float
    """The wall time of the longest task, hours: benchmarks have different numbers of problems."""
    by_use: Mapping[Use, float]
    """The hours of one task by what they are used for, which add up to ``hours``."""

    def attempts(self, job: Job) -> int:
        """How often each task is started when only its time limit ends it."""
        return ceil(self.longest * 60 / job.resources.time_limit_minutes)


def expected_hours(plan: Plan, recipe: Experiment, throughput: Throughput) -> dict[str, ExpectedHours]:
    """By job name; a job is left out where its problems cannot be counted because their file is not there."""
    found = {job.name: _tasks(job, recipe, throughput) for job in plan.jobs}
    return {job.name: _hours_of(job, tasks) for job in plan.jobs if (tasks := found[job.name]) is not None}


def expected_uses(plan: Plan, expected: Mapping[str, ExpectedHours]) -> list[UseHours]:
    """The hours of all jobs whose hours are known, by role and use, in the order of their definition."""
    found: dict[tuple[Role, Use], UseHours] = {}
    for job in (job for job in plan.jobs if job.name in expected):
        for use, hours in expected[job.name].by_use.items():
            before = found.get((job.role, use), UseHours(job.role, use, 0.0, 0.0, 0.0))
            found[job.role, use] = _with(before, hours * job.tasks, job)
    return [found[role, use] for role in Role for use in Use if (role, use) in found]


def _with(before: UseHours, hours: float, job: Job) -> UseHours:
    """The hours with those of one more job, all its tasks together."""
    return replace(
        before,
        hours=before.hours + hours,
        gpu_hours=before.gpu_hours + hours * job.resources.gpus,
        core_hours=before.core_hours + hours * job.resources.cpus,
    )


Seconds = dict[Use, float]
"""The seconds of a task, or of a part of it, by what they are used for."""


def _hours_of(job: Job, tasks: list[Seconds]) -> ExpectedHours:
    """The hours of a job, by the seconds of each of its tasks."""
    lengths = [sum(task.values()) / 3600 for task in tasks]
    mean = sum(lengths) / len(lengths)
    by_use = {use: seconds / len(tasks) / 3600 for use, seconds in _added(tasks).items() if seconds}
    return ExpectedHours(mean, mean * job.tasks * job.resources.gpus, max(lengths), by_use)


def _added(parts: Iterable[Mapping[Use, float]]) -> Seconds:
    whole: Seconds = {}
    for part in parts:
        for use, seconds in part.items():
            whole[use] = whole.get(use, 0.0) + seconds
    return whole


def _tasks(job: Job, recipe: Experiment, throughput: Throughput) -> list[Seconds] | None:
    """Return the seconds of each task of an evaluation, or those that every task of another job takes; None where they
    cannot be known.
    """
    if job.role in (Role.PREPARE, Role.REPORT):
        return [{Use.PREPARING if job.role is Role.PREPARE else Use.REPORTING: SHORT_JOB_S}]
    if job.role is Role.EVALUATION:
        found = [_unit_seconds(unit, recipe, throughput) for unit in job.evaluations]
        known = [_added([{Use.STARTING: START_S}, one]) for one in found if one is not None]
        return None if len(known) < len(found) else known
    assert isinstance(recipe, Recipe), "an evaluation on its own has no other jobs"
    iterations = [_iteration_seconds(job, recipe, iteration, throughput) for iteration in job.iterations]
    parts = [iteration for iteration in iterations if iteration is not None]
    return None if len(parts) < len(iterations) else [_added([{Use.STARTING: START_S}, *parts])]


def _iteration_seconds(job: Job, recipe: Recipe, iteration: int, throughput: Throughput) -> Seconds | None:
    """How long an iteration keeps a job busy: both jobs of a segment, where they run together. What it does not work
    itself, it waits for the other one.
    """
    sampling = _sampling(recipe, iteration, throughput)
    if is_collection(iteration):
        return sampling
    training = _training(recipe, iteration, throughput)
    if not recipe.algorithm.samples_rollouts or sampling is None:
        return training
    if job.role is Role.COLOCATED:
        return _added([sampling, training])
    own = sampling if job.role is Role.INFERENCE else training
    if recipe.schedule.coupling is Coupling.SEQUENTIAL:
        return own
    both = sum(sampling.values()), sum(training.values())
    whole = max(both) if recipe.schedule.max_staleness else sum(both)
    return _added([own, {Use.WAITING: whole - sum(own.values())}])


def _sampling(recipe: Recipe, iteration: int, throughput: Throughput) -> Seconds | None:
    """The seconds of sampling, divided between traces and branches by the tokens that are sampled for each."""
    seconds = sampling_seconds(recipe, iteration, throughput)
    if seconds is None:
        return None
    tokens = recipe.algorithm.sampled_tokens(recipe, iteration)
    branches = min(recipe.algorithm.sampled_branch_tokens(recipe, iteration), tokens)
    return _divided(seconds, branches / tokens if tokens else 0.0)


def _divided(seconds: float, branch_share: float) -> Seconds:
    """Seconds of sampling, of which this share is spent on branches."""
    return {Use.GENERATING: seconds * (1 - branch_share), Use.BRANCHING: seconds * branch_share}


def _training(recipe: Recipe, iteration: int, throughput: Throughput) -> Seconds:
    tokens = recipe.algorithm.trained_tokens(recipe, iteration)
    return {
        Use.TRAINING: tokens / (recipe.resources.trainer.ranks * throughput.trained_per_s),
        Use.SAVING: throughput.publish_s + throughput.checkpoint_s / recipe.training.checkpoint_every,
    }


def sampling_seconds(recipe: Recipe, iteration: int, throughput: Throughput) -> float | None:
    """Return the seconds of sampling the rollouts and branches of an iteration, or of a collection; None where the
    problems cannot be counted.
    """
    inference, collects = recipe.resources.inference, is_collection(iteration)
    groups = count_problems(recipe.data) if collects else recipe.sampling.problems_per_iteration
    if groups is None:
        return None
    at_once = min(inference.tasks, inference.max_parallel or inference.tasks)
    tokens = groups * recipe.algorithm.sampled_tokens(recipe, iteration)
    return tokens / ((inference.tasks if collects else at_once) * throughput.sampled_per_s)


def late_checkpoint(recipe: Recipe, site: SiteSettings, throughput: Throughput) -> str | None:
    """A warning where a preempted trainer is expected to be ended before it has written a checkpoint.

    It then loses the updates since its last checkpoint, and computes them again from the same rollouts. What it has
    published is there before the checkpoint is begun, and nothing that was committed is lost.
    """
    notice_s = site.limits.preemption_notice_s
    if notice_s is None or throughput.checkpoint_s <= notice_s:
        return None
    lost = min(recipe.training.checkpoint_every, recipe.schedule.iterations_per_job)
    advice = "; --set training.checkpoint_every=1 makes that one update" if lost > 1 else ""
    return (
        f"a checkpoint is expected to take {throughput.checkpoint_s:.0f} s, and site {site.name} ends a preempted task "
        f"after {notice_s} s (preemption_notice_s): a preempted trainer computes up to {lost} update(s) again{advice}"
    )


def _unit_seconds(unit: EvaluationUnit, recipe: Experiment, throughput: Throughput) -> Seconds | None:
    evaluation = recipe.evaluation
    benchmark = next(b for b in evaluation.benchmarks if b.name == unit.benchmark)
    problems = count_problems(benchmark.problems)
    if problems is None:
        return None
    trace = min(evaluation.max_tokens, recipe.expected.trace_tokens or evaluation.max_tokens / 2)
    if benchmark.mode is not None:
        trace = benchmark.mode.expected_tokens(trace)
    branches = 0.0
    if evaluation.prover is not None:
        episodes = (evaluation.episodes or recipe.episodes).max_episodes
        branches = (episodes + 1) * tokens_per_value(evaluation.prover, recipe)
    samples = problems / evaluation.problem_shards * benchmark.samples
    return _divided(samples * (trace + branches) / throughput.evaluated_per_s, branches / (trace + branches))


def count_problems(problems: Problems | object) -> int | None:
    """How many problems a source has; None where its file is not there."""
    limit = getattr(problems, "problems", None) or getattr(problems, "limit", None)
    path = getattr(problems, "path", None)
    if path is None:
        return limit
    try:
        with Path(path).open("rb") as lines:
            count = sum(1 for line in lines if line.strip())
    except OSError:
        return limit
    return count if limit is None else min(count, limit)
