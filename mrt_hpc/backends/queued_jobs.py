"""The jobs of a run in the queues that hold them: their states, and how they are cancelled. All follows from the run's
ledger.
"""

import os
import signal
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Self

from mrt_hpc.analysis.spending import Accounts, Allocation
from mrt_hpc.attempt import ledger
from mrt_hpc.backends.backend import Backend, QueuedTask, QueueState, Site, WaitReason
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.recipe.lock import look_at_lock
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.pins import release
from mrt_hpc.run.retries import wait_until

ENDS_WITHIN_S = 90.0
ASK_AGAIN_S = 10.0
"""The longest pause between two looks at a queue whose listing may be old."""


@dataclass(frozen=True)
class QueueAnswer:
    """What a queue says about one run's jobs."""

    tasks: dict[str, list[QueuedTask]]
    """Without the jobs of the two lists below."""
    elsewhere: list[ledger.Submission]
    """Submitted on another cluster, of which this one says nothing."""
    unlisted: list[ledger.Submission]
    """Jobs not in the queue, whose listing may be older than the submission."""
    here: str | None

    @property
    def doubts(self) -> list[str]:
        there = sorted({str(one.cluster) for one in self.elsewhere})
        new = f"{_jobs_phrase(self.unlisted)} submitted a moment ago, and the queue does not list what is so new yet"
        old = f"{_jobs_phrase(self.elsewhere)} submitted on cluster {', '.join(there)}, and this is cluster {self.here}"
        return [text for text, found in ((old, self.elsewhere), (new, self.unlisted)) if found]


def _jobs_phrase(sent: Sequence[ledger.Submission]) -> str:
    return f"{len(sent)} job(s) of the run ({', '.join(one.job_id for one in sent)}) were"


@dataclass(frozen=True)
class JobQueue:
    layout: RunLayout
    name: str
    backend: Backend
    jobs: dict[str, list[ledger.Submission]] = field(default_factory=dict)
    """Submissions by job name, the oldest first."""

    @property
    def all_submissions(self) -> list[ledger.Submission]:
        return [submission for parts in self.jobs.values() for submission in parts]

    @property
    def ids(self) -> list[str]:
        return sorted({submission.job_id for submission in self.all_submissions})

    @property
    def has_cluster(self) -> bool:
        """The same cluster has to answer."""
        return any(submission.cluster for submission in self.all_submissions)

    def ask(self) -> QueueAnswer:
        return self.answer(self.backend.cluster() if self.has_cluster else None, self.backend.states(self.ids))

    def answer(self, here: str | None, states: Mapping[str, QueuedTask]) -> QueueAnswer:
        """What the states of tasks, by id, say about this run: an equal id alone proves nothing."""
        by_id: dict[str, list[QueuedTask]] = {}
        for task in states.values():
            by_id.setdefault(task.job_id, []).append(task)
        answer = QueueAnswer({}, [], [], here)
        for job, parts in self.jobs.items():
            tasks: list[QueuedTask] = []
            for sent in parts:
                is_elsewhere = bool(here and sent.cluster and sent.cluster != here)
                own = [] if is_elsewhere else self._own(sent, by_id.get(sent.job_id, ()))
                tasks += own or [QueuedTask(sent.job_id, QueueState.UNKNOWN)]
                if is_elsewhere and sent.number > ledger.newest_unqueued(self.layout):
                    answer.elsewhere.append(sent)
                elif not is_elsewhere and not own and sent.is_new:
                    answer.unlisted.append(sent)
            if not any(sent in answer.elsewhere or sent in answer.unlisted for sent in parts):
                answer.tasks[job] = tasks
        return answer

    def _own(self, sent: ledger.Submission, tasks: Iterable[QueuedTask]) -> list[QueuedTask]:
        """A submission's tasks in the queue. One that only accounting calls queued counts while the listing may be
        older than it.
        """
        known = [task for task in tasks if task.state is not QueueState.UNKNOWN]
        own = {marks for marks in {task.marks for task in known} if self.backend.is_own(self.layout, sent, marks)}
        unlisted = QueueState.PENDING if sent.is_new else QueueState.UNKNOWN
        return [
            replace(task, state=unlisted, reason="") if task.state is QueueState.UNLISTED else task
            for task in known
            if task.marks in own
        ]

    def task_states(self) -> dict[str, list[QueuedTask]]:
        """Asks again while the listing may be older than a job that it lacks; refuses jobs on another cluster."""
        answer, run = self.ask(), self.layout.word
        if answer.elsewhere:
            there = answer.elsewhere[-1].cluster
            raise UserError(
                answer.doubts[0],
                where=self.layout.root,
                advice=Advice(
                    "mrt-hpc status {run} on a machine of cluster {there}; after mrt-hpc cancel {run} there "
                    "the run can be submitted here. Where that cluster is gone for good: rm {jobs}/queued-*.json",
                    run=run,
                    there=there,
                    jobs=self.layout.jobs,
                ),
            )
        if answer.unlisted:
            for_long = f"it is asked again for {ledger.LISTED_WITHIN_S / 60:.0f} minutes at most"
            print(f"{answer.doubts[0]}: {for_long}", file=sys.stderr, flush=True)
            answer = wait_until(
                lambda: None if (newer := self.ask()).unlisted else newer,
                reason=f"a listing of the queue that is newer than {_jobs_phrase(answer.unlisted)} submitted",
                deadline_s=ledger.LISTED_WITHIN_S,
                where=self.layout.root,
                advice="squeue --me shows what the queue lists; then the same command again",
                longest_pause_s=ASK_AGAIN_S,
            )
        return answer.tasks


def job_queues(layout: RunLayout, sent: Mapping[str, Sequence[ledger.Submission]]) -> list[JobQueue]:
    """Queues by job, as the ledger gives the submissions."""
    queues: dict[str, JobQueue] = {}
    backend_at = cache(partial(backend_of, layout))
    for job, parts in sent.items():
        for submission in parts:
            backend = backend_at(submission.site)
            name = str(backend.queue)
            queues.setdefault(name, JobQueue(layout, name, backend)).jobs.setdefault(job, []).append(submission)
    return list(queues.values())


def backend_of(layout: RunLayout, site_name: str) -> Backend:
    """The back end to which jobs of the run were submitted."""
    site = ledger.recorded_site(layout, site_name)
    assert isinstance(site, Site), "a profile without a back end is refused when it is submitted with"
    return site.backend()


@dataclass(frozen=True)
class LiveJob:
    """A job of the run that is queued or running."""

    job_id: str
    """The id of its latest live submission."""
    at_work: bool
    """Whether any task runs, so that its dependencies are fulfilled."""
    tasks: Mapping[int, str] = field(default_factory=dict)
    """Ids of its live tasks, by index."""
    queue: str = ""

    @property
    def job_ids(self) -> set[str]:
        """The ids of all submissions with a live task."""
        return {self.job_id, *(name.partition("_")[0] for name in self.tasks.values())}


def live_jobs(layout: RunLayout) -> dict[str, LiveJob]:
    """Live jobs by name, as :meth:`JobQueue.task_states`; each queue is asked once."""
    live = {}
    for queue in job_queues(layout, ledger.current_submissions(layout)):
        for job, tasks in queue.task_states().items():
            if mine := sorted((task for task in tasks if not task.has_ended), key=lambda task: task.task_id):
                at_work, ids = any(task.state is QueueState.RUNNING for task in mine), {task.job_id for task in mine}
                newest = next(sent.job_id for sent in reversed(queue.jobs[job]) if sent.job_id in ids)
                live[job] = LiveJob(newest, at_work, {task.index: task.task_id for task in mine}, queue.name)
    return live


def refuse_live(layout: RunLayout, therefore: str) -> None:
    """Refuse what must not be done to a run while its tasks may write, or a process of this machine submits or runs it.
    ``therefore`` names it, as ``so nothing is removed``.
    """
    process = ledger.local_process(layout)
    if live := [f"process {process.pid}"] if process is not None else [*live_jobs(layout)]:
        raise UserError(
            f"tasks of the run are queued or running, {therefore}",
            value=", ".join(live),
            where=layout.root,
            advice=Advice("wait for their end (mrt-hpc status {run}), or mrt-hpc cancel {run}", run=layout.root),
        )


@dataclass(frozen=True)
class QueueLook:
    ids: Mapping[str, list[str]]
    """Ids by job name."""
    tasks: Mapping[str, list[QueuedTask]]
    """Without the jobs of queues that were not reached."""
    unreached: Mapping[str, str]
    backends: Mapping[str, Backend] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()
    """A line for each unreadable submission, and for those that no queue can speak of."""

    def meaning(self, job: str, reason: str) -> WaitReason | None:
        backend = self.backends.get(job)
        return None if backend is None else backend.meaning(reason)


_States = tuple[str | None, dict[str, QueuedTask]]
"""The cluster that has answered, and the states of tasks."""


QUEUE_WITHIN_S = 3.5
"""For the queue's answer; then the content of the run's files is shown without it."""


def look_at_queues(layout: RunLayout, within_s: float = QUEUE_WITHIN_S) -> QueueLook:
    return look_at_runs([layout], within_s)[0]


def look_at_runs(layouts: Sequence[RunLayout], within_s: float) -> list[QueueLook]:
    """Ask each queue once for all runs; returns a look for each, in order."""
    runs = [_RunQueues.of(layout) for layout in layouts]
    wanted: dict[str, list[JobQueue]] = {}
    for queue in (queue for run in runs for queue in run.queues):
        wanted.setdefault(queue.name, []).append(queue)
    answers = {name: _answer(queues, within_s) for name, queues in wanted.items()}
    return [run.look(answers) for run in runs]


def _answer(queues: Sequence[JobQueue], within_s: float) -> _States | UserError:
    """The answer for all runs, or why the queue was not reached."""
    backend, ids = queues[0].backend, sorted({job_id for queue in queues for job_id in queue.ids})
    try:
        here = backend.cluster(within_s) if any(queue.has_cluster for queue in queues) else None
        return here, backend.states(ids, within_s)
    except UserError as error:
        return error


@dataclass(frozen=True)
class _RunQueues:
    """The queues that hold jobs of one run."""

    ids: dict[str, list[str]]
    queues: list[JobQueue]
    unloaded: dict[str, str]
    faults: list[str]
    """A line for each unreadable submission."""

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

    def look(self, answers: Mapping[str, _States | UserError]) -> QueueLook:
        tasks: dict[str, list[QueuedTask]] = {}
        unreached, backends, doubts = dict(self.unloaded), {}, [*self.faults]
        for queue in self.queues:
            states = answers[queue.name]
            backends.update(dict.fromkeys(queue.jobs, queue.backend))
            try:
                if isinstance(states, UserError):
                    raise states
                answer = queue.answer(*states)
            except UserError as error:
                unreached[queue.name] = _short(error)
                continue
            doubts += answer.doubts
            for job, mine in answer.tasks.items():
                tasks.setdefault(job, []).extend(mine)
        return QueueLook(self.ids, tasks, unreached, backends, tuple(doubts))


def _short(error: UserError) -> str:
    return f"{error.what}: {error.value}" if error.value else error.what


NOTHING_QUEUED = "no job of this run is queued or runs: there is nothing to cancel"


def cancel_run(layout: RunLayout) -> Iterator[str]:
    """Stop this machine's process that runs or submits the run, and take its jobs out of every queue. Other runs keep
    no weights for it any more. Yields a sentence for each thing done.

    Raises:
        UserError: there is nothing to cancel, a queue or the process does not answer, or the records of process and
            jobs are gone.
    """
    if not layout.jobs.is_dir():
        raise NothingToCancelError(
            "the records of the run's jobs are gone, so nothing is cancelled",
            where=layout.jobs,
            advice="on Slurm squeue --me lists your jobs, and scancel JOB_ID ends one",
        )
    newest = ledger.newest_numbers(layout)
    process, queues = ledger.local_process(layout), job_queues(layout, ledger.current_submissions(layout))
    if process is not None:
        _ask_to_stop(process)
        yield f"asked process {process.pid} to stop"
    stopped = process is not None
    for queue in queues:
        if cancelled := cancel_queued(layout, queue):
            stopped = True
            yield f"cancelled {len(cancelled)} job(s) in the queue ({queue.name})"
    if stopped or queues:
        try:
            ledger.record_cancellation(layout, newest, stopped=stopped)
        except (OSError, UserError) as error:  # as on a full disk
            yield f"mrt-hpc explain will not say that the run was cancelled, as that could not be written: {error}"
    if process is not None:
        wait_until(
            lambda: not process.is_here,
            reason=f"the end of process {process.pid}, which still runs",
            deadline_s=ENDS_WITHIN_S,
            where=layout.root,
            advice=Advice(
                "kill -9 {pid} ends it, and its tasks end with it; then mrt-hpc status {run}",
                pid=process.pid,
                run=layout.root,
            ),
        )
        yield f"process {process.pid} has ended, and its tasks with it"
    if released := release(look_at_lock(layout.recipe_lock), layout):
        yield f"weights that are not kept for this evaluation any more: {', '.join(released)}"
    elif process is None and not queues:
        raise nothing_to_cancel(layout)
    if queues and not stopped:
        yield NOTHING_QUEUED


def _ask_to_stop(process: ledger.LocalProcess) -> None:
    """Interrupt a process. Tasks that Ctrl-Z has suspended go on first: they could not act on a signal."""
    with suppress(ProcessLookupError, FileNotFoundError):  # it has ended meanwhile
        if (owner := Path(f"/proc/{process.pid}").stat().st_uid) != os.geteuid():
            raise UserError(
                "another user has started the process that runs this run, so it is not stopped",
                value=f"process {process.pid} of user {owner}",
                where=process.host,
                advice=Advice("ask that user to stop it: ps -o user,pid,args -p {pid}", pid=process.pid),
            )
        os.kill(process.pid, signal.SIGINT)
        os.killpg(os.getpgid(process.pid), signal.SIGCONT)


def cancel_queued(layout: RunLayout, queue: JobQueue) -> Collection[str]:
    """Take all jobs out of a queue that are shown to be the run's, unrecorded ones too. Returns the ids that were still
    there; a UserError where the queue still holds some.
    """
    own = {task.job_id for tasks in queue.task_states().values() for task in tasks if not task.has_ended}
    return queue.backend.cancel(sorted(own.union(*queue.backend.own_jobs(layout).values())))


class NothingToCancelError(UserError):
    """No job of the run is known to be queued, and no process of this machine to run it."""


def nothing_to_cancel(layout: RunLayout) -> NothingToCancelError:
    if (other := ledger.process_elsewhere(layout)) is None:
        return NothingToCancelError(
            "no job and no process of this run is running",
            where=layout.root,
            advice=Advice("mrt-hpc status {run}", run=layout.root),
        )
    return NothingToCancelError(
        f"this run was last started on another machine, as process {other.pid}",
        where=layout.root,
        value=other.host,
        advice=Advice("on that machine: mrt-hpc cancel {run}", run=layout.root),
    )


def job_ids_of(live: Iterable[LiveJob]) -> list[str]:
    """All submissions of live jobs, each once, in a fixed order."""
    return sorted({job_id for job in live for job_id in job.job_ids})


# What the queues of a run know of the resources that its jobs have held, as far as they keep an account.


def accounts(layout: RunLayout) -> tuple[Accounts, list[str]]:
    """Attempts of all jobs in the ledger, and a sentence for each queue without accounts and each unreadable
    submission.
    """
    sent, notes = ledger.shown_submissions(layout)
    of_run: list[Allocation] = []
    times = {submission.job_id: submission.time for submission in sent}
    try:
        queues = job_queues(layout, {"all jobs": sent})
    except UserError as error:
        notes.append(f"accounting was not asked ({error.what}): the hours are those of the run's events")
        return Accounts([], times), notes
    for queue in queues:
        try:
            allocations = queue.backend.allocations(layout, queue.all_submissions)
        except UserError as error:
            notes.append(f"accounting was not reached ({error.what}): the hours are those of the run's own events")
            continue
        if allocations is None:
            notes.append("this cluster keeps no accounting: the hours are those of the run's own events")
        of_run += allocations or ()
    return Accounts(of_run, times), notes
