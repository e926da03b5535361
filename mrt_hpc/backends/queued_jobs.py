"""The jobs of a run in the queues that hold them: which of them are queued or running, in which state, and how they are
cancelled.

The run directory is enough: its ledger names the submitted jobs and their site profiles.
"""

import os
import signal
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Self

from mrt_hpc.analysis.spending import Accounts, Allocation
from mrt_hpc.attempt import ledger
from mrt_hpc.backends.backend import Backend, QueuedTask, QueueState, Site, WaitReason
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.lock import look_at_lock
from mrt_hpc.recipe.user_code import refuse_changeable
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import wait_until
from mrt_hpc.run.weights import release

ENDS_WITHIN_S = 90.0
"""The seconds that a process of this machine has to stop its tasks and to end."""


@dataclass(frozen=True)
class JobQueue:
    """A queue to which jobs of the run were submitted."""

    name: str
    backend: Backend
    jobs: dict[str, list[str]]
    """The ids of a job's submissions, the oldest first, by the job's name."""

    @property
    def ids(self) -> list[str]:
        """All ids, each once."""
        return sorted({job_id for ids in self.jobs.values() for job_id in ids})


def job_queues(layout: RunLayout, sent: Mapping[str, Sequence[ledger.Submission]]) -> list[JobQueue]:
    """The queues of some submissions of a run, by job, as the ledger gives them.

    Raises:
        UserError: the back end of a site cannot be loaded.
    """
    queues: dict[str, JobQueue] = {}
    backends: dict[str, Backend] = {}
    for job, parts in sent.items():
        for submission in parts:
            if submission.site not in backends:
                backends[submission.site] = backend_of(layout, submission.site)
            backend = backends[submission.site]
            name = str(backend.queue)
            queue = queues.setdefault(name, JobQueue(name, backend, {}))
            queue.jobs.setdefault(job, []).append(submission.job_id)
    return list(queues.values())


def backend_of(layout: RunLayout, site_name: str) -> Backend:
    """The back end of a site with which jobs of the run were submitted.

    Raises:
        UserError: it cannot be loaded.
    """
    site = ledger.recorded_site(layout, site_name)
    assert isinstance(site, Site), "a profile without a back end is refused when it is submitted with"
    return site.backend()


@dataclass(frozen=True)
class LiveJob:
    """A job of the run that is queued or running."""

    job_id: str
    """The id of its latest submission."""
    at_work: bool
    """Whether any task of it runs, so that its dependencies are fulfilled."""
    tasks: Mapping[int, str] = field(default_factory=dict)
    """Ids of its tasks that are queued or run, by their indices."""
    queue: str = ""
    """Name of the queue that holds it."""

    @property
    def job_ids(self) -> set[str]:
        """The ids of all submissions of which a task is queued or running."""
        return {self.job_id, *(name.partition("_")[0] for name in self.tasks.values())}


def live_jobs(layout: RunLayout) -> dict[str, LiveJob]:
    """The run's jobs that are queued or run, by job name; each queue is asked once.

    Raises:
        UserError: a queue cannot be asked.
    """
    live = {}
    for queue in job_queues(layout, ledger.current_submissions(layout)):
        states = queue.backend.states(queue.ids)
        alive = {task_id: state for task_id, state in states.items() if not state.ended}
        for job, ids in queue.jobs.items():
            mine = [alive[name] for name in sorted(alive) if alive[name].job_id in ids]
            if mine:
                at_work = any(task.state is QueueState.RUNNING for task in mine)
                live[job] = LiveJob(ids[-1], at_work, {task.index: task.task_id for task in mine}, queue.name)
    return live


def refuse_live(layout: RunLayout, therefore: str) -> None:
    """Refuse what must not be done to a run while its tasks may write.

    Args:
        layout: the run directory.
        therefore: what is not done, as ``so nothing is removed``.

    Raises:
        UserError: a task is queued or running, a process of this machine submits or runs the run, or a queue cannot be
            asked.
    """
    process = ledger.local_process(layout)
    if live := [f"process {process.pid}"] if process is not None else [*live_jobs(layout)]:
        raise UserError(
            f"tasks of the run are queued or running, {therefore}",
            value=", ".join(live),
            where=layout.root,
            advice=f"wait for their end (mrt-hpc status {layout.word}), or mrt-hpc cancel {layout.word}",
        )


@dataclass(frozen=True)
class QueueLook:
    """The answers of the queues about a run's jobs."""

    ids: Mapping[str, list[str]]
    """The ids of each job, by its name."""
    tasks: Mapping[str, list[QueuedTask]]
    """The states of each job's tasks, by its name; without the jobs of queues that were not reached."""
    unreached: Mapping[str, str]
    """Why a queue was not reached, by its name."""
    backends: Mapping[str, Backend] = field(default_factory=dict)
    """The back end that each job was submitted with last, by its name."""
    unreadable: tuple[str, ...] = ()
    """A line for each submission whose record cannot be read."""

    def meaning(self, job: str, reason: str) -> WaitReason | None:
        """The meaning of a reason why a task of a job waits; None where it is not known."""
        backend = self.backends.get(job)
        return None if backend is None else backend.meaning(reason)


def look_at_queues(layout: RunLayout, within_s: float) -> QueueLook:
    """Ask each queue that holds jobs of the run, for some seconds at most."""
    return look_at_runs([layout], within_s)[0]


def look_at_runs(layouts: Sequence[RunLayout], within_s: float) -> list[QueueLook]:
    """Ask each queue that holds jobs of these runs, once for all of them, for some seconds at most. Returns a look for
    each run, in their order.
    """
    runs = [_RunQueues.of(layout) for layout in layouts]
    wanted: dict[str, tuple[Backend, set[str]]] = {}
    for queue in (queue for run in runs for queue in run.queues):
        wanted.setdefault(queue.name, (queue.backend, set()))[1].update(queue.ids)
    answers = {name: _answer(backend, ids, within_s) for name, (backend, ids) in wanted.items()}
    return [run.look(answers) for run in runs]


def _answer(backend: Backend, ids: set[str], within_s: float) -> dict[str, QueuedTask] | UserError:
    """The states of the tasks of these jobs, or why the queue was not reached."""
    try:
        return backend.states(sorted(ids), within_s)
    except UserError as error:
        return error


@dataclass(frozen=True)
class _RunQueues:
    """The queues that hold jobs of one run."""

    ids: dict[str, list[str]]
    queues: list[JobQueue]
    unloaded: dict[str, str]
    """Why the back end of a site cannot be loaded, by the site's name."""
    faults: list[str]
    """A line for each submission whose record cannot be read."""

    @classmethod
    def of(cls, layout: RunLayout) -> Self:
        readable, faults = ledger.shown_submissions(layout)
        sent = ledger.latest_of(readable)
        ids = {job: [submission.job_id for submission in parts] for job, parts in sent.items()}
        try:
            return cls(ids, job_queues(layout, sent), {}, faults)
        except UserError as error:
            sites = ", ".join(sorted({submission.site for parts in sent.values() for submission in parts}))
            return cls(ids, [], {sites: _short(error)}, faults)

    def look(self, answers: Mapping[str, dict[str, QueuedTask] | UserError]) -> QueueLook:
        """What the answers of the queues say about this run."""
        tasks: dict[str, list[QueuedTask]] = {}
        unreached, backends = dict(self.unloaded), {}
        for queue in self.queues:
            answer = answers[queue.name]
            backends.update(dict.fromkeys(queue.jobs, queue.backend))
            if isinstance(answer, UserError):
                unreached[queue.name] = _short(answer)
                continue
            by_id: dict[str, list[QueuedTask]] = {}
            for task in answer.values():
                by_id.setdefault(task.job_id, []).append(task)
            for job, mine in queue.jobs.items():
                tasks.setdefault(job, []).extend(task for job_id in mine for task in by_id.get(job_id, ()))
        return QueueLook(self.ids, tasks, unreached, backends, tuple(self.faults))


def _short(error: UserError) -> str:
    return f"{error.what}: {error.value}" if error.value else error.what


def cancel_run(layout: RunLayout) -> Iterator[str]:
    """Stop the process of this machine that runs or submits the run, and take its jobs out of every queue. Weights that
    other runs keep for it are not kept any more.

    Yields:
        What was done, a sentence each.

    Raises:
        UserError: there is nothing to cancel, a queue cannot be asked, the process does not end, or the records of the
            run's process and jobs are gone, or can be changed by another user.
    """
    if not layout.jobs.is_dir():
        raise NothingToCancelError(
            "the records of the run's jobs are gone, so nothing is cancelled",
            where=layout.jobs,
            advice="on Slurm squeue --me lists your jobs, and scancel JOB_ID ends one",
        )
    refuse_changeable(layout.jobs, "nothing is cancelled that this folder names", "ask its owner to cancel the run")
    process, queues = ledger.local_process(layout), job_queues(layout, ledger.current_submissions(layout))
    if process is not None:
        _ask_to_stop(process)
        yield f"asked process {process.pid} to stop"
    stopped = process is not None
    for queue in queues:
        cancelled = cancel_queued(layout, queue)
        yield f"cancelled {len(cancelled)} job(s) in the queue ({queue.name})"
        stopped = stopped or bool(cancelled)
    if stopped:
        try:
            ledger.record_cancellation(layout)
        except OSError as error:  # as on a full disk
            yield f"mrt-hpc explain will not say that the run was cancelled, as that could not be written: {error}"
    if process is not None:
        wait_until(
            lambda: not process.is_here,
            reason=f"the end of process {process.pid}, which still runs",
            deadline_s=ENDS_WITHIN_S,
            where=layout.root,
            advice=f"kill -9 {process.pid} ends it, and its tasks end with it; then mrt-hpc status {layout.word}",
        )
        yield f"process {process.pid} has ended, and its tasks with it"
    if released := release(look_at_lock(layout.recipe_lock), layout):
        yield f"weights that are not kept for this evaluation any more: {', '.join(released)}"
    elif process is None and not queues:
        raise nothing_to_cancel(layout)


def _ask_to_stop(process: ledger.LocalProcess) -> None:
    """Interrupt a process. Where Ctrl-Z has suspended it with its tasks, they go on: they could not act on a signal."""
    with suppress(ProcessLookupError):  # it has ended meanwhile
        os.kill(process.pid, signal.SIGINT)
        os.killpg(os.getpgid(process.pid), signal.SIGCONT)


def cancel_queued(layout: RunLayout, queue: JobQueue) -> Collection[str]:
    """Take all jobs of the run out of a queue, those that were never recorded among them. Returns the ids of those that
    were still there.

    Raises:
        UserError: the queue cannot be asked, or still holds some of them.
    """
    unrecorded = queue.backend.unrecorded(layout.root, queue.ids).values()
    return queue.backend.cancel(sorted({*queue.ids, *(job_id for ids in unrecorded for job_id in ids)}))


class NothingToCancelError(UserError):
    """No job of the run is known to be queued, and no process of this machine to run it."""


def nothing_to_cancel(layout: RunLayout) -> NothingToCancelError:
    """The error of a cancellation that finds no job, and no process on this machine."""
    if (other := ledger.process_elsewhere(layout)) is None:
        return NothingToCancelError(
            "no job and no process of this run is running", where=layout.root, advice=f"mrt-hpc status {layout.word}"
        )
    return NothingToCancelError(
        f"this run was last started on another machine, as process {other.pid}",
        where=layout.root,
        value=other.host,
        advice=f"on that machine: mrt-hpc cancel {layout.word}",
    )


def job_ids_of(live: Iterable[LiveJob]) -> list[str]:
    """The ids of all submissions of queued or running jobs, each once, in a fixed order."""
    return sorted({job_id for job in live for job_id in job.job_ids})


# -- accounts ----------------------------------------------------------------------------------------------------------
# What the queues of a run know of the resources that its jobs have held, as far as they keep an account.


A_DAY_S = 86400.0
"""Seconds. The clock of the submitting machine may be wrong by minutes; an id comes again after months."""


def accounts(layout: RunLayout) -> tuple[Accounts, list[str]]:
    """Ask each queue for all attempts of all jobs that the run's ledger names.

    Returns:
        The accounts, and a sentence for each queue that has none, and each submission that cannot be read.
    """
    sent, notes = ledger.shown_submissions(layout)
    of_run: list[Allocation] = []
    times = {submission.job_id: submission.time for submission in sent}
    by_job: dict[str, list[ledger.Submission]] = {}
    for submission in sent:
        by_job.setdefault(submission.job, []).append(submission)
    try:
        queues = job_queues(layout, by_job)
    except UserError as error:
        notes.append(f"accounting was not asked ({error.what}): the hours are those of the run's events")
        return Accounts([], times), notes
    for queue in queues:
        jobs = {job_id: job for job, ids in queue.jobs.items() for job_id in ids}
        try:
            allocations = queue.backend.allocations(queue.ids)
        except UserError as error:
            allocations = None
            notes.append(f"accounting was not reached ({error.what}): the hours are those of the run's own events")
        else:
            if allocations is None:
                notes.append("this cluster keeps no accounting: the hours are those of the run's own events")
        of_run += [
            replace(allocation, job=jobs[allocation.job_id])
            for allocation in allocations or ()
            if allocation.job_id in jobs and allocation.began >= times[allocation.job_id] - A_DAY_S
        ]  # a cluster may have given an id to a job of long ago
    return Accounts(of_run, times), notes
