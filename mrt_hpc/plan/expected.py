"""Estimates the hours of a plan: tokens from the recipe, seconds from the throughput, hours of each job.

An estimate for planning: it leaves out waiting in the queue, preemptions, and the draining of a batch at the end of a
round. What it reckons with can be stated in the recipe (``expected``) and the site profile (``throughput``).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.plan.jobs import Role
from mrt_hpc.plan.token_counts import tokens_per_value
from mrt_hpc.recipe.schema import Coupling, Recipe
from mrt_hpc.run.layout import is_collection

if TYPE_CHECKING:
    from mrt_hpc.plan.jobs import EvaluationUnit, Job, Plan
    from mrt_hpc.plan.throughput import Throughput
    from mrt_hpc.recipe.evaluation_recipe import Experiment
    from mrt_hpc.recipe.schema import Problems
    from mrt_hpc.recipe.site import SiteSettings

START_S = 180.0
"""The start-up seconds of a job with a server or a trainer: imports, loading weights, compiling."""


@dataclass(frozen=True)
class ExpectedHours:
    """The expected hours of one job."""

    hours: float
    """Wall time of one task, over all its attempts."""
    gpu_hours: float
    """The GPU-hours of all tasks."""
    longest: float
    """The wall time of the longest task, hours: benchmarks have different numbers of problems."""

    def attempts(self, job: Job) -> int:
        """How often each task is started when only its time limit ends it."""
        return ceil(self.longest * 60 / job.resources.time_limit_minutes)


def expected_hours(plan: Plan, recipe: Experiment, throughput: Throughput) -> dict[str, ExpectedHours]:
    """By job name; a job is left out where its problems cannot be counted because their file is not there."""
    found = {job.name: _job_hours(job, recipe, throughput) for job in plan.jobs}
    return {
        job.name: ExpectedHours(mean, mean * job.tasks * job.resources.gpus, max(hours))
        for job in plan.jobs
        if (hours := found[job.name]) is not None
        for mean in [sum(hours) / len(hours)]
    }


def _job_hours(job: Job, recipe: Experiment, throughput: Throughput) -> list[float] | None:
    """Return the hours of each task of an evaluation, or those that every task of another job takes; None where they
    cannot be known.
    """
    if job.role in (Role.PREPARE, Role.REPORT):
        return [0.1]
    if job.role is Role.EVALUATION:
        seconds = [_unit_seconds(unit, recipe, throughput) for unit in job.evaluations]
        known = [one for one in seconds if one is not None]
        return None if len(known) < len(seconds) else [(START_S + one) / 3600 for one in known]
    assert isinstance(recipe, Recipe), "an evaluation on its own has no other jobs"
    lengths = [_iteration_seconds(job, recipe, iteration, throughput) for iteration in job.iterations]
    known = [length for length in lengths if length is not None]
    return None if len(known) < len(lengths) else [(START_S + sum(known)) / 3600]


def _iteration_seconds(job: Job, recipe: Recipe, iteration: int, throughput: Throughput) -> float | None:
    """How long an iteration keeps a job busy: both jobs of a segment, where they run together."""
    sampling, training = (
        sampling_seconds(recipe, iteration, throughput),
        training_seconds(recipe, iteration, throughput),
    )
    if is_collection(iteration):
        return sampling
    if not recipe.algorithm.samples_rollouts or sampling is None:
        return training
    if recipe.schedule.coupling is Coupling.SEQUENTIAL:
        return sampling if job.role is Role.INFERENCE else training
    return max(sampling, training) if recipe.schedule.max_staleness else sampling + training


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


def training_seconds(recipe: Recipe, iteration: int, throughput: Throughput) -> float:
    """Return the seconds of an update, its weights version and its part of a checkpoint."""
    training = recipe.training
    update = recipe.algorithm.trained_tokens(recipe, iteration) / (
        recipe.resources.trainer.ranks * throughput.trained_per_s
    )
    return update + throughput.publish_s + throughput.checkpoint_s / training.checkpoint_every


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


def _unit_seconds(unit: EvaluationUnit, recipe: Experiment, throughput: Throughput) -> float | None:
    evaluation = recipe.evaluation
    benchmark = next(b for b in evaluation.benchmarks if b.name == unit.benchmark)
    problems = count_problems(benchmark.problems)
    if problems is None:
        return None
    trace = min(evaluation.max_tokens, recipe.expected.trace_tokens or evaluation.max_tokens / 2)
    if benchmark.mode is not None:
        trace = benchmark.mode.expected_tokens(trace)
    if evaluation.prover is not None:
        episodes = (evaluation.episodes or recipe.episodes).max_episodes
        trace += (episodes + 1) * tokens_per_value(evaluation.prover, recipe)
    return problems / evaluation.problem_shards * benchmark.samples * trace / throughput.sampled_per_s


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
