"""``mrt-hpc plan``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mrt_hpc.backends.backend import Backend, StartEstimate
from mrt_hpc.cli.options import console_of, run_path, site_of_command
from mrt_hpc.cli.tables import FEW_HOURS, hours_table, memory_json, memory_lines, memory_table, memory_warnings
from mrt_hpc.datasets.named import fetch_command
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.hours import (
    RATES,
    ExpectedHours,
    Throughput,
    expected_hours,
    expected_uses,
    late_checkpoint,
    plan_cost,
    throughput,
)
from mrt_hpc.plan.jobs import Job, Plan
from mrt_hpc.plan.memory_fit import fits
from mrt_hpc.plan.token_counts import lengths_taken
from mrt_hpc.recipe.hub_models import not_fetched
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.recipe.site import SiteSettings
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.prompt_files import prompt_files
from mrt_hpc.submit.changes import refuse_other_recipe
from mrt_hpc.submit.create import check_model
from mrt_hpc.submit.submission import foreseen, jobs_left, kept_recipe, objections_to

if TYPE_CHECKING:
    from mrt_hpc.backends.sites import ChosenSite

TABLE_WIDTH = 140
"""The columns that the table of jobs needs to print every name in one piece."""
FEW_NAMES = 3
"""Names of jobs in one sentence, at most."""


def print_plan(recipe_path: Path, site_name: str | None, overrides: tuple[str, ...], run: Path | None) -> None:
    """Print the jobs, their expected hours, and the hours of their time limits."""
    recipe = load_recipe(recipe_path, overrides)
    layout = RunLayout(run_path(recipe.name, run))
    chosen = site_of_command(site_name, layout)
    recipe, site = kept_recipe(layout, recipe, click.echo), chosen.site
    plan, rates = compile_plan(recipe, site), throughput(recipe, site)
    expected = {} if rates is None else expected_hours(plan, recipe, rates)
    console = console_of(sys.stdout)
    print_jobs(console, plan, expected)
    wide = is_wide(console)
    console.print(
        f"{plan.iterations} iterations in {plan.segments} segment(s); "
        f"{len(plan.jobs)} sbatch calls, {plan.tasks} array tasks.",
        highlight=False,
    )
    print_cost(console, plan, recipe, expected, rates)
    print_memory(console, recipe, site, "submit")
    console.print(f"Run directory: {run_path(recipe.name, run)}", highlight=False, soft_wrap=True)
    if layout.recipe_lock.is_file():
        for refused, sentence in foreseen(layout, recipe, plan):
            words = "[yellow]submit will refuse:[/]" if refused else "submit will change the run:"
            console.print(f"{words} {escape(sentence)}", highlight=False, soft_wrap=wide)
    else:
        print_missing(console, recipe, "submit")
    if rates is not None and (late := late_checkpoint(recipe, site, rates)):
        console.print(f"[yellow]doubtful:[/] {escape(late)}", highlight=False, soft_wrap=wide)
    backend = site.backend()
    print_objections(console, plan, recipe, chosen, "submit")
    print_starts(console, plan, recipe, backend, layout)


def is_wide(console: Console) -> bool:
    """Whether the table of jobs fits. A file or a pipe is wide, and gets each sentence as one line."""
    return console.width >= TABLE_WIDTH


def print_jobs(console: Console, plan: Plan, expected: dict[str, ExpectedHours]) -> None:
    """Print the jobs as a table, or as paragraphs on a terminal that is too narrow for it.

    Args:
        console: where to.
        plan: the jobs.
        expected: hours by job name, of those that are known.
    """
    if is_wide(console):
        console.print(plan_table(plan, expected))
        return
    for line in plan_lines(plan, expected, console.width):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def print_cost(
    console: Console, plan: Plan, recipe: Experiment, expected: dict[str, ExpectedHours], rates: Throughput | None
) -> None:
    """Print the expected hours, what they are used for, and those of the time limits."""
    uses = expected_uses(plan, expected)
    if uses:
        of_gpus = any(row.gpu_hours for row in uses)
        whole = sum(row.gpu_hours if of_gpus else row.core_hours for row in uses)
        digits = 1 if whole >= FEW_HOURS else 3
        console.print(hours_table(uses, of_gpus=of_gpus, digits=digits, expected=True))
    for line in cost_lines(plan, recipe, expected, rates):
        console.print(line, highlight=False, soft_wrap=is_wide(console))


def print_memory(console: Console, recipe: Experiment, site: SiteSettings, command: str) -> None:
    """Print what each role takes of its memory, how many sequences the caches hold, and what does not fit."""
    fitted = fits(recipe, site)
    if fitted.roles:
        console.print(memory_table(fitted))
    for line in memory_lines(fitted):
        console.print(line, highlight=False, markup=False, soft_wrap=is_wide(console))
    for refused, sentence in memory_warnings(fitted, recipe, site):
        words = f"does not fit, {command} will refuse" if refused else "doubtful"
        console.print(f"[yellow]{words}:[/] {escape(sentence)}", highlight=False, soft_wrap=is_wide(console))


def print_missing(console: Console, recipe: Experiment, command: str) -> None:
    """Print what is not there: the command waits for models of runs, and refuses to do without anything else."""
    for model in awaited_models(recipe):
        console.print(f"not there yet, {command} will wait for it: {escape(model)}", highlight=False, soft_wrap=True)
    missing = [*missing_inputs(recipe)]
    for missing_input in missing:
        sentence = f"[yellow]not there yet, {command} will refuse:[/] {escape(missing_input)}"
        console.print(sentence, highlight=False, soft_wrap=True)
    if not any(_missing_of_models(recipe)):
        _print_refused_model(console, recipe, command)


def _print_refused_model(console: Console, recipe: Experiment, command: str) -> None:
    """Print why a model that is there cannot be used, where its files and its chat template show that."""
    try:
        check_model(recipe)
    except UserError as error:
        sentence = f"[yellow]{command} will refuse:[/] {escape(f'{error.what}; {error.where}; next: {error.advice}')}"
        console.print(sentence, highlight=False, soft_wrap=True)


def print_objections(console: Console, plan: Plan, recipe: Experiment, chosen: ChosenSite, command: str) -> None:
    """Print what the place of the jobs refuses, and what is doubtful there."""
    if (error := chosen.refusal()) is not None:
        sentence = f"[yellow]{command} will refuse:[/] {escape(f'{error.what}; {error.advice}')}"
        console.print(sentence, highlight=False, soft_wrap=is_wide(console))
        return
    backend = chosen.site.backend()
    objections = objections_to(recipe, plan, backend)
    beyond = [(f"beyond {backend.place}, {command} will refuse", sentence) for sentence in objections.refused]
    for words, sentence in [*beyond, *(("doubtful", sentence) for sentence in objections.doubts)]:
        console.print(f"[yellow]{words}:[/] {escape(sentence)}", highlight=False, soft_wrap=is_wide(console))


def print_starts(console: Console, plan: Plan, recipe: Experiment, backend: Backend, layout: RunLayout) -> None:
    """Print when the queue would start the jobs that are not done, by its present estimates; nothing where it makes
    none.
    """
    try:
        jobs = jobs_left(plan, layout) if layout.recipe_lock.is_file() else plan.jobs
        estimates = backend.starts(jobs, recipe, layout)
    except UserError as error:
        sentence = f"[yellow]the queue was not asked when the jobs could start:[/] {escape(error.what)}"
        console.print(sentence, highlight=False, soft_wrap=is_wide(console))
        return
    for line in start_lines(plan, estimates, time.time()):
        console.print(line, highlight=False, markup=False, soft_wrap=is_wide(console))


def start_lines(plan: Plan, estimates: Sequence[StartEstimate], now: float) -> Iterator[str]:
    """The queue's estimates, in sentences; times are those of the local clock.

    Args:
        plan: which has the jobs.
        estimates: the queue's answers.
        now: seconds since the epoch.
    """
    timed = [(estimate, estimate.at) for estimate in estimates if estimate.at is not None]
    if timed:
        commands = " and ".join(dict.fromkeys(estimate.asked for estimate, _ in timed))
        yield f"If it were submitted now and waited for no other job, by the queue's present estimate ({commands}),"
    for estimate, at in timed:
        job, others = plan.job(estimate.jobs[0]), len(estimate.jobs) - 1
        what = f"the first task of {job.name}" if job.tasks > 1 else job.name
        alike = f", and {others} other job(s) of its size," if others else ""
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
        yield f"  {what}{alike} could start at {when} ({_until(at, now)})"
    for estimate in estimates:
        if estimate.at is None:
            yield f"No start time for {_names(estimate.jobs)}: the answer of {estimate.asked} was {estimate.answer}"


def _names(jobs: Sequence[str]) -> str:
    """The first few of them."""
    more = len(jobs) - FEW_NAMES
    return ", ".join(jobs[:FEW_NAMES]) + (f" and {more} other job(s)" if more > 0 else "")


def _until(at: float, now: float) -> str:
    """As in ``in 12 minutes``."""
    minutes = max(0, ceil((at - now) / 60))
    if minutes <= 1:
        return "at once"
    return f"in {minutes} minutes" if minutes < 120 else f"in {minutes // 60} h {minutes % 60} min"


def print_plan_as_json(recipe_path: Path, site_name: str | None, overrides: tuple[str, ...], run: Path | None) -> None:
    """Print jobs, expected hours by job, and memory by role, as one JSON object."""
    recipe = load_recipe(recipe_path, overrides)
    layout = RunLayout(run_path(recipe.name, run))
    site = site_of_command(site_name, layout).site
    recipe = kept_recipe(layout, recipe, lambda _: None)
    plan, rates = compile_plan(recipe, site), throughput(recipe, site)
    expected = {} if rates is None else expected_hours(plan, recipe, rates)
    hours = {
        name: {"hours": role_hours.hours, "gpu_hours": role_hours.gpu_hours} for name, role_hours in expected.items()
    }
    print(json.dumps({**plan.as_json(), "expected": hours, "memory": memory_json(fits(recipe, site))}, indent=2))


def print_sbatch(recipe_path: Path, site_name: str | None, overrides: tuple[str, ...], run: Path | None) -> None:
    """Print the job scripts, as submit writes them.

    Raises:
        UserError: the site has no job scripts, or the run is there and was made from another recipe.
    """
    recipe = load_recipe(recipe_path, overrides)
    layout = RunLayout(run_path(recipe.name, run))
    site = site_of_command(site_name, layout).site
    if layout.recipe_lock.is_file():
        recipe = kept_recipe(layout, recipe, click.echo)
        refuse_other_recipe(layout, recipe)
    for name, text in site.backend().texts(compile_plan(recipe, site), recipe, layout):
        print(f"# ---- {name}\n{text}")


def cost_lines(
    plan: Plan, recipe: Experiment, expected: dict[str, ExpectedHours], rates: Throughput | None
) -> Iterator[str]:
    """The cost of the plan, in sentences."""
    if rates is None:
        needed = RATES if recipe.trains else RATES[:1]
        fields = " and ".join(f"throughput.{name}" for name in needed)
        yield (
            f"The expected hours and what they are used for are unknown: state {fields} in the site profile (mrt-hpc "
            "fields site); the report of a run shows what it measured."
        )
    else:
        total = sum(e.gpu_hours for e in expected.values())
        unknown = [job.name for job in plan.jobs if job.name not in expected]
        without = f", without {len(unknown)} job(s) whose problems are not there yet" if unknown else ""
        yield f"Expected: {total:,.0f} GPU-hours{without}, by {rates.source}."
        yield f"Lengths: {'; '.join(lengths_taken(recipe))}."
        if unknown:
            yield "The number of problems that are not there can be stated as the `limit` of their source."
    again = {job.name: e.attempts(job) for job in plan.jobs if (e := expected.get(job.name)) and e.attempts(job) > 1}
    for name, attempts in again.items():
        yield f"{name} is expected to reach its time limit and to be queued again {attempts - 1} time(s)."
    cost = plan_cost(plan)
    yield (
        f"The time limits allot {cost.gpu_hours:,.0f} GPU-hours and {cost.core_hours:,.0f} core-hours if each job runs "
        "once. This is no upper bound: a job that is preempted or reaches its limit is queued again."
    )


def plan_lines(plan: Plan, expected: dict[str, ExpectedHours], width: int) -> Iterator[str]:
    """One paragraph for each job, for a terminal that is too narrow for the table.

    Args:
        plan: the jobs.
        expected: hours by job name, of those that are known.
        width: columns of the terminal.
    """
    yield f"{plan.name}: {len(plan.jobs)} jobs"
    for job in plan.jobs:
        name, span, after, tasks, ranks, gpus, cores, memory, limit, hours, gpu_hours = _row(
            job, expected.get(job.name)
        )
        yield f"{name}{f', iterations {span}' if span else ''}"
        needs = f"{tasks} task(s), each {ranks} rank(s) with {gpus} GPU(s), {cores} core(s), {memory} GiB"
        time = f"limit {limit}, expected {hours}, {gpu_hours} GPU-hours"
        for text in (f"after {after}" if after else "", needs, time):
            yield from wrap(text, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def plan_table(plan: Plan, expected: dict[str, ExpectedHours]) -> Table:
    """One row a job.

    Args:
        plan: the jobs.
        expected: hours by job name, of those that are known.
    """
    table = Table(title=f"{plan.name}: {len(plan.jobs)} jobs", title_justify="left")
    for column in ("job", "iterations", "after"):
        table.add_column(column, overflow="fold")
    for column in ("tasks", "ranks", "GPUs", "cores", "GiB", "limit", "expected", "GPU-h"):
        table.add_column(column, justify="right")
    for job in plan.jobs:
        table.add_row(*_row(job, expected.get(job.name)))
    return table


def _row(job: Job, expected: ExpectedHours | None) -> tuple[str, ...]:
    r = job.resources
    span = f"{job.first_iteration}-{job.end_iteration - 1}" if job.segment is not None else ""
    after = ", ".join(f"{d.kind}:{d.job}" for d in job.after)
    if len(job.after) > 3:
        after = f"{job.after[0].kind}: {len(job.after)} jobs"
    tasks = f"{job.tasks} (%{job.max_parallel})" if job.max_parallel else str(job.tasks)
    numbers = (
        r.ranks,
        r.gpus,
        r.cpus,
        f"{r.memory_gib_per_node * r.nodes:g}",
        _clock(r.time_limit_minutes),
        "?" if expected is None else _clock(ceil(expected.hours * 60)),
        "?" if expected is None else f"{expected.gpu_hours:,.1f}",
    )
    return (job.name, span, after, tasks, *map(str, numbers))


def _clock(minutes: int) -> str:
    """As in 12:05, hours and minutes."""
    return f"{minutes // 60}:{minutes % 60:02d}"


def awaited_models(recipe: Experiment) -> Iterator[str]:
    """The models of an evaluation that a run has yet to publish."""
    for model in recipe.models:
        if model.run is not None and not Path(model.path).is_dir():
            yield f"model {model.name} {model.path}"


def missing_inputs(recipe: Experiment) -> Iterator[str]:
    """The files and folders that the recipe names and that do not exist, but those that a run has yet to publish."""
    yield from _missing_of_models(recipe)
    for what, problems in _problem_sources(recipe).items():
        path = getattr(problems, "path", None)
        if path is not None and not (file := Path(path).resolve()).is_file():
            command = fetch_command(file)
            yield f"{what} {file}" + (f"; next, on a node with network access: {command}" if command else "")


def _missing_of_models(recipe: Experiment) -> Iterator[str]:
    """Models and files of prompts that do not exist."""
    for what, directory in recipe.model_directories.items():
        if unfetched := not_fetched(directory):
            yield f"{what}: {unfetched}"
        elif not Path(directory).is_dir():
            yield f"{what} {Path(directory).resolve()}"
    for what, file in prompt_files(recipe).items():
        if not file.is_file():
            yield f"{what} {file.resolve()}"


def _problem_sources(recipe: Experiment) -> dict[str, object]:
    """The sources of training data and of problems, by what they are in words."""
    return {"data": recipe.data, **{f"benchmark {b.name}": b.problems for b in recipe.evaluation.benchmarks}}
