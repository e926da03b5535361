"""``mrt-hpc plan`` shows the cost and the limits of a plan before a queue gets it."""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from mrt_hpc.api import resolve_request
from mrt_hpc.backends.backend import Backend, Site, StartEstimate
from mrt_hpc.cli.cost import hours_table
from mrt_hpc.cli.options import site_of_command
from mrt_hpc.cli.terminal import FittedTable, Terminal, echo, echo_json, table_of
from mrt_hpc.datasets.named import fetch_command
from mrt_hpc.errors import UserError, line_of
from mrt_hpc.plan.compile import compile_plan, evaluation_plan
from mrt_hpc.plan.hours import (
    RATES,
    ExpectedHours,
    Throughput,
    expected_hours,
    expected_uses,
    late_checkpoint,
    lengths_taken,
    plan_cost,
    throughput,
)
from mrt_hpc.plan.jobs import Job, Plan, few_names
from mrt_hpc.plan.memory_fit import Fits, RoleFit, fits, unfit
from mrt_hpc.plan.whole_nodes import filled_nodes
from mrt_hpc.recipe.base import require_kind
from mrt_hpc.recipe.hub_models import not_fetched
from mrt_hpc.recipe.schema import EvaluationRecipe, Experiment, Recipe
from mrt_hpc.recipe.site import SiteSettings
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.prompt_files import prompt_files
from mrt_hpc.submit.changes import refuse_other_recipe
from mrt_hpc.submit.create import check_model
from mrt_hpc.submit.submission import jobs_left, kept_recipe, objections_to, preview_changes

if TYPE_CHECKING:
    from mrt_hpc.backends.sites import ChosenSite

WIDE = 140
"""The columns from which on a sentence is not broken."""


def print_plan(recipe: Path, site: str | None, *, show_sbatch: bool, as_json: bool, **typed: Any) -> None:
    """Print the jobs, their expected hours, and the hours of their time limits; or the texts for sbatch, or JSON. It
    reads its words as ``submit`` does.
    """
    asked, layout = resolve_request(recipe, **typed)
    chosen = site_of_command(site, layout)
    if isinstance(asked, Recipe):
        asked = kept_recipe(layout, asked, (lambda _: None) if as_json and not show_sbatch else echo)
    plan = _make_plan(asked, chosen.site)
    if show_sbatch:
        _print_sbatch(plan, asked, chosen.site, layout)
    elif as_json:
        _print_json(plan, asked, chosen.site)
    else:
        print_whole(plan, asked, chosen, layout, "submit")


def print_whole(plan: Plan, recipe: Experiment, chosen: "ChosenSite", layout: RunLayout, command: str) -> None:
    """Print a plan: its jobs, hours and memory, what the command would refuse or change, and what is doubtful.
    ``command`` is the one that starts the plan, ``submit`` or ``eval``; the run directory need not exist.
    """
    console, (rates, expected) = Terminal(sys.stdout), rates_and_hours(plan, recipe, chosen.site)
    console.print(plan_table(plan, expected))
    spans = f"{plan.iterations} iterations in {plan.segments} segment(s); " if recipe.trains else ""
    console.print(f"{spans}{len(plan.jobs)} sbatch calls, {plan.tasks} array tasks.")
    if uses := expected_uses(plan, expected):
        console.print(hours_table(uses, of_gpus=any(row.gpu_hours for row in uses), expected=True))
    say(console, *cost_lines(plan, recipe, expected, rates, chosen.site))
    print_memory(console, recipe, chosen.site, command)
    console.print(f"Run directory: {line_of(layout.root)}", soft_wrap=True)
    if not layout.recipe_lock.is_file():
        print_missing(console, recipe, command)
    elif isinstance(recipe, Recipe):
        for refused, sentence in preview_changes(layout, recipe, plan):
            if refused:
                warn(console, "submit will refuse", sentence)
            else:
                say(console, f"submit will change the run: {sentence}")
    if isinstance(recipe, Recipe) and rates is not None and (late := late_checkpoint(recipe, chosen.site, rates)):
        warn(console, "doubtful", late)
    print_objections(console, plan, recipe, chosen, command)
    print_starts(console, plan, recipe, chosen.site.backend(), layout)


def warn(console: Console, words: str, sentence: str, *, whole: bool = False) -> None:
    """Print what speaks against a plan, behind words for its consequence; with ``whole`` on one line anyway."""
    console.print(Text.assemble((f"{words}:", "yellow"), f" {sentence}"), soft_wrap=whole or is_wide(console))


def say(console: Console, *sentences: str) -> None:
    """Print sentences, which are not broken in a file or a pipe."""
    for sentence in sentences:
        console.print(sentence, soft_wrap=is_wide(console))


def is_wide(console: Console) -> bool:
    return console.width >= WIDE


def rates_and_hours(
    plan: Plan, recipe: Experiment, site: SiteSettings
) -> tuple[Throughput | None, dict[str, ExpectedHours]]:
    """None and no hours where the throughput is not known."""
    rates = throughput(recipe, site)
    return rates, {} if rates is None else expected_hours(plan, recipe, rates)


def print_memory(console: Console, recipe: Experiment, site: SiteSettings, command: str) -> None:
    fitted = fits(recipe, site)
    if fitted.roles:
        console.print(memory_table(fitted))
    say(console, *memory_lines(fitted))
    for refused, sentence in memory_warnings(fitted, recipe):
        warn(console, f"does not fit, {command} will refuse" if refused else "doubtful", sentence)


def print_missing(console: Console, recipe: Experiment, command: str) -> None:
    """The command waits for models of runs, and refuses to do without anything else."""
    for model in awaited_models(recipe):
        console.print(f"not there yet, {command} will wait for it: {model}", soft_wrap=True)
    for missing_input in missing_inputs(recipe):
        warn(console, f"not there yet, {command} will refuse", missing_input, whole=True)
    if any(_missing_models(recipe)):
        return
    try:
        check_model(recipe)  # the files and the chat template of a model that is there
    except UserError as error:
        sentence = f"{error.what}; {error.where}; next: {error.advice}"
        warn(console, f"{command} will refuse", sentence, whole=True)


def print_objections(console: Console, plan: Plan, recipe: Experiment, chosen: "ChosenSite", command: str) -> None:
    if (error := chosen.refusal()) is not None:
        warn(console, f"{command} will refuse", f"{error.what}; {error.advice}")
        return
    backend = chosen.site.backend()
    objections = objections_to(recipe, plan, backend)
    for sentence in objections.refused:
        warn(console, f"beyond {backend.place}, {command} will refuse", sentence)
    for sentence in objections.doubts:
        warn(console, "doubtful", sentence)


def print_starts(console: Console, plan: Plan, recipe: Experiment, backend: Backend, layout: RunLayout) -> None:
    """Print the queue's present estimates of when the jobs that are not done would start, if it makes any."""
    try:
        jobs = jobs_left(plan, layout) if layout.recipe_lock.is_file() else plan.jobs
        estimates = backend.starts(jobs, recipe, layout)
    except UserError as error:
        warn(console, "the queue was not asked when the jobs could start", error.what)
        return
    say(console, *start_lines(plan, estimates, time.time()))


def start_lines(plan: Plan, estimates: Sequence[StartEstimate], now: float) -> Iterator[str]:
    """The queue's estimates, in sentences; times are those of the local clock, ``now`` is seconds since the epoch."""
    if timed := [(estimate, estimate.at) for estimate in estimates if estimate.at is not None]:
        commands = " and ".join(dict.fromkeys(estimate.asked for estimate, _ in timed))
        yield f"If it were submitted now and waited for no other job, by the queue's present estimate ({commands}),"
    for estimate, at in timed:
        job, others = plan.job(estimate.jobs[0]), len(estimate.jobs) - 1
        what = f"the first task of {job.name}" if job.tasks > 1 else job.name
        alike = f", and {others} other job(s) of its size," if others else ""
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
        yield f"  {what}{alike} could start at {when} ({_time_until(at, now)})"
    for estimate in estimates:
        if estimate.is_taken is False:
            names = few_names(estimate.jobs)
            yield f"{estimate.asked} takes no such job, and submit will refuse {names}: {estimate.answer}"
        elif estimate.at is None:
            yield f"No start time for {few_names(estimate.jobs)}: the answer of {estimate.asked} was {estimate.answer}"


def _time_until(at: float, now: float) -> str:
    """The text is such as ``in 12 minutes``."""
    minutes = max(0, ceil((at - now) / 60))
    if minutes <= 1:
        return "at once"
    return f"in {minutes} minutes" if minutes < 120 else f"in {minutes // 60} h {minutes % 60} min"


def _print_json(plan: Plan, recipe: Experiment, site: SiteSettings) -> None:
    _, expected = rates_and_hours(plan, recipe, site)
    hours = {name: {"hours": e.hours, "gpu_hours": e.gpu_hours} for name, e in expected.items()}
    fitted = fits(recipe, site)
    roles = [{**asdict(role), "share": role.share, "fits": role.fits} for role in fitted.roles]
    memory = {"roles": roles, "unchecked": list(fitted.unchecked)}
    echo_json({**plan.as_json(), "expected": hours, "memory": memory})


def _print_sbatch(plan: Plan, recipe: Experiment, site: Site, layout: RunLayout) -> None:
    """Print the job scripts, as submit writes them, but for secrets of the site."""
    if layout.recipe_lock.is_file():
        refuse_other_recipe(layout, recipe)
    for name, text in site.hide_secrets().backend().texts(plan, recipe, layout):
        echo(f"# ---- {name}\n{text}")


def _make_plan(recipe: Experiment, site: SiteSettings) -> Plan:
    if isinstance(recipe, EvaluationRecipe):
        return evaluation_plan(recipe, site)
    return compile_plan(require_kind(recipe, Recipe), site)


def _charge_clause(plan: Plan, expected: dict[str, ExpectedHours], rates: Throughput) -> str:
    """What whole nodes do to the hours; empty text where the site gives out parts of nodes."""
    if rates.node_gpus is None:
        return ""
    asked = sum(e.hours * job.tasks * job.resources.gpus for job in plan.jobs if (e := expected.get(job.name)))
    return f" as this site charges them, all {rates.node_gpus} GPUs of each node (tasks ask for {asked:,.0f} of them)"


def cost_lines(
    plan: Plan, recipe: Experiment, expected: dict[str, ExpectedHours], rates: Throughput | None, site: SiteSettings
) -> Iterator[str]:
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
        yield f"Expected: {total:,.0f} GPU-hours{without}{_charge_clause(plan, expected, rates)}, by {rates.source}."
        if (filled := filled_nodes(recipe, site, partial(_make_plan, site=site))) is not None:
            yield f"Tasks that fill whole nodes are expected to take {filled.gpu_hours:,.0f} GPU-hours: {filled.words}"
        yield f"Lengths: {'; '.join(lengths_taken(recipe))}."
        if unknown:
            yield "The number of problems that are not there can be stated as the `limit` of their source."
    if isinstance(recipe, Recipe) and (most := recipe.sampling.problems_per_place) > 1:
        yield (
            f"sampling.resample: {recipe.sampling.resample} samples up to {most} times the groups of an iteration "
            "(sampling.resample_limit); expected hours count each once."
        )
    again = {job.name: e.attempts(job) for job in plan.jobs if (e := expected.get(job.name)) and e.attempts(job) > 1}
    for name, attempts in again.items():
        yield f"{name} is expected to reach its time limit and to be queued again {attempts - 1} time(s)."
    cost = plan_cost(plan, site.limits.node_gpus)
    yield (
        f"The time limits allot {cost.gpu_hours:,.0f} GPU-hours and {cost.core_hours:,.0f} core-hours if each job runs "
        "once. This is no upper bound: a job that is preempted or reaches its limit is queued again."
    )


def plan_table(plan: Plan, expected: dict[str, ExpectedHours]) -> FittedTable:
    """One row a job; ``expected`` holds the hours that are known."""
    numbers = ("tasks", "ranks", "GPUs", "cores", "GiB", "limit", "expected", "GPU-h")
    table = table_of(f"{plan.name}: {len(plan.jobs)} jobs", "job", "iterations", "after", *numbers, right=numbers)
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
    hours = ("?", "?") if expected is None else (_clock(ceil(expected.hours * 60)), f"{expected.gpu_hours:,.1f}")
    memory, limit = f"{r.memory_gib_per_node * r.nodes:g}", _clock(r.time_limit_minutes)
    return (job.name, span, after, tasks, *map(str, (r.ranks, r.gpus, r.cpus)), memory, limit, *hours)


def _clock(minutes: int) -> str:
    """Hours and minutes, as in 12:05."""
    return f"{minutes // 60}:{minutes % 60:02d}"


def awaited_models(recipe: Experiment) -> Iterator[str]:
    """Models of an evaluation that a run has yet to publish."""
    for model in recipe.models:
        if model.run is not None and not Path(model.path).is_dir():
            yield f"model {model.name} {model.path}"


def missing_inputs(recipe: Experiment) -> Iterator[str]:
    """Files and folders that the recipe names and that are missing, except models that a run has yet to publish."""
    yield from _missing_models(recipe)
    sources = {"data": recipe.data, **{f"benchmark {b.name}": b.problems for b in recipe.evaluation.benchmarks}}
    for what, problems in sources.items():
        path = getattr(problems, "path", None)
        if path is not None and not (file := Path(path).resolve()).is_file():
            command = fetch_command(file)
            yield f"{what} {file}" + (f"; next, on a node with network access: {command}" if command else "")


def _missing_models(recipe: Experiment) -> Iterator[str]:
    for what, directory in recipe.model_directories.items():
        if unfetched := not_fetched(directory):
            yield f"{what}: {unfetched}"
        elif not Path(directory).is_dir():
            yield f"{what} {Path(directory).resolve()}"
    for what, file in prompt_files(recipe).items():
        if not file.is_file():
            yield f"{what} {file.resolve()}"


# -- memory ------------------------------------------------------------------------------------------------------------


PARTS = ("weights", "optimiser", "gradients", "exchange", "activations", "logits", "KV cache", "other")


def memory_table(fitted: Fits) -> FittedTable:
    """One column a role: GiB of one process at its peak, by use; a column adds up to what is needed."""
    roles = fitted.roles
    names = [role.name for role in roles]
    table = table_of("memory of a process at its peak, GiB", "for", *names, right=names)
    for part in (part for part in PARTS if any(part in role.parts for role in roles)):
        table.add_row(part, *(_number(role.parts.get(part)) for role in roles))
    table.add_section()
    table.add_row("needed", *(_number(role.needed) for role in roles))
    table.add_row("of", *(f"{role.limit:.1f} {role.place}" for role in roles))
    table.add_row("share", *(f"{role.share:.0%}".replace("%", " %") for role in roles))
    return table


def _number(gib: float | None) -> str:
    return "" if gib is None else f"{gib:.1f}" if gib >= 0.05 or not gib else f"{gib:.3f}"


def memory_lines(fitted: Fits) -> Iterator[str]:
    """What the caches hold, where the limits are from, and what was not checked."""
    yield from (role.note for role in fitted.roles if role.note)
    if sources := dict.fromkeys(role.source for role in fitted.roles if role.place == "GPU"):
        yield f"The memory of a GPU: {'; '.join(sources)}. What a server takes besides its weights is an estimate."
    yield from fitted.unchecked


def memory_warnings(fitted: Fits, recipe: Experiment) -> Iterator[tuple[bool, str]]:
    """What will be refused (True), and what is doubtful (False), a sentence each."""
    for role in fitted.refused_roles:
        yield True, _unfit_in_a_line(role, recipe)
    for role in fitted.doubtful:
        near = f"{role.name} needs {role.share:.0%} of its {role.limit:.1f} GiB ({role.source})"
        yield False, near if role.fits else _unfit_in_a_line(role, recipe)


def _unfit_in_a_line(role: RoleFit, recipe: Experiment) -> str:
    error = unfit(role, recipe)
    return f"{error.what}; {error.expected}; next: {error.advice}"
