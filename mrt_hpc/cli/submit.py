"""``mrt-hpc submit``."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import dataclass, field
from textwrap import indent
from typing import TYPE_CHECKING

import click

from mrt_hpc.cli.display import Display
from mrt_hpc.cli.options import run_path
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.launch.changes import with_warmup_begun
from mrt_hpc.launch.containers import with_models_bound
from mrt_hpc.launch.create import create_or_open
from mrt_hpc.launch.ledger import claimed, current_ids, current_submissions, record_submission
from mrt_hpc.launch.local.processes import run_plan
from mrt_hpc.launch.local.slots import beyond_machine, machine_slots
from mrt_hpc.launch.renewal import is_renewed, renew
from mrt_hpc.launch.run_progress import failures, reason, task_records
from mrt_hpc.launch.sites import find_site
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.begun import as_begun, differences
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.recipe.site import LocalSite, SlurmSite, unknown_options
from mrt_hpc.recipe.user_code import changed
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskState, forget_failures

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from mrt_hpc.launch.slurm.cluster_limits import ClusterLimits
    from mrt_hpc.plan.jobs import Job, Plan
    from mrt_hpc.recipe.schema import Recipe


def submit_recipe(recipe_path: Path, site_name: str | None, overrides: tuple[str, ...], run: Path | None) -> None:
    """Check everything, make or open the run directory, and start what is left to do.

    Raises:
        UserError: recipe, site or data are wrong, or a task failed.
    """
    recipe, site = load_recipe(recipe_path, overrides), find_site(site_name)
    recipe = kept_recipe(RunLayout(run_path(recipe.name, run)), recipe)
    plan = compile_plan(recipe, site)
    if isinstance(site, LocalSite):
        machine_slots(plan, site)  # refuses what can never run here, before anything is made
        for sentence in beyond_machine(plan, site):
            click.echo(sentence, err=True)
    else:
        refuse_beyond_cluster(plan, site)
    layout = create_or_open(run_path(recipe.name, run), recipe, plan, group_access=site.group_access)
    if isinstance(site, LocalSite):
        run_here(recipe, plan, layout, site)
    else:
        submit_to_slurm(recipe, plan, layout, site)


def kept_recipe(layout: RunLayout, recipe: Recipe) -> Recipe:
    """The recipe of a submission: where its run is there already, with the run's values in fields it does not name.

    Values that are not today's defaults are told.
    """
    if not layout.recipe_lock.is_file():
        return recipe
    locked = read_recipe_lock(layout.recipe_lock)
    for file in changed(recipe, layout.code):
        click.echo(
            f"the run keeps its own copy of {file.name}, as it began: {layout.code}; another run takes the new one"
        )
    kept = with_warmup_begun(layout, locked, as_begun(locked, recipe))
    for name, default, value in differences(recipe.model_dump(mode="json"), kept.model_dump(mode="json")):
        click.echo(f"the run keeps {name}: {json.dumps(value)}, as it began; the default is {json.dumps(default)} now")
    return kept


def refuse_beyond_cluster(plan: Plan, site: SlurmSite) -> None:
    """Ask the cluster for its limits before anything is made; what is doubtful is said.

    Raises:
        UserError: the cluster would refuse the plan, or never start it.
    """
    from mrt_hpc.launch.slurm.cluster_limits import require_within

    limits = asked_limits()
    for sentence in doubts(plan, site, limits):
        click.echo(sentence, err=True)
    require_within(plan, site, limits)


def asked_limits() -> ClusterLimits | None:
    """The cluster's limits; None where there are no commands of Slurm, or it did not answer, which is said."""
    from mrt_hpc.launch.slurm.cluster_limits import cluster_limits

    try:
        return cluster_limits()
    except UserError as error:
        click.echo(f"the cluster's limits are not known: {error.what}: {error.value or 'no answer'}", err=True)
        return None


def doubts(plan: Plan, site: SlurmSite, limits: ClusterLimits | None) -> list[str]:
    """What may be wrong with a site profile, a sentence each."""
    from mrt_hpc.launch.slurm.cluster_limits import closed_partitions

    return [*unknown_options(site), *(closed_partitions(plan, site, limits) if limits is not None else [])]


def run_here(recipe: Recipe, plan: Plan, layout: RunLayout, site: LocalSite) -> None:
    """Run the plan on this machine, showing how it goes.

    Raises:
        UserError: a task failed, or the run is under way elsewhere.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a shell may have started us with these ignored
        signal.signal(number, signal.default_int_handler)
    with claimed(layout, recipe.resilience.heartbeat_limit_s):
        refuse_queued(layout)
        renew_if_asked(layout, recipe, plan)
        click.echo(f"run directory: {layout.root}")
        with Display.of(sys.stdout.isatty(), layout) as display:
            well = run_plan(plan, layout, site, recipe.resilience.retries, display.show)
    if not well:
        raise failed(plan, layout)
    click.echo(f"done; the report: {layout.report}")


def refuse_queued(layout: RunLayout) -> None:
    """A run is under way in one place at a time.

    Raises:
        UserError: jobs of it are in a Slurm queue.
    """
    if ids := live_jobs(layout):
        raise UserError(
            f"{len(ids)} job(s) of this run are in the queue of a Slurm cluster",
            value=", ".join(sorted(slurm_id for job in ids.values() for slurm_id in job.slurm_ids)),
            where=layout.root,
            advice=f"submit with --site as before, or first mrt-hpc cancel {layout.root}",
        )


@dataclass(frozen=True)
class LiveJob:
    """A job of the run that Slurm will run, or runs."""

    slurm_id: str
    """Of its latest submission."""
    at_work: bool
    """Whether any task of it runs: what it waited for has happened."""
    tasks: Mapping[int, str] = field(default_factory=dict)
    """Slurm's names of its tasks that are queued or run, by their indices."""

    @property
    def slurm_ids(self) -> set[str]:
        """Of all submissions of which a task lives."""
        return {self.slurm_id, *(name.partition("_")[0] for name in self.tasks.values())}


def live_jobs(layout: RunLayout) -> dict[str, LiveJob]:
    """The run's jobs that are queued or run, by job name; one squeue and one sacct at most."""
    from mrt_hpc.launch.slurm.queue import QueueState, queue_states

    states = queue_states(current_ids(layout))
    alive = {task_id: state.state for task_id, state in states.items() if not state.ended}
    found = {}
    for job, parts in current_submissions(layout).items():
        names = {name for name in alive if name.partition("_")[0] in {one.slurm_id for one in parts}}
        if names:
            at_work = any(alive[name] is QueueState.RUNNING for name in names)
            tasks = {int(name.partition("_")[2] or 0): name for name in sorted(names)}
            found[job] = LiveJob(parts[-1].slurm_id, at_work, tasks)
    return found


def lost_tasks(jobs: Sequence[Job], live: Mapping[str, LiveJob], layout: RunLayout) -> dict[str, list[int]]:
    """By job name, the tasks that have ended without being done while others of the same array are queued or run."""
    lost = {
        job.name: [
            index
            for index, record in enumerate(task_records(job, layout))
            if index not in live[job.name].tasks and record.state is not TaskState.DONE
        ]
        for job in jobs
        if job.name in live
    }
    return {name: indices for name, indices in lost.items() if indices}


def awaited_as(job: LiveJob, partly: bool) -> str:
    """How a dependency names a live job: by its id, or by its living tasks where others of it are lost."""
    one = not partly and len(job.slurm_ids) == 1
    return job.slurm_id if one else ":".join(job.tasks.values())


def without_hope(
    jobs: Sequence[Job], live: Mapping[str, LiveJob], satisfied: Collection[str], partly: Collection[str] = ()
) -> list[str]:
    """Queued jobs of which a job that they wait for has ended without being done, or a part of it has (``partly``):
    Slurm is about to cancel them, or to start them too early. In the plan's order, so that hope is lost all the way
    down.
    """
    kept: set[str] = set()
    for job in jobs:
        hopeful = all(wait.job in satisfied or wait.job in kept.difference(partly) for wait in job.after)
        if job.name in live and (live[job.name].at_work or hopeful):
            kept.add(job.name)
    return [name for name in live if name not in kept and name not in satisfied]


def renew_if_asked(layout: RunLayout, recipe: Recipe, plan: Plan) -> None:
    """Take over what the submission changes, and say what; nothing of the run is at work."""
    if is_renewed(layout, recipe, plan):
        for sentence in renew(layout, recipe, plan):
            click.echo(sentence)


def failed(plan: Plan, layout: RunLayout) -> UserError:
    """What to tell when tasks have failed."""
    broken = failures(plan, layout)
    if not broken:
        return UserError("tasks could not start", where=layout.root, advice=f"mrt-hpc status {layout.root}")
    job, index, record = broken[0]
    return UserError(
        f"{len(broken)} task(s) failed; the first was task {index} of {job.name}:\n{indent(reason(record), '    ')}",
        where=layout.logs,
        advice=f"mrt-hpc logs {layout.root} {job.role}; the same submit command continues the run",
        exit_code=ExitCode.RETRYABLE,
    )


def submit_to_slurm(recipe: Recipe, plan: Plan, layout: RunLayout, site: SlurmSite) -> None:
    """Hand to Slurm what is neither done nor queued.

    Raises:
        UserError: the run is under way on some machine, or with other values; or Slurm refuses.
    """
    from mrt_hpc.launch.slurm.arrays import submit
    from mrt_hpc.launch.slurm.queue import cancel

    new: list[tuple[str, str]] = []
    partly: dict[str, list[int]] = {}

    def record(job: str, slurm_id: str) -> None:
        record_submission(layout, job, slurm_id, site.name, partly.get(job))
        new.append((job, slurm_id))
        again = f", of which task(s) {', '.join(map(str, partly[job]))} had been lost" if job in partly else ""
        click.echo(f"submitted {job} as job {slurm_id}{again}")

    with claimed(layout, recipe.resilience.heartbeat_limit_s):  # two submissions at once would double every job
        queued = live_jobs(layout)
        if queued and is_renewed(layout, recipe, plan):
            raise queued_otherwise(layout, queued)
        renew_if_asked(layout, recipe, plan)
        satisfied = [job.name for job in plan.jobs if all(r.state is TaskState.DONE for r in task_records(job, layout))]
        jobs = [job for job in plan.jobs if job.name not in satisfied]
        partly = lost_tasks(jobs, queued, layout)
        hopeless = without_hope(jobs, queued, satisfied, partly)
        cancel(slurm_id for name in hopeless for slurm_id in sorted(queued[name].slurm_ids))
        queued = {name: job for name, job in queued.items() if name not in hopeless}
        partly = {name: indices for name, indices in partly.items() if name in queued}
        for job in jobs:
            again = range(job.tasks) if job.name not in queued else partly.get(job.name, ())
            forget_failures(layout, job.name, again)
        known = {name: awaited_as(job, name in partly) for name, job in queued.items()}
        try:
            submit(
                jobs,
                with_models_bound(site, recipe),
                layout,
                known_ids=known,
                record=record,
                satisfied=satisfied,
                lost_tasks=partly,
            )
        except UserError as error:
            raise half_way(error, new, [job.name for job in jobs if job.name not in {*known, *dict(new)}]) from error
    click.echo(f"{len(new)} job(s) submitted, {len(queued)} queued before, {len(satisfied)} done")
    click.echo(f"run directory: {layout.root}\nfollow it with: mrt-hpc status {layout.root}")


def queued_otherwise(layout: RunLayout, queued: Collection[str]) -> UserError:
    """What to tell of a submission that changes a run of which jobs are queued, by their names."""
    return UserError(
        "jobs of this run are queued with other values",
        value=", ".join(sorted(queued)),
        where=layout.root,
        advice=f"submit as before, or first mrt-hpc cancel {layout.root}",
    )


def half_way(error: UserError, new: Sequence[tuple[str, str]], left: Sequence[str]) -> UserError:
    """The reason why a submission stopped, with what it had submitted until then, and what is left."""
    if not new:
        return error
    submitted = ", ".join(f"{name} as job {slurm_id}" for name, slurm_id in new)
    return UserError(
        f"{error.what}\n  submitted before it, and queued: {submitted}\n  left: {', '.join(left)}",
        value=error.value,
        where=error.where,
        expected=error.expected,
        advice=f"{error.advice or 'give the same submit command again'}; that submits the jobs that are left",
        exit_code=error.exit_code,
    )
