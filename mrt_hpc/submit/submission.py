"""A submission finds the jobs left to do and gives them to the site's back end.

It refuses what cannot run before anything is made, and holds the run meanwhile, so that two submissions cannot double
its jobs.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from mrt_hpc.attempt.ledger import claim_run, local_process, record_site, record_submission, remember_site
from mrt_hpc.attempt.python_look import no_sampling
from mrt_hpc.attempt.run_progress import is_done
from mrt_hpc.backends.backend import Backend, JobOrder, Objections, Site
from mrt_hpc.backends.queued_jobs import LiveJob, job_ids_of, live_jobs
from mrt_hpc.domains.verifiers import refusals
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.jobs import Dependency, DependencyKind, Job, Plan, read_plan
from mrt_hpc.plan.memory_fit import refuse_unfit
from mrt_hpc.recipe.lock import differences, keep_lock_values, keep_models, read_recipe_lock
from mrt_hpc.recipe.schema import Experiment, Recipe
from mrt_hpc.recipe.user_code import changed_modules
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.prompt_files import changed_prompt_files, copy_of
from mrt_hpc.run.task_state import TaskState, forget_failures, read_tasks
from mrt_hpc.submit.changes import keep_warmup, refuse_other_recipe
from mrt_hpc.submit.create import create_or_open, try_own_verifiers
from mrt_hpc.submit.origin import Origin
from mrt_hpc.submit.renewal import Renewal, is_renewed, renew
from mrt_hpc.submit.software import noticed_changes

OTHER_RUNS = "other-runs"
"""What a first job waits for, if jobs of other runs."""


@dataclass(frozen=True)
class Listener:
    """Receives a submission's messages."""

    show: Callable[[str], None]
    """What was done, a sentence."""
    warn: Callable[[str], None]
    """What may go wrong, a sentence."""
    display: Callable[[RunLayout], AbstractContextManager[Callable[[], None]]]
    """Shows progress while tasks are children of this process."""


def submit_run(recipe: Recipe, site: Site, root: Path, listener: Listener, origin: Origin | None = None) -> None:
    """Check everything, make or open the run directory, and start what is left.

    Args:
        root: may exist already.
        listener: receives a sentence on each step.
        origin: another run's weights to begin with, or None.
    """
    recipe, plan, layout = create_run(recipe, site, root, listener, origin)
    start(recipe, plan, layout, site, listener)


def create_run(
    recipe: Recipe, site: Site, root: Path, listener: Listener, origin: Origin | None = None
) -> tuple[Recipe, Plan, RunLayout]:
    """Check everything, and make or open the run directory, as :func:`submit_run`.

    Returns:
        The recipe with values that the run keeps, plan and layout.
    """
    recipe = kept_recipe(RunLayout(root), recipe, listener.show)
    plan = compile_plan(recipe, site)
    return recipe, plan, checked_run(recipe, plan, site, root, listener, origin)


def checked_run(
    recipe: Experiment, plan: Plan, site: Site, root: Path, listener: Listener, origin: Origin | None = None
) -> RunLayout:
    """The same for a given plan, of a run or separate evaluation."""
    backend = site.backend()
    refuse_unfit(recipe, site)
    refuse_objections(recipe, plan, backend, listener.warn)
    if not RunLayout(root).recipe_lock.is_file():
        try_own_verifiers(recipe, here=backend.queue is None, warn=listener.warn)
    return create_or_open(root, recipe, plan, group_access=site.group_access, origin=origin)


def kept_recipe(layout: RunLayout, recipe: Recipe, show: Callable[[str], None]) -> Recipe:
    """A submission's recipe, with an existing run's values in fields that it does not name.

    ``show`` receives a sentence on each that differs from today's default.
    """
    if not layout.recipe_lock.is_file():
        return recipe
    locked = read_recipe_lock(layout.recipe_lock)
    for file in changed_modules(recipe, layout.code):
        show(f"the run keeps its own copy of {file.name}, as it began: {layout.code}; another run takes the new one")
    for file in changed_prompt_files(layout, recipe):
        place = copy_of(layout, file)
        show(f"the run keeps its own copy of {file.name}, as it began: {place}; another run takes the new one")
    recipe = keep_models(locked, recipe)
    kept = keep_warmup(layout, locked, keep_lock_values(locked, recipe))
    for name, default, value in differences(recipe.model_dump(mode="json"), kept.model_dump(mode="json")):
        show(f"the run keeps {name}: {json.dumps(value)}, as it began; the default is {json.dumps(default)} now")
    return kept


def preview_changes(layout: RunLayout, recipe: Recipe, plan: Plan) -> Iterator[tuple[bool, str]]:
    """What a submission would refuse (True) or change (False) in an existing run, a sentence each; changes nothing."""
    try:
        refuse_other_recipe(layout, recipe)
        if not is_renewed(layout, recipe, plan):
            return
        renewal, queued = Renewal.of(layout, recipe, plan), live_jobs(layout)
    except UserError as error:
        yield True, error.message()
        return
    yield from ((False, sentence) for sentence in renewal.sentences())
    if opened := [job.name for job in renewal.jobs_to_open(read_plan(layout.plan))]:
        yield False, f"these jobs are checked for remaining work: {', '.join(opened)}"
    if queued:
        yield True, queued_change_error(layout, queued).message()
    if (process := local_process(layout)) is not None:
        yield True, Advice("process {pid} runs it now: first mrt-hpc cancel {run}", pid=process.pid, run=layout.root)


def objections_to(recipe: Experiment, plan: Plan, backend: Backend) -> Objections:
    """A site's objections to a plan, and verifiers' to this machine if tasks run here."""
    objections = backend.objections(plan)
    if objections.error is None and (error := no_sampling(recipe, backend.samples_on_gpus_only)) is not None:
        objections = replace(objections, refused=(*objections.refused, f"{error.what}; {error.advice}"), error=error)
    errors = refusals(recipe)
    if backend.queue is None and errors:
        refused = (f"{error.what} ({error.value}); {error.advice}" for error in errors)
        return Objections(objections.doubts, (*objections.refused, *refused), objections.error or errors[0])
    elsewhere = (f"{error.what} (whether a node can: mrt-hpc doctor --on-node)" for error in errors)
    return replace(objections, doubts=(*objections.doubts, *elsewhere))


def refuse_objections(recipe: Experiment, plan: Plan, backend: Backend, warn: Callable[[str], None]) -> None:
    """Report doubts, and refuse a plan that the site would refuse or never start, before anything is made."""
    objections = objections_to(recipe, plan, backend)
    for sentence in objections.doubts:
        warn(sentence)
    if objections.error is not None:
        raise objections.error


def start(
    recipe: Experiment, plan: Plan, layout: RunLayout, site: Site, listener: Listener, behind: Sequence[str] = ()
) -> None:
    """Give the back end the jobs that are neither done nor queued.

    Args:
        listener: receives a sentence on each step.
        behind: ids of other runs' queued jobs, after which the first job starts.
    """
    backend = site.backend()
    with claim_run(layout, recipe.resilience.heartbeat_limit_s):  # two submissions at once would double every job
        live = live_jobs(layout)
        refuse_other_queue(layout, live, backend)
        if live and is_renewed(layout, recipe, plan):
            raise queued_change_error(layout, live)
        for sentence in noticed_changes(layout, site):
            listener.show(sentence)
        if is_renewed(layout, recipe, plan):
            for sentence in renew(layout, recipe, plan):
                listener.show(sentence)
        left = what_is_left(plan, layout, live)
        backend.cancel(job_ids_of(live[name] for name in left.hopeless))
        left.forget_failures(layout)
        sent = Sent(layout, site, left, listener.show, _cluster(backend, listener))
        order = queue_behind(left.order(recipe, plan, layout, sent.record, listener), behind)
        record_site(layout, site)
        if backend.queue is None:
            remember_site(layout, site)
        try:
            backend.submit(order)
        except UserError as error:
            raise partial_submission_error(error, sent.jobs, sent.missing_jobs) from error
    if backend.queue is not None:
        listener.show(f"{len(sent.jobs)} job(s) submitted, {len(left.queued)} queued before, {len(left.done)} done")
        listener.show(Advice("run directory: {run}\nfollow it with: mrt-hpc status {run}", run=layout.root))


def _cluster(backend: Backend, listener: Listener) -> str | None:
    try:
        return backend.cluster()
    except UserError as error:
        listener.warn(f"the ledger will not say on which cluster the jobs are, as its name is not known: {error.what}")
        return None


def refuse_other_queue(layout: RunLayout, live: Mapping[str, LiveJob], backend: Backend) -> None:
    others = {name: job for name, job in live.items() if job.queue != backend.queue}
    if not others:
        return
    queues = ", ".join(sorted({job.queue for job in others.values()}))
    raise UserError(
        f"{len(others)} job(s) of this run are in another queue: {queues}",
        value=", ".join(job_ids_of(others.values())),
        where=layout.root,
        advice=Advice(
            "the same command without --site, which goes there, or first mrt-hpc cancel {run}", run=layout.root
        ),
    )


@dataclass(frozen=True)
class Left:
    """Job states when a submission begins."""

    jobs: Sequence[Job]
    """Not done, in plan order."""
    done: Sequence[str]
    """Names."""
    queued: Mapping[str, LiveJob]
    """Queued or running, to stay so."""
    lost: Mapping[str, Sequence[int]]
    """Tasks that left the queue undone, by the name of their queued job."""
    hopeless: Sequence[str]
    """Queued jobs that can never start, or would start too early: cancelled and sent again."""

    def forget_failures(self, layout: RunLayout) -> None:
        for job in self.jobs:
            again = range(job.tasks) if job.name not in self.queued else self.lost.get(job.name, ())
            forget_failures(layout, job.name, again)

    def order(
        self, recipe: Experiment, plan: Plan, layout: RunLayout, record: Callable[[str, str], None], listener: Listener
    ) -> JobOrder:
        return JobOrder(
            recipe=recipe,
            plan=plan,
            layout=layout,
            jobs=self.jobs,
            done=self.done,
            queued={name: awaited_ids(job, name in self.lost) for name, job in self.queued.items()},
            lost_tasks=self.lost,
            record=record,
            show=listener.show,
            display=listener.display,
        )


def jobs_left(plan: Plan, layout: RunLayout) -> list[Job]:
    return [job for job in plan.jobs if not is_done(layout, job)]


def what_is_left(plan: Plan, layout: RunLayout, live: Mapping[str, LiveJob]) -> Left:
    """What a submission has to do, by the run's files and its queue."""
    jobs = jobs_left(plan, layout)
    done = [job.name for job in plan.jobs if job not in jobs]
    lost = lost_tasks(jobs, live, layout)
    hopeless = dead_jobs(jobs, live, done, lost)
    queued = {name: job for name, job in live.items() if name not in hopeless}
    return Left(jobs, done, queued, {name: lost[name] for name in lost if name in queued}, hopeless)


def queue_behind(order: JobOrder, ids: Sequence[str]) -> JobOrder:
    """An order whose first jobs, waiting for nothing but done jobs, start after other runs' queued jobs."""
    if not ids:
        return order
    done, wait = {*order.done}, Dependency(job=OTHER_RUNS, kind=DependencyKind.AFTERANY)
    jobs = [
        job.model_copy(update={"after": (*job.after, wait)}) if done.issuperset(w.job for w in job.after) else job
        for job in order.jobs
    ]
    return replace(order, jobs=jobs, queued={**order.queued, OTHER_RUNS: ids})


@dataclass(frozen=True)
class Sent:
    layout: RunLayout
    site: Site
    left: Left
    show: Callable[[str], None]
    cluster: str | None
    """That takes them, if known."""
    jobs: list[tuple[str, str]] = field(default_factory=list)
    """Name and id, in order."""

    def record(self, job: str, job_id: str) -> None:
        """Record and report one."""
        lost = self.left.lost.get(job)
        record_submission(self.layout, job, job_id, self.site.name, lost, self.cluster)
        if not self.jobs:
            remember_site(self.layout, self.site)
        self.jobs.append((job, job_id))
        again = f", of which task(s) {', '.join(map(str, lost))} had been lost" if lost else ""
        self.show(f"submitted {job} as job {job_id}{again}")

    @property
    def missing_jobs(self) -> list[str]:
        """Neither queued nor sent."""
        there = {*self.left.queued, *dict(self.jobs)}
        return [job.name for job in self.left.jobs if job.name not in there]


def lost_tasks(jobs: Sequence[Job], live: Mapping[str, LiveJob], layout: RunLayout) -> dict[str, list[int]]:
    """Tasks by job that ended undone while others of their array are queued or run."""
    lost: dict[str, list[int]] = {}
    for job in (job for job in jobs if job.name in live):
        undone = (i for i, r in enumerate(read_tasks(layout, job.name, job.tasks)) if r.state is not TaskState.DONE)
        lost[job.name] = [index for index in undone if index not in live[job.name].tasks]
    return {name: indices for name, indices in lost.items() if indices}


def awaited_ids(job: LiveJob, partly: bool) -> tuple[str, ...]:
    """What dependants of a live job wait for: its id, or its live tasks' if others are lost."""
    is_one_job = not partly and len(job.job_ids) == 1
    return (job.job_id,) if is_one_job else tuple(job.tasks.values())


def dead_jobs(
    jobs: Sequence[Job], live: Mapping[str, LiveJob], satisfied: Collection[str], partly: Collection[str] = ()
) -> list[str]:
    """Queued jobs whose awaited job, or part of it (``partly``), ended undone: the queue would cancel them, or start
    them too early. Plan order finds their dependants too.
    """
    kept: set[str] = set()
    for job in jobs:
        hopeful = all(wait.job in satisfied or wait.job in kept.difference(partly) for wait in job.after)
        if job.name in live and (live[job.name].at_work or hopeful):
            kept.add(job.name)
    return [name for name in live if name not in kept and name not in satisfied]


def queued_change_error(layout: RunLayout, queued: Collection[str]) -> UserError:
    return UserError(
        "jobs of this run are queued with other values",
        value=", ".join(sorted(queued)),
        where=layout.root,
        advice=Advice("submit as before, or first mrt-hpc cancel {run}", run=layout.root),
    )


def partial_submission_error(error: UserError, new: Sequence[tuple[str, str]], left: Sequence[str]) -> UserError:
    """Why a submission stopped, with jobs submitted and left."""
    if not new:
        return error
    submitted = ", ".join(f"{name} as job {job_id}" for name, job_id in new)
    advice = error.advice or Advice("type the same submit command again")
    return error.reword(
        f"{error.what}\n  submitted before it, and queued: {submitted}\n  left: {', '.join(left)}",
        advice=Advice("{advice}; that submits the jobs that are left", advice=advice),
    )
