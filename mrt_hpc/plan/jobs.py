"""The plan: segments of job arrays with their dependencies and resources, as data."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from mrt_hpc.run.typed_file import UnreadableError, read_typed


class Role(StrEnum):
    """The work of the tasks of a job."""

    PREPARE = "prepare"
    """Makes or copies weights version 0."""
    INFERENCE = "inference"
    """Samples rollouts and branches."""
    TRAINER = "trainer"
    """Updates and publishes."""
    COLOCATED = "colocated"
    """Samples and updates alternately, on the same GPUs."""
    EVALUATION = "evaluation"
    """Runs the benchmarks."""
    REPORT = "report"
    """Writes the report."""

    @property
    def section(self) -> str:
        """The section of ``resources`` from which a job of this role takes its time limit."""
        return Role.TRAINER.value if self is Role.COLOCATED else self.value


class DependencyKind(StrEnum):
    """When a dependency is fulfilled; the words are Slurm's."""

    AFTEROK = "afterok"
    """All tasks of the other job ended well."""
    AFTERANY = "afterany"
    """All tasks of the other job ended, however."""


class PlanPart(BaseModel):
    """A part of the plan: immutable, and read back strictly from plan.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Dependency(PlanPart):
    """One job waits for another."""

    job: str
    kind: DependencyKind


class JobResources(PlanPart):
    """What each array task needs; a task of several ranks spreads them over ``nodes``."""

    nodes: int
    ranks_per_node: int
    gpus_per_rank: int
    cpus_per_rank: int
    memory_gib_per_node: float
    time_limit_minutes: int

    @property
    def ranks(self) -> int:
        """Processes of a task."""
        return self.nodes * self.ranks_per_node

    @property
    def gpus(self) -> int:
        """GPUs of a task."""
        return self.ranks * self.gpus_per_rank

    @property
    def cpus(self) -> int:
        """CPU cores of a task."""
        return self.ranks * self.cpus_per_rank


class EvaluationUnit(PlanPart):
    """What one task of an evaluation array does."""

    version: int
    benchmark: str
    shard: int


class Job(PlanPart):
    """One sbatch call: an array of tasks with the same role and resources."""

    name: str
    """Unique within the plan, as in ``segment-000.trainer``."""
    role: Role
    tasks: int
    """Array tasks of this job."""
    segment: int | None = None
    first_iteration: int = 0
    """First iteration of the segment."""
    end_iteration: int = 0
    """One past its last iteration."""
    evaluations: tuple[EvaluationUnit, ...] = ()
    """The work of each task of an evaluation job, by its index in this job."""
    resources: JobResources
    after: tuple[Dependency, ...] = ()
    max_parallel: int | None = None

    def does(self, role: Role) -> bool:
        """Whether its tasks do the work of a role; those of a colocated job do that of two."""
        both = (Role.INFERENCE, Role.TRAINER)
        return self.role is role or (self.role is Role.COLOCATED and role in both)

    @property
    def iterations(self) -> range:
        """The iterations of the segment; none for jobs of no segment."""
        return range(self.first_iteration, self.end_iteration)


class Plan(PlanPart):
    """All jobs of a run, in an order in which each comes after those it depends on."""

    name: str
    kind: str = "unknown"
    """The algorithm; or the suite of an evaluation on its own, as in ``suite paper_20``."""
    groups: int | None = None
    """Groups that an iteration samples; None where none are sampled."""
    iterations: int
    segments: int
    jobs: tuple[Job, ...]

    def job(self, name: str) -> Job:
        """The job of this name.

        Raises:
            KeyError: there is none.
        """
        for job in self.jobs:
            if job.name == name:
                return job
        raise KeyError(name)

    @property
    def tasks(self) -> int:
        """The number of array tasks of all jobs, which a cluster's submit limit counts."""
        return sum(job.tasks for job in self.jobs)

    def as_json(self) -> dict[str, Any]:
        """The form in plan.json."""
        return self.model_dump(mode="json")


FEW = 3
"""The names of jobs in one sentence, at most."""


def few_names(jobs: Sequence[str]) -> str:
    """The first names of jobs for a sentence, and how many other jobs there are."""
    more = len(jobs) - FEW
    return ", ".join(jobs[:FEW]) + (f" and {more} other job(s)" if more > 0 else "")


def read_plan(path: Path) -> Plan:
    """The plan of a run.

    Raises:
        UnreadableError: the file is missing or damaged.
    """
    advice = "the same submit command with another --run directory, which makes a run of its own"
    try:
        return read_typed(path, Plan, "the plan", advice=advice)
    except FileNotFoundError as error:
        raise UnreadableError("the run has no plan", where=path, advice=advice) from error
