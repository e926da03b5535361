"""What starts the tasks of a run: the protocol of a back end, and the site profile that gives one.

To add a back end, write a profile (a subclass of :class:`Site`) and a subclass of :class:`Backend`: in a folder of
``backends/`` with the profile's name in :data:`mrt_hpc.recipe.site.SITES`, or in a module of your own that the site
profile names as ``type: my_module:MySite``.

A back end with a queue submits jobs and returns. One without runs the tasks until they end.
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
from mrt_hpc.attempt.ledger import Submission
from mrt_hpc.attempt.python_look import samples_on_gpus_only
from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import Job, Plan
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.recipe.site import SiteSettings
from mrt_hpc.run.layout import RunLayout


class QueueState(StrEnum):
    PENDING = "pending"
    """Queued, held, or waiting to be started again."""
    RUNNING = "running"
    """Running or starting; or just ending, to be started again."""
    ENDING = "ending"
    """Its processes are ending, and it will not be started again."""
    COMPLETED = "completed"
    FAILED = "failed"
    OUT_OF_MEMORY = "out of memory"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    """Removed by the user, by the site, or because a job that it depends on failed."""
    NODE_FAIL = "node failed"
    """Lost with its node and not started again."""
    PREEMPTED = "preempted"
    """Preempted by another job and not started again."""
    UNLISTED = "not listed"
    """Accounting says that it has not ended, but the listing lacks it: it is too new, or has ended unaccounted."""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class JobMarks:
    """What a queue says of a job beside its id; it shows whose job it is."""

    name: str = ""
    script: str = ""
    submitted: float | None = None
    """When it was submitted, or queued again, by the queue's clock."""


@dataclass(frozen=True)
class QueuedTask:
    task_id: str
    """``1234``, or ``1234_5`` for a task of an array."""
    state: QueueState
    reason: str = ""
    """Why it waits, in the queue's words; for an ended task the exit code as ``code:signal``."""
    nodes: str = ""
    """Node names in the queue's notation."""
    ends_at: float | None = None
    """The end by its time limit, seconds since the epoch; for a queued task, by the start that the queue expects."""
    marks: JobMarks = JobMarks()

    @property
    def has_ended(self) -> bool:
        """A task that the queue does not know has ended too."""
        return self.state not in {QueueState.PENDING, QueueState.RUNNING}

    @property
    def exit_code(self) -> int:
        """The exit code as shells have it; 0 where the queue does not say."""
        code, _, sent = self.reason.partition(":")
        if self.state is not QueueState.FAILED or not (code.isdecimal() and sent.isdecimal()):
            return 0
        return int(code) or (128 + int(sent) if int(sent) else 0)

    @property
    def job_id(self) -> str:
        return self.task_id.partition("_")[0]

    @property
    def index(self) -> int:
        """0 for a job without an array."""
        return int(self.task_id.partition("_")[2] or 0)


class Hold(StrEnum):
    """What a queued task waits for."""

    RESOURCES = "resources"
    """Resources or limits that other jobs use up: it starts by itself in its turn."""
    JOBS = "jobs"
    TIME = "time"
    """A near moment: free resources would not start it before."""
    USER = "user"
    """A command of its user."""
    ADMINISTRATOR = "administrator"
    """A command of an administrator."""
    NEVER = "never"
    """Nothing: it can never start as it was submitted."""


@dataclass(frozen=True)
class WaitReason:
    means: str
    """The second half of a sentence: the task is queued, because ..."""
    next: str
    """What to type next; ``{id}`` stands for the task, ``{run}`` for the run directory."""
    hold: Hold = Hold.RESOURCES


@dataclass(frozen=True)
class StartEstimate:
    """When a job could start if it were submitted now and waited for no other job."""

    asked: str
    """The question, as a user would type it."""
    at: float | None
    """None where the queue named no time."""
    answer: str = ""
    """The queue's words where it named no time."""
    jobs: tuple[str, ...] = ()
    """The jobs with this answer, the one that was asked about first."""
    is_taken: bool | None = True
    """None where the queue does not say."""


@dataclass(frozen=True)
class Objections:
    doubts: Sequence[str] = ()
    refused: Sequence[str] = ()
    error: UserError | None = None


@dataclass(frozen=True)
class JobOrder:
    """The jobs of a submission, which holds the run's claim."""

    recipe: Experiment
    plan: Plan
    layout: RunLayout
    jobs: Sequence[Job]
    """Jobs that are not done, each after those that it waits for."""
    done: Collection[str]
    queued: Mapping[str, Sequence[str]]
    """Ids of queued or running jobs, by name: of the job, or of the tasks that others wait for. They are not submitted
    again.
    """
    lost_tasks: Mapping[str, Sequence[int]]
    """Tasks of ``queued`` jobs that have left the queue and are submitted again."""
    record: Callable[[str, str], None]
    """Called with name and id as soon as the queue has accepted a job. An id holds no underscore."""
    show: Callable[[str], None]
    display: Callable[[RunLayout], AbstractContextManager[Callable[[], None]]]
    """Shows the progress while tasks are children of this process; called at each look."""


class Backend(Protocol):
    """Starts the tasks of a plan. A back end without a queue keeps the defaults of methods that ask one."""

    place: ClassVar[str]
    """For messages: ``this machine``, ``the cluster``."""

    queue: ClassVar[str | None] = None
    """The queue's name for messages; None for a back end that runs the tasks itself. Back ends that name the same queue
    find each other's jobs there.
    """

    def objections(self, plan: Plan) -> Objections:  # noqa: ARG002 - some object
        """The site's objections, before anything is created or submitted."""
        return Objections()

    def samples_on_gpus_only(self) -> str | None:
        """The Python of the tasks whose vLLM computes on GPUs only; None where it does not, or cannot be asked here."""
        return samples_on_gpus_only()

    def texts(self, plan: Plan, recipe: Experiment, layout: RunLayout) -> list[tuple[str, str]]:  # noqa: ARG002
        """Each job's name and script, with ``{job name}`` in place of job ids."""
        raise UserError(f"jobs on {self.place} have no scripts", advice="add --site SITE, the name of a cluster")

    def starts(
        self,
        jobs: Sequence[Job],  # noqa: ARG002
        recipe: Experiment,  # noqa: ARG002
        layout: RunLayout,  # noqa: ARG002
    ) -> list[StartEstimate]:
        """The queue's present estimates; nothing is submitted. A queue that cannot be asked is an answer too."""
        return []

    @abstractmethod
    def submit(self, order: JobOrder) -> None:
        """Send the jobs to the queue; or, without a queue, run them to their end."""

    def states(self, job_ids: Iterable[str], within_s: float | None = None) -> dict[str, QueuedTask]:  # noqa: ARG002
        """States by task id; a forgotten job gives one entry under its own id, ``UNKNOWN``. The queue counts as not
        reached after ``within_s`` seconds; None waits as long as it may take.
        """
        return {}

    def is_own(self, layout: RunLayout, submission: Submission, marks: JobMarks) -> bool:  # noqa: ARG002
        """A queue may reuse ids, so an equal one is no proof."""
        return True

    def cluster(self, within_s: float | None = None) -> str | None:  # noqa: ARG002
        """The cluster whose queue is asked from here; None where it has no name beside ``queue``."""
        return None

    def allocations(self, layout: RunLayout, sent: Iterable[Submission]) -> list[Allocation] | None:  # noqa: ARG002
        """Attempts of these jobs that held resources; None where the queue keeps no account."""
        return None

    def own_jobs(self, layout: RunLayout) -> dict[str, list[str]]:  # noqa: ARG002
        """Ids, by job name, of a run's queued or running jobs, the oldest first, unrecorded ones too."""
        return {}

    def cancel(self, job_ids: Iterable[str]) -> list[str]:  # noqa: ARG002
        """Remove jobs from the queue so that they do not start again; return the ids of those that were queued or
        running.

        Raises:
            UserError: the queue still holds some of them.
        """
        return []

    def meaning(self, reason: str) -> WaitReason | None:  # noqa: ARG002
        """The meaning of a task's ``reason``; None where it is not known."""
        return None


class Site(SiteSettings):
    back_end: ClassVar[str]
    """``module:Class``; it takes the site profile."""

    def image_digest(self) -> str | None:
        """SHA-256 of the container image that tasks run in."""
        return None

    def image_file(self) -> Path | None:
        """A run asks for the digest again only when this file has changed."""
        return None

    def backend(self) -> Backend:
        """The module is imported here, so that ``plan`` answers at once."""
        module, _, name = self.back_end.partition(":")
        made: Backend = getattr(import_module(module), name)(self)
        return made
