"""Applies a later submission's changes to a run's resources and changeable fields, while no task runs. A journal is
written first and removed last: after an interruption, the same submission finishes it, and one with the old values
reverts it.
"""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mrt_hpc.analysis.measures import is_evaluated
from mrt_hpc.analysis.number_formats import span_text
from mrt_hpc.errors import Advice
from mrt_hpc.plan.jobs import EvaluationUnit, Job, Plan, Role, read_plan
from mrt_hpc.recipe.lock import FREE_SECTIONS, lock_text, read_lock
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.recipe.sections import BenchmarkSampling, PromptLimits
from mrt_hpc.run.atomic import remove_whole, write_json, write_text
from mrt_hpc.run.evaluation_settings import evaluation_settings, has_samples, pass_over, pruned_versions
from mrt_hpc.run.events import SUBMISSION, EventKind, EventLog, event_file
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.problems import omitted_file, write_problems
from mrt_hpc.run.prompt_files import keep_prompt_files
from mrt_hpc.run.records import Problem
from mrt_hpc.run.task_state import TaskRecord, TaskState, task_file, write_task
from mrt_hpc.run.typed_file import read_if_there
from mrt_hpc.submit.changes import PROMPT_LIMITS, Change, changes, returning_problems
from mrt_hpc.submit.create import check_length, problem_sources, problems_of

EVALUATING = ("evaluation.", "schedule.iterations", *PROMPT_LIMITS)
"""Prefixes of fields that decide which evaluations there are, with which settings."""


def is_renewed(layout: RunLayout, recipe: Experiment, plan: Plan) -> bool:
    """Whether a submission, or an interrupted earlier one, asks for other values."""
    as_it_is = read_lock(layout.recipe_lock) == recipe and read_plan(layout.plan) == plan
    return layout.renewal.exists() or not as_it_is


def renew(layout: RunLayout, recipe: Experiment, plan: Plan) -> list[str]:
    """Apply another recipe and plan. Finished results stay; tasks with new work are opened.

    Tasks are opened before the plan is written, as comparing the plans shows which have new work. The plan goes before
    the lock: a task started in between finds its job in either.

    Args:
        layout: held by this process.
        recipe: of which :mod:`mrt_hpc.submit.changes` refused nothing.

    Returns:
        A sentence for each change, and for each that can no longer be applied.
    """
    renewal = Renewal.of(layout, recipe, plan)
    write_json(layout.renewal, renewal.journal())
    if renewal.evaluates_otherwise:
        pass_over(layout, renewal.pruned)
    keep_prompt_files(layout, recipe)
    for path, problems in renewal.data.items():
        write_problems(path, problems)
        remove_whole(omitted_file(path))
    renewal.open_again(renewal.jobs_to_open(read_plan(layout.plan)))
    write_json(layout.plan, plan.as_json())
    write_text(layout.recipe_lock, lock_text(recipe))
    _record_changes(layout, renewal.changes)
    remove_whole(layout.renewal)
    return renewal.sentences()


@dataclass(frozen=True)
class Renewal:
    """A submission's changes, before anything is written."""

    layout: RunLayout
    recipe: Experiment
    plan: Plan
    changes: list[Change]
    data: dict[Path, list[Problem]]
    """New contents of problem files that are missing, of another source, or lack problems that a limit had left out."""
    pruned: list[int]
    """Versions to evaluate that no longer exist."""

    @staticmethod
    def of(layout: RunLayout, recipe: Experiment, plan: Plan) -> "Renewal":
        """A submission's changes, with those of an interrupted one before."""
        locked, journal = read_lock(layout.recipe_lock), _journal(layout)
        changed = changes(layout, recipe) or [*journal.changes]
        check_length(layout, locked, recipe)
        sources = problem_sources(layout, recipe)
        paths = changed_data(layout, locked, recipe) | {layout.root / name for name in journal.data}
        data = {path: problems_of(sources[path]) for path in sorted(paths & sources.keys())}
        return Renewal(layout, recipe, plan, changed, data, pruned_versions(layout, recipe.evaluated_versions))

    def journal(self) -> dict[str, Any]:
        names = [str(path.relative_to(self.layout.root)) for path in self.data]
        return {"changes": [asdict(change) for change in self.changes], "data": names}

    @property
    def evaluates_otherwise(self) -> bool:
        return bool(self.data) or any(change.field.startswith(EVALUATING) for change in self.changes)

    def jobs_to_open(self, before: Plan) -> list[Job]:
        """Jobs that may have work that the job of their name has not done."""
        earlier = {job.name: job for job in before.jobs}
        return [job for job in self.plan.jobs if self._has_new_work(job, earlier.get(job.name))]

    def _has_new_work(self, job: Job, earlier: Job | None) -> bool:
        if job.role in (Role.EVALUATION, Role.REPORT) and self.evaluates_otherwise:
            return True
        if job.segment is None:
            return False
        return earlier is None or (job.iterations, job.evaluations) != (earlier.iterations, earlier.evaluations)

    def open_again(self, jobs: Iterable[Job]) -> None:
        """Reset these jobs' tasks; each finds its finished work. Evaluations that exist or cannot be made are done.
        The new recipe's data are written before.
        """
        asked = evaluation_settings(self.layout, self.recipe)

        def is_settled(unit: EvaluationUnit) -> bool:
            shard = self.layout.evaluation_shard(unit.version, unit.benchmark, unit.shard)
            if unit.version in self.pruned and not has_samples(shard, asked[unit.benchmark]):
                return True
            return is_evaluated(self.layout, unit, asked[unit.benchmark])

        for job in jobs:
            for index in range(job.tasks):
                if job.evaluations and is_settled(job.evaluations[index]):
                    write_task(self.layout, job.name, index, TaskRecord(TaskState.DONE))
                else:
                    remove_whole(task_file(self.layout, job.name, index))

    def sentences(self) -> list[str]:
        others = [c for c in self.changes if c.field.partition(".")[0] not in FREE_SECTIONS]
        sentences = [f"the run continues with another value: {change}" for change in others]
        if len(sentences) < len(self.changes):
            sentences.append("the run continues with the changed resources")
        if self.evaluates_otherwise and self.pruned:
            sentences.append(
                f"weights versions {span_text(self.pruned)} were pruned and cannot be evaluated with these settings; "
                "results that they have of the same settings stay"
            )
        return sentences


def changed_data(layout: RunLayout, locked: Experiment, recipe: Experiment) -> set[Path]:
    """Problem files that are missing, of another source, or lack problems that would be kept now."""
    before = problem_sources(layout, locked)
    earlier, limits = prompt_limits(layout, locked), prompt_limits(layout, recipe)
    return {
        path
        for path, source in problem_sources(layout, recipe).items()
        if before.get(path) != source
        or not path.exists()
        or (earlier.get(path) != limits[path] and returning_problems(path, limits[path]))
    }


def prompt_limits(layout: RunLayout, recipe: Experiment) -> dict[Path, PromptLimits]:
    sampling: dict[Path, PromptLimits | BenchmarkSampling] = {layout.train_data: recipe.sampling}
    for benchmark in recipe.evaluation.benchmarks:
        sampling[layout.benchmark_data(benchmark.name)] = recipe.sampling_of(benchmark)
    return {
        path: PromptLimits(max_prompt_tokens=how.max_prompt_tokens, long_prompts=how.long_prompts)
        for path, how in sampling.items()
    }


@dataclass(frozen=True)
class Journal:
    changes: tuple[Change, ...] = ()
    data: tuple[str, ...] = ()
    """Problem files to rewrite, relative to the run directory."""


def _journal(layout: RunLayout) -> Journal:
    path = layout.renewal
    advice = Advice("rm -r {path}, and {again}, which compares the recipe with the run", path=path, again=layout.again)
    return read_if_there(path, Journal, "the record of an interrupted submission", Journal(), advice=advice)


def _record_changes(layout: RunLayout, changed: Sequence[Change]) -> None:
    if written := [{"field": change.field, "old": change.old, "new": change.new} for change in changed]:
        path = event_file(layout.events, SUBMISSION, 0, 0, uuid.uuid4().hex[:8])
        EventLog(path).emit(EventKind.RECIPE_CHANGED, changes=written)
