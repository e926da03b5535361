"""A submission: it finds the jobs that are left to do from recipe, site and run directory, and gives them to the site's
back end.

It refuses what cannot run before anything is made, and holds the run while it works, so that two submissions at once
cannot double its jobs.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import mrt_hpc
from mrt_hpc.attempt.ledger import claimed, local_process, record_site, record_submission, remember_site
from mrt_hpc.attempt.notify import forget_notices
from mrt_hpc.attempt.python_look import no_sampling
from mrt_hpc.attempt.run_progress import is_done
from mrt_hpc.backends.backend import Backend, JobOrder, Objections, Site
from mrt_hpc.backends.queued_jobs import LiveJob, job_ids_of, live_jobs
from mrt_hpc.domains.verifiers import refusals
from mrt_hpc.errors import UserError, word
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.jobs import Dependency, DependencyKind, Job, Plan, read_plan
from mrt_hpc.plan.memory_fit import refuse_unfit
from mrt_hpc.recipe.lock import as_begun, differences, read_recipe_lock, recorded_versions, versions, with_models_begun
from mrt_hpc.recipe.schema import Experiment, Recipe
from mrt_hpc.recipe.user_code import changed
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.prompt_files import changed_prompt_files, copy_of
from mrt_hpc.run.task_state import TaskState, forget_failures, read_tasks
from mrt_hpc.run.typed_file import read_if_there
from mrt_hpc.submit.changes import refuse_other_recipe, with_warmup_begun
from mrt_hpc.submit.create import create_or_open, try_own_verifiers
from mrt_hpc.submit.origin import Origin
from mrt_hpc.submit.renewal import Renewal, is_renewed, renew


@dataclass(frozen=True)
class Listener:
    """Receives the messages of a submission."""

    show: Callable[[str], None]
    """Called with a sentence about what was done."""
    warn: Callable[[str], None]
    """Called with a sentence about what may go wrong."""
    display: Callable[[RunLayout], AbstractContextManager[Callable[[], None]]]
    """Shows how far a run is while its tasks are children of this process."""


def submit_run(recipe: Recipe, site: Site, root: Path, listener: Listener, origin: Origin | None = None) -> None:
    """Check everything, make or open the run directory, and start what is left to do.

    Args:
        recipe: what to run.
        site: where to run it.
        root: the run directory, which may exist already.
        listener: receives a sentence about each step.
        origin: the weights version of another run that it begins with; None for a run of its own.

    Raises:
        UserError: recipe, site or data are wrong, the run is in use, the site refuses, or a task failed.
    """
    recipe, plan, layout = made(recipe, site, root, listener, origin)
    start(recipe, plan, layout, site, listener)


def made(
    recipe: Recipe, site: Site, root: Path, listener: Listener, origin: Origin | None = None
) -> tuple[Recipe, Plan, RunLayout]:
    """Check everything, and make or open the run directory; arguments and errors as in :func:`submit_run`.

    Returns:
        The recipe with the values that the run keeps, its plan, and its layout.
    """
    recipe = kept_recipe(RunLayout(root), recipe, listener.show)
    plan = compile_plan(recipe, site)
    return recipe, plan, checked_run(recipe, plan, site, root, listener, origin)


def checked_run(
    recipe: Experiment, plan: Plan, site: Site, root: Path, listener: Listener, origin: Origin | None = None
) -> RunLayout:
    """Check recipe and plan of a run, or of an evaluation on its own, and make or open its directory; other arguments
    and errors as in :func:`submit_run`.
    """
    backend = site.backend()
    refuse_unfit(recipe, site)
    refuse_objections(recipe, plan, backend, listener.warn)
    if not RunLayout(root).recipe_lock.is_file():
        try_own_verifiers(recipe, here=backend.queue is None, warn=listener.warn)
    return create_or_open(root, recipe, plan, group_access=site.group_access, origin=origin)


def kept_recipe(layout: RunLayout, recipe: Recipe, show: Callable[[str], None]) -> Recipe:
    """The recipe of a submission: where its run is there already, with the run's values in fields it does not name.

    ``show`` receives a sentence on each value that differs from today's default.
    """
    if not layout.recipe_lock.is_file():
        return recipe
    locked = read_recipe_lock(layout.recipe_lock)
    for file in changed(recipe, layout.code):
        show(f"the run keeps its own copy of {file.name}, as it began: {layout.code}; another run takes the new one")
    for file in changed_prompt_files(layout, recipe):
        place = copy_of(layout, file)
        show(f"the run keeps its own copy of {file.name}, as it began: {place}; another run takes the new one")
    recipe = with_models_begun(locked, recipe)
    kept = with_warmup_begun(layout, locked, as_begun(locked, recipe))
    for name, default, value in differences(recipe.model_dump(mode="json"), kept.model_dump(mode="json")):
        show(f"the run keeps {name}: {json.dumps(value)}, as it began; the default is {json.dumps(default)} now")
    return kept


def foreseen(layout: RunLayout, recipe: Recipe, plan: Plan) -> Iterator[tuple[bool, str]]:
    """Return what a submission would refuse (True) or change (False) in a run that exists already, one sentence each.
    Nothing is changed here.
    """
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
        yield True, with_other_values(layout, queued).message()
    if (process := local_process(layout)) is not None:
        yield True, f"process {process.pid} runs it now: first mrt-hpc cancel {layout.word}"


def objections_to(recipe: Experiment, plan: Plan, backend: Backend) -> Objections:
    """The objections of a site to a plan, and those of the verifiers to this machine, where its tasks run here."""
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
    """Report the doubts about a plan at a site, before anything is created.

    Raises:
        UserError: the site would refuse the plan, or never start it, or answers cannot be judged there.
    """
    objections = objections_to(recipe, plan, backend)
    for sentence in objections.doubts:
        warn(sentence)
    if objections.error is not None:
        raise objections.error


def start(
    recipe: Experiment, plan: Plan, layout: RunLayout, site: Site, listener: Listener, behind: Sequence[str] = ()
) -> None:
    """Give the back end of a site the jobs that are neither done nor queued.

    Args:
        recipe: what the run was made from.
        plan: of the run.
        layout: its directory.
        site: where it runs.
        listener: receives a sentence about each step.
        behind: ids of queued jobs of other runs, after which the first job starts.

    Raises:
        UserError: the run is in use elsewhere, or queued with other values; or the back end refuses, or a task failed.
    """
    backend = site.backend()
    with claimed(layout, recipe.resilience.heartbeat_limit_s):  # two submissions at once would double every job
        live = live_jobs(layout)
        refuse_other_queue(layout, live, backend)
        if live and is_renewed(layout, recipe, plan):
            raise with_other_values(layout, live)
        for sentence in noticed_changes(layout, site):
            listener.show(sentence)
        if is_renewed(layout, recipe, plan):
            for sentence in renew(layout, recipe, plan):
                listener.show(sentence)
        left = what_is_left(plan, layout, live)
        backend.cancel(job_ids_of(live[name] for name in left.hopeless))
        left.forget_failures(layout)
        forget_notices(layout)
        sent = Sent(layout, site, left, listener.show)
        order = queued_behind(left.order(recipe, plan, layout, sent.record, listener), behind)
        record_site(layout, site)
        if backend.queue is None:
            remember_site(layout, site)
        try:
            backend.submit(order)
        except UserError as error:
            raise half_way(error, sent.jobs, sent.missing) from error
    if backend.queue is not None:
        listener.show(f"{len(sent.jobs)} job(s) submitted, {len(left.queued)} queued before, {len(left.done)} done")
        listener.show(f"run directory: {layout.root}\nfollow it with: mrt-hpc status {layout.word}")


def refuse_other_queue(layout: RunLayout, live: Mapping[str, LiveJob], backend: Backend) -> None:
    """Refuse to start a run in a second place.

    Raises:
        UserError: jobs of it are in another queue than the back end's.
    """
    others = {name: job for name, job in live.items() if job.queue != backend.queue}
    if not others:
        return
    queues = ", ".join(sorted({job.queue for job in others.values()}))
    raise UserError(
        f"{len(others)} job(s) of this run are in another queue: {queues}",
        value=", ".join(job_ids_of(others.values())),
        where=layout.root,
        advice=f"the same command without --site, which goes there, or first mrt-hpc cancel {layout.word}",
    )


@dataclass(frozen=True)
class Left:
    """The states of a plan's jobs when a submission begins."""

    jobs: Sequence[Job]
    """Not done, in the plan's order."""
    done: Sequence[str]
    """Names of those that are."""
    queued: Mapping[str, LiveJob]
    """Those that are queued or run, and stay so."""
    lost: Mapping[str, Sequence[int]]
    """The tasks that have left the queue without being done, by the name of their job that stays queued."""
    hopeless: Sequence[str]
    """Names of queued jobs that can never start, or would start too early: they are cancelled and sent again."""

    def forget_failures(self, layout: RunLayout) -> None:
        """Reset the number of failures of the tasks that are submitted again."""
        for job in self.jobs:
            again = range(job.tasks) if job.name not in self.queued else self.lost.get(job.name, ())
            forget_failures(layout, job.name, again)

    def order(
        self, recipe: Experiment, plan: Plan, layout: RunLayout, record: Callable[[str, str], None], listener: Listener
    ) -> JobOrder:
        """Return the order for the back end."""
        return JobOrder(
            recipe=recipe,
            plan=plan,
            layout=layout,
            jobs=self.jobs,
            done=self.done,
            queued={name: awaited_as(job, name in self.lost) for name, job in self.queued.items()},
            lost_tasks=self.lost,
            record=record,
            show=listener.show,
            display=listener.display,
        )


def jobs_left(plan: Plan, layout: RunLayout) -> list[Job]:
    """The jobs of a run that are not done, in the plan's order.

    Raises:
        UserError: a file of the run is damaged.
    """
    return [job for job in plan.jobs if not is_done(layout, job)]


def what_is_left(plan: Plan, layout: RunLayout, live: Mapping[str, LiveJob]) -> Left:
    """Find out from the files of the run and its queue what a submission has to do."""
    jobs = jobs_left(plan, layout)
    done = [job.name for job in plan.jobs if job not in jobs]
    lost = lost_tasks(jobs, live, layout)
    hopeless = without_hope(jobs, live, done, lost)
    queued = {name: job for name, job in live.items() if name not in hopeless}
    return Left(jobs, done, queued, {name: lost[name] for name in lost if name in queued}, hopeless)


OTHER_RUNS = "other-runs"
"""The name under which a first job waits for jobs of other runs."""


def queued_behind(order: JobOrder, ids: Sequence[str]) -> JobOrder:
    """Return an order whose first jobs, those that wait only for jobs that are done, start after queued jobs of other
    runs.
    """
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
    """The jobs that this submission has sent."""

    layout: RunLayout
    site: Site
    left: Left
    show: Callable[[str], None]
    jobs: list[tuple[str, str]] = field(default_factory=list)
    """Name and id of each, in order."""

    def record(self, job: str, job_id: str) -> None:
        """Record one submission, and report it."""
        lost = self.left.lost.get(job)
        record_submission(self.layout, job, job_id, self.site.name, lost)
        if not self.jobs:
            remember_site(self.layout, self.site)
        self.jobs.append((job, job_id))
        again = f", of which task(s) {', '.join(map(str, lost))} had been lost" if lost else ""
        self.show(f"submitted {job} as job {job_id}{again}")

    @property
    def missing(self) -> list[str]:
        """Names of the jobs that are neither queued nor sent."""
        there = {*self.left.queued, *dict(self.jobs)}
        return [job.name for job in self.left.jobs if job.name not in there]


def lost_tasks(jobs: Sequence[Job], live: Mapping[str, LiveJob], layout: RunLayout) -> dict[str, list[int]]:
    """The tasks, by job name, that have ended without being done while others of the same array are queued or run."""
    lost = {
        job.name: [
            index
            for index, record in enumerate(read_tasks(layout, job.name, job.tasks))
            if index not in live[job.name].tasks and record.state is not TaskState.DONE
        ]
        for job in jobs
        if job.name in live
    }
    return {name: indices for name, indices in lost.items() if indices}


def awaited_as(job: LiveJob, partly: bool) -> tuple[str, ...]:
    """The ids that dependants of a live job wait for: the id of the job, or of its live tasks if others are lost."""
    is_one_job = not partly and len(job.job_ids) == 1
    return (job.job_id,) if is_one_job else tuple(job.tasks.values())


def without_hope(
    jobs: Sequence[Job], live: Mapping[str, LiveJob], satisfied: Collection[str], partly: Collection[str] = ()
) -> list[str]:
    """Queued jobs of which a job that they wait for has ended without being done, or a part of it has (``partly``):
    the queue is about to cancel them, or to start them too early. In the plan's order, so that all jobs that wait for
    one of these are found as well.
    """
    kept: set[str] = set()
    for job in jobs:
        hopeful = all(wait.job in satisfied or wait.job in kept.difference(partly) for wait in job.after)
        if job.name in live and (live[job.name].at_work or hopeful):
            kept.add(job.name)
    return [name for name in live if name not in kept and name not in satisfied]


def with_other_values(layout: RunLayout, queued: Collection[str]) -> UserError:
    """The error of a submission that changes a run of which jobs are queued, by their names."""
    return UserError(
        "jobs of this run are queued with other values",
        value=", ".join(sorted(queued)),
        where=layout.root,
        advice=f"submit as before, or first mrt-hpc cancel {layout.word}",
    )


def half_way(error: UserError, new: Sequence[tuple[str, str]], left: Sequence[str]) -> UserError:
    """The reason why a submission stopped, with the jobs that it had submitted and those that are left."""
    if not new:
        return error
    submitted = ", ".join(f"{name} as job {job_id}" for name, job_id in new)
    return error.in_other_words(
        f"{error.what}\n  submitted before it, and queued: {submitted}\n  left: {', '.join(left)}",
        advice=f"{error.advice or 'type the same submit command again'}; that submits the jobs that are left",
    )


# The software that a run is executed with: versions in its lock, and the container image. A later submission with
# other software is shown what that means; nothing is refused, since an upgrade may be what repairs a run.
#
# An image may have tens of gigabytes, so a run remembers its digest with path, size, time of modification and inode of
# the file. Where these are the same, the content is trusted to be the same, and is not read.


HOLDS = (
    "finished results stay, the recipe keeps the values that the run began with, and tasks that start from now on use "
    "the new one"
)


def noticed_changes(layout: RunLayout, site: Site) -> Iterator[str]:
    """A sentence for each part of the software that has changed since the run began; an image is recorded at the first
    submission with one.

    Args:
        layout: the run directory, which this process holds.
        site: of the submission.
    """
    yield from _versions(layout)
    yield from _image(layout, site)


def _versions(layout: RunLayout) -> Iterator[str]:
    before = recorded_versions(layout.recipe_lock)
    now = {"mrt-hpc": mrt_hpc.__version__, **versions()}
    for name in sorted(before.keys() & now.keys()):
        if before[name] != now[name]:
            yield f"the run began with {name} {before[name]}, and this is {now[name]}: {HOLDS}"


@dataclass(frozen=True)
class FileState:
    """The metadata of a file; where they are the same at two times, its content is trusted to be the same."""

    path: str
    size: int
    mtime_ns: int
    inode: int

    @staticmethod
    def of(path: Path) -> "FileState":
        """The metadata of a file that is there."""
        status = path.stat()
        return FileState(str(path.absolute()), status.st_size, status.st_mtime_ns, status.st_ino)


@dataclass(frozen=True)
class ImageRecord:
    """The image that tasks were last submitted with."""

    sha256: str
    file: FileState | None = None


def _image(layout: RunLayout, site: Site) -> Iterator[str]:
    before, file = _recorded_image(layout), site.image_file()
    state = None if file is None else FileState.of(file)  # before the digest, so that a later change is noticed
    if before is not None and state is not None and before.file == state:
        return
    image = site.image_digest()
    if image is None:
        return
    if before is not None and before.sha256 != image:
        yield f"the image has changed (sha256 {before.sha256[:12]} before, {image[:12]} now): {HOLDS}"
    if (now := ImageRecord(image, state)) != before:
        write_json(layout.image_lock, asdict(now))


def _recorded_image(layout: RunLayout) -> ImageRecord | None:
    """The image of the last submission; None before the first submission with one.

    Raises:
        UnreadableError: the record is damaged.
    """
    advice = f"rm -r {word(layout.image_lock)}, and the same command again, which writes it"
    return read_if_there(layout.image_lock, ImageRecord, "the record of the image", None, advice=advice)
