"""Applies the changes of a later submission to a run: its resources, and the fields of the recipe that may change. No
task of the run may be running. A journal is written first and removed last: if a submission is interrupted in between,
the same submission finishes it, and a submission with the old values reverts it.
"""

import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mrt_hpc.analysis.measures import as_ranges, is_evaluated
from mrt_hpc.errors import word
from mrt_hpc.plan.jobs import EvaluationUnit, Job, Plan, Role, read_plan
from mrt_hpc.recipe.lock import FREE_SECTIONS, lock_text, read_lock
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.recipe.sections import BenchmarkSampling, PromptLimits
from mrt_hpc.run.atomic import remove_whole, write_json, write_text
from mrt_hpc.run.evaluation_settings import (
    EvaluationSettings,
    evaluation_settings,
    has_samples,
    pass_over,
    pruned_versions,
)
from mrt_hpc.run.events import SUBMISSION, EventKind, EventLog, event_file
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.problems import left_out_file, write_problems
from mrt_hpc.run.prompt_files import keep_prompt_files
from mrt_hpc.run.records import Problem
from mrt_hpc.run.task_state import TaskRecord, TaskState, task_file, write_task
from mrt_hpc.run.typed_file import read_if_there
from mrt_hpc.submit.changes import PROMPT_LIMITS, Change, changes, returning
from mrt_hpc.submit.create import check_length, problem_sources, problems_of

EVALUATING = ("evaluation.", "schedule.iterations", *PROMPT_LIMITS)
"""The prefixes of the fields that decide which evaluations there are, and with which settings."""


def is_renewed(layout: RunLayout, recipe: Experiment, plan: Plan) -> bool:
    """Whether a submission asks for other values than the run has, or an earlier one that did was interrupted."""
    as_it_is = read_lock(layout.recipe_lock) == recipe and read_plan(layout.plan) == plan
    return layout.renewal.exists() or not as_it_is


def renew(layout: RunLayout, recipe: Experiment, plan: Plan) -> list[str]:
    """Apply another recipe and plan. Finished results stay; tasks that have new work are opened again.

    Tasks are opened before the plan is written, because the comparison of the two plans shows which of them have new
    work; a task that is opened without need finds all its work done. The plan goes before the lock: a task started
    between the two writes finds its job in either.

    Args:
        layout: the run directory, which this process holds.
        recipe: of the submission, of which :mod:`mrt_hpc.submit.changes` has refused nothing.
        plan: of the submission.

    Returns:
        One sentence for each change, and for each that cannot be applied any more.

    Raises:
        UserError: data of a benchmark are not there, or wrong, or sequences are too long for the model; nothing is
            changed then.
    """
    renewal = Renewal.of(layout, recipe, plan)
    write_json(layout.renewal, renewal.journal())
    if renewal.evaluates_otherwise:
        pass_over(layout, renewal.pruned)
    keep_prompt_files(layout, recipe)
    for path, problems in renewal.data.items():
        write_problems(path, problems)
        remove_whole(left_out_file(path))
    for job in renewal.jobs_to_open(read_plan(layout.plan)):
        renewal.open_again(job)
    write_json(layout.plan, plan.as_json())
    write_text(layout.recipe_lock, lock_text(recipe))
    _record_changes(layout, renewal.changes)
    remove_whole(layout.renewal)
    return renewal.sentences()


@dataclass(frozen=True)
class Renewal:
    """The changes of a submission, before anything is written."""

    layout: RunLayout
    recipe: Experiment
    plan: Plan
    changes: list[Change]
    data: dict[Path, list[Problem]]
    """What the run's files of problems are to hold, where they are not there, hold those of another source, or lack
    some that a limit of prompts had left out."""
    pruned: list[int]
    """The weights versions that should be evaluated and no longer exist."""

    @staticmethod
    def of(layout: RunLayout, recipe: Experiment, plan: Plan) -> "Renewal":
        """Return the changes of a submission, together with those of an interrupted one before it.

        Raises:
            UserError: data of a benchmark are not there, or wrong; or sequences are too long for the model.
        """
        locked, journal = read_lock(layout.recipe_lock), _journal(layout)
        changed = changes(layout, recipe) or [*journal.changes]
        check_length(layout, locked, recipe)
        sources = problem_sources(layout, recipe)
        paths = changed_data(layout, locked, recipe) | {layout.root / name for name in journal.data}
        data = {path: problems_of(sources[path]) for path in sorted(paths & sources.keys())}
        return Renewal(layout, recipe, plan, changed, data, pruned_versions(layout, recipe.evaluated_versions))

    def journal(self) -> dict[str, Any]:
        """The content of the journal."""
        names = [str(path.relative_to(self.layout.root)) for path in self.data]
        return {"changes": [asdict(change) for change in self.changes], "data": names}

    @property
    def evaluates_otherwise(self) -> bool:
        """Whether new evaluations are planned, or evaluations with other settings."""
        return bool(self.data) or any(change.field.startswith(EVALUATING) for change in self.changes)

    def jobs_to_open(self, before: Plan) -> list[Job]:
        """Jobs of the new plan that may have to do what the job of their name has not done."""
        earlier = {job.name: job for job in before.jobs}
        return [job for job in self.plan.jobs if self._has_new_work(job, earlier.get(job.name))]

    def _has_new_work(self, job: Job, earlier: Job | None) -> bool:
        if job.role in (Role.EVALUATION, Role.REPORT) and self.evaluates_otherwise:
            return True
        if job.segment is None:
            return False
        return earlier is None or (job.iterations, job.evaluations) != (earlier.iterations, earlier.evaluations)

    def open_again(self, job: Job) -> None:
        """Reset the states of a job's tasks; each task finds in the run directory what it has finished. An evaluation
        that already exists, or cannot be made, is done.
        """
        for index in range(job.tasks):
            if job.evaluations and self._is_settled(job.evaluations[index]):
                write_task(self.layout, job.name, index, TaskRecord(TaskState.DONE))
            else:
                remove_whole(task_file(self.layout, job.name, index))

    def _is_settled(self, unit: EvaluationUnit) -> bool:
        settings = self._settings[unit.benchmark]
        shard = self.layout.evaluation_shard(unit.version, unit.benchmark, unit.shard)
        if unit.version in self.pruned and not has_samples(shard, settings):
            return True
        return is_evaluated(self.layout, unit, settings)

    @cached_property
    def _settings(self) -> dict[str, EvaluationSettings]:
        """The settings of the new recipe; asked for once the data are written."""
        return evaluation_settings(self.layout, self.recipe)

    def sentences(self) -> list[str]:
        """The sentences that are printed for the user."""
        sentences = [f"the run continues with another value: {c}" for c in self.changes if not is_of_resources(c)]
        if len(sentences) < len(self.changes):
            sentences.append("the run continues with the changed resources")
        if self.evaluates_otherwise and self.pruned:
            sentences.append(
                f"weights versions {as_ranges(self.pruned)} were pruned and cannot be evaluated with these settings; "
                "results that they have of the same settings stay"
            )
        return sentences


def changed_data(layout: RunLayout, locked: Experiment, recipe: Experiment) -> set[Path]:
    """Files of problems that are not there, hold those of another source, or lack some that were left out and would
    not be now.
    """
    before, earlier, limits = (
        problem_sources(layout, locked),
        prompt_limits(layout, locked),
        prompt_limits(layout, recipe),
    )
    return {
        path
        for path, source in problem_sources(layout, recipe).items()
        if before.get(path) != source
        or not path.exists()
        or (earlier.get(path) != limits[path] and returning(path, limits[path]))
    }


def prompt_limits(layout: RunLayout, recipe: Experiment) -> dict[Path, PromptLimits]:
    """The limits of the prompts of each of the run's files of problems."""
    sampling: dict[Path, PromptLimits | BenchmarkSampling] = {layout.train_data: recipe.sampling}
    for benchmark in recipe.evaluation.benchmarks:
        sampling[layout.benchmark_data(benchmark.name)] = recipe.sampling_of(benchmark)
    return {
        path: PromptLimits(max_prompt_tokens=how.max_prompt_tokens, long_prompts=how.long_prompts)
        for path, how in sampling.items()
    }


def is_of_resources(change: Change) -> bool:
    """Whether a change is one of how the run is run."""
    return change.field.partition(".")[0] in FREE_SECTIONS


@dataclass(frozen=True)
class Journal:
    """The changes of a submission that are being applied."""

    changes: tuple[Change, ...] = ()
    data: tuple[str, ...] = ()
    """The run's files of problems that are written again, relative to the run directory."""


def _journal(layout: RunLayout) -> Journal:
    """Read the changes of an interrupted submission; none if there is no journal.

    Raises:
        UnreadableError: the journal is damaged.
    """
    advice = f"rm -r {word(layout.renewal)}, and {layout.again}, which compares the recipe with the run"
    return read_if_there(layout.renewal, Journal, "the record of an interrupted submission", Journal(), advice=advice)


def _record_changes(layout: RunLayout, changed: Sequence[Change]) -> None:
    written = [{"field": change.field, "old": change.old, "new": change.new} for change in changed]
    if written:
        path = event_file(layout.events, SUBMISSION, 0, 0, uuid.uuid4().hex[:8])
        EventLog(path).emit(EventKind.RECIPE_CHANGED, changes=written)
