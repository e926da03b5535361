"""What starts the tasks of a run: the protocol of a back end, and the site profile that gives one.

Add a back end: one folder of ``backends/`` that holds a profile (a subclass of :class:`Site`) and a subclass of
:class:`Backend`, and the profile's name in :data:`mrt_hpc.recipe.site.SITES`; or the same two classes in a module
of your own, named in the site profile as ``type: my_module:MySite``. The commands and submissions
(:mod:`mrt_hpc.submit.submission`) use back ends only through this protocol.

There are two kinds. A back end with a queue submits jobs and returns; the queue starts ``python -m
mrt_hpc.attempt.ranks RUN JOB INDEX`` for each task, or what does the same. A back end without a queue runs the tasks
itself, and the submitting command lasts as long as the run.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import ClassVar, Protocol

from mrt_hpc.analysis.spending import Allocation
from mrt_hpc.attempt.python_look import samples_on_gpus_only
from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import Job, Plan
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.recipe.site import SiteSettings
from mrt_hpc.run.layout import RunLayout


class QueueState(StrEnum):
    """The state of a task in a queue."""

    PENDING = "pending"
    """Queued, held, or waiting to be started again."""
    RUNNING = "running"
    """Running or starting; or just ending, to be started again."""
    ENDING = "ending"
    """Its processes are ending, and it will not be started again."""
    COMPLETED = "completed"
    """Ended well."""
    FAILED = "failed"
    """Ended with an exit code other than 0."""
    OUT_OF_MEMORY = "out of memory"
    """Killed for using more memory than it asked for."""
    TIMEOUT = "timeout"
    """Killed at its time limit."""
    CANCELLED = "cancelled"
    """Removed by the user, by the site, or because a job that it depends on failed."""
    NODE_FAIL = "node failed"
    """Lost with its node and not started again."""
    PREEMPTED = "preempted"
    """Preempted by another job and not started again."""
    UNKNOWN = "unknown"
    """The queue no longer knows it."""


@dataclass(frozen=True)
class QueuedTask:
    """One array task, or one job without an array."""

    task_id: str
    """``1234`` or ``1234_5``: the job's id, and for a task of an array its index."""
    state: QueueState
    reason: str = ""
    """Why it waits, as the queue reports it; for an ended task the exit code as ``code:signal``."""
    nodes: str = ""
    """Where it runs or ran, in the queue's notation."""
    elapsed_s: int = 0
    """Seconds that the last attempt ran; 0 while it is queued or running."""
    ends_at: float | None = None
    """When its time limit ends it, seconds since the epoch; for a queued task whose start the queue expects at some
    time, the end that follows from it. None where the queue does not say.
    """

    @property
    def ended(self) -> bool:
        """Whether it has ended; a task that the queue does not know has ended too."""
        return self.state not in {QueueState.PENDING, QueueState.RUNNING}

    @property
    def job_id(self) -> str:
        """The id of its job."""
        return self.task_id.partition("_")[0]

    @property
    def index(self) -> int:
        """Its index in the array; 0 for a job without one."""
        return int(self.task_id.partition("_")[2] or 0)


class Hold(StrEnum):
    """What a queued task waits for."""

    RESOURCES = "resources"
    """Resources that are free later, or limits that other jobs use up: it starts by itself in its turn."""
    JOBS = "jobs"
    """Other jobs of the run."""
    TIME = "time"
    """A moment that is near: free resources would not start it before."""
    USER = "user"
    """A command of its user."""
    ADMINISTRATOR = "administrator"
    """A command of an administrator."""
    NEVER = "never"
    """Nothing: it can never start as it was submitted."""


@dataclass(frozen=True)
class WaitReason:
    """The meaning of a queue's reason why a task waits."""

    means: str
    """The second half of a sentence: the task is queued, because ..."""
    next: str
    """What to type next; ``{id}`` stands for the id of the task, and ``{run}`` for the run directory."""
    hold: Hold = Hold.RESOURCES


@dataclass(frozen=True)
class StartEstimate:
    """The queue's answer to the question when a job could start if it were submitted now and waited for no other job.
    The jobs that ask for the same have one answer.
    """

    asked: str
    """What the queue was asked with, as a user would type it."""
    at: float | None
    """Seconds since the epoch; None where the queue named no time."""
    answer: str = ""
    """The queue's words where it named no time, on one line."""
    jobs: tuple[str, ...] = ()
    """Names of the jobs, the one that was asked about first."""


@dataclass(frozen=True)
class Objections:
    """The objections of a site to a plan."""

    doubts: Sequence[str] = ()
    """What may go wrong, a sentence each; a submission shows them and continues."""
    refused: Sequence[str] = ()
    """Why a submission is refused, a sentence each."""
    error: UserError | None = None
    """The error of a submission that is refused; None where nothing is."""


@dataclass(frozen=True)
class JobOrder:
    """The jobs that a submission gives to a back end. The submitting process holds the run's claim."""

    recipe: Experiment
    plan: Plan
    layout: RunLayout
    jobs: Sequence[Job]
    """Jobs of the plan that are not done, in the plan's order: each comes after those that it waits for."""
    done: Collection[str]
    """Names of the jobs that are done; no job needs to wait for them."""
    queued: Mapping[str, Sequence[str]]
    """The id of each job that is queued or running, by name: that of the job, or the ids of its tasks, for which other
    jobs wait. These jobs are not submitted again.
    """
    lost_tasks: Mapping[str, Sequence[int]]
    """The indices of the tasks of jobs in ``queued``, by name, that have left the queue and are submitted again."""
    record: Callable[[str, str], None]
    """Called with a job's name and its id as soon as the queue has accepted it. An id holds no underscore."""
    show: Callable[[str], None]
    """Shows the user a sentence."""
    display: Callable[[RunLayout], AbstractContextManager[Callable[[], None]]]
    """Shows how far a run is while its tasks are children of this process; called at each look."""


class Backend(Protocol):
    """Starts the tasks of a plan at one site. A back end without a queue leaves the methods that ask
    the queue as they are.
    """

    place: ClassVar[str]
    """The place in words, for messages: ``this machine``, ``the cluster``."""

    @property
    def queue(self) -> str | None:
        """Name of the queue that holds submitted jobs, for messages. Back ends that name the same queue find each
        other's jobs there. None for a back end that runs the tasks itself.
        """

    def objections(self, plan: Plan) -> Objections:  # noqa: ARG002 - some object
        """Return the objections to running a plan here, before anything is created or submitted."""
        return Objections()

    def samples_on_gpus_only(self) -> str | None:
        """Return the Python of the tasks where its vLLM computes on GPUs only; None where it does not, or where it
        cannot be asked here.
        """
        return samples_on_gpus_only()

    def texts(self, plan: Plan, recipe: Experiment, layout: RunLayout) -> list[tuple[str, str]]:  # noqa: ARG002
        """Name and script of each job as a submission would write them, with ``{job name}`` in place of job ids.

        Raises:
            UserError: this back end writes no scripts.
        """
        raise UserError(f"jobs on {self.place} have no scripts", advice="add --site SITE, the name of a cluster")

    def starts(
        self,
        jobs: Sequence[Job],  # noqa: ARG002
        recipe: Experiment,  # noqa: ARG002
        layout: RunLayout,  # noqa: ARG002
    ) -> list[StartEstimate]:
        """The queue's present estimates of when jobs could start. Nothing is submitted or written, and a queue that
        cannot be asked is an answer too. Empty for a back end that makes no estimates.

        Raises:
            UserError: these jobs cannot be submitted as they are.
        """
        return []

    @abstractmethod
    def submit(self, order: JobOrder) -> None:
        """Send the jobs of an order to the queue; or, without a queue, run them to their end.

        Raises:
            UserError: the queue refuses, or does not answer, or a task has failed.
        """

    def states(self, job_ids: Iterable[str], within_s: float | None = None) -> dict[str, QueuedTask]:  # noqa: ARG002
        """The state of every task of these jobs, by task id. A job that the queue does not know any more gives one
        entry under its own id, ``UNKNOWN``.

        Args:
            job_ids: as they were recorded.
            within_s: seconds after which the queue counts as not reached; None waits as long as it may take.

        Raises:
            UserError: the queue cannot be asked.
        """
        return {}

    def allocations(self, job_ids: Iterable[str]) -> list[Allocation] | None:  # noqa: ARG002
        """Every attempt of every task of these jobs that held resources, by the queue's accounting; None where the
        queue keeps no account.

        Raises:
            UserError: the queue cannot be asked.
        """
        return None

    def unrecorded(self, root: Path, recorded: Iterable[str]) -> dict[str, list[str]]:  # noqa: ARG002
        """Ids, by job name, of jobs of the run at ``root`` that are queued or run and were never recorded, the oldest
        first: the submission was interrupted in that moment.

        Raises:
            UserError: the queue cannot be asked.
        """
        return {}

    def cancel(self, job_ids: Iterable[str]) -> list[str]:  # noqa: ARG002
        """Remove jobs from the queue so that they do not start again; jobs that have already ended are skipped.

        Returns:
            The ids of those that were queued or running, and are not any more.

        Raises:
            UserError: the queue cannot be asked, or still holds some of them.
        """
        return []

    def meaning(self, reason: str) -> WaitReason | None:  # noqa: ARG002
        """The meaning of a reason why a task waits, as :meth:`states` gives it; None where it is not known."""
        return None


class Site(SiteSettings):
    """A site profile: the fields of its kind, and the back end that it describes."""

    back_end: ClassVar[str]
    """The class of the back end as ``module:Class``; it takes the site profile."""

    def image_digest(self) -> str | None:
        """SHA-256 of the container image that tasks run in; None where they run in none."""
        return None

    def image_file(self) -> Path | None:
        """The file of that image, if it is one: a run asks for the digest again only when the file has changed."""
        return None

    def backend(self) -> Backend:
        """The back end of this site; its module is imported here, so that ``plan`` answers at once."""
        module, _, name = self.back_end.partition(":")
        made: Backend = getattr(import_module(module), name)(self)
        return made
