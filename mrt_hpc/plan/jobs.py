"""The plan: segments of job arrays with dependencies and resources, as data."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from mrt_hpc.run.typed_file import UnreadableError, read_typed


class Role(StrEnum):
    """Work of a job's tasks."""

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

    @property
    def section(self) -> str:
        """Section of ``resources`` with the time limit."""
        return Role.TRAINER.value if self is Role.COLOCATED else self.value


class DependencyKind(StrEnum):
    """When a dependency is fulfilled, in Slurm's words."""

    AFTEROK = "afterok"
    """All tasks of the other job ended well."""
    AFTERANY = "afterany"
    """All tasks of the other job ended, however."""


class PlanPart(BaseModel):
    """Immutable, and read strictly from plan.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Dependency(PlanPart):
    job: str
    kind: DependencyKind


JobKind = Literal["cpu", "gpu"]
"""Sites tell apart jobs with and without GPUs."""


class JobResources(PlanPart):
    """What each array task needs; its ranks spread over ``nodes``."""

    nodes: int
    ranks_per_node: int
    gpus_per_rank: int
    cpus_per_rank: int
    memory_gib_per_node: float
    time_limit_minutes: int

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def gpus(self) -> int:
        return self.ranks * self.gpus_per_rank

    @property
    def kind(self) -> JobKind:
        """The kind by which a site profile chooses."""
        return "gpu" if self.gpus else "cpu"

    @property
    def cpus_per_node(self) -> int:
        return self.ranks_per_node * self.cpus_per_rank

    @property
    def gpus_per_node(self) -> int:
        return self.ranks_per_node * self.gpus_per_rank

    @property
    def cpus(self) -> int:
        return self.ranks * self.cpus_per_rank


class EvaluationUnit(PlanPart):
    """One task of an evaluation array."""

    version: int
    benchmark: str
    shard: int


class Job(PlanPart):
    """One sbatch call: an array of tasks with equal role and resources."""

    name: str
    """Unique in the plan, as ``segment-000.trainer``."""
    role: Role
    tasks: int
    segment: int | None = None
    first_iteration: int = 0
    """Of the segment."""
    end_iteration: int = 0
    """One past the last."""
    evaluations: tuple[EvaluationUnit, ...] = ()
    """Of an evaluation job, by task index."""
    resources: JobResources
    after: tuple[Dependency, ...] = ()
    max_parallel: int | None = None

    def does(self, role: Role) -> bool:
        """Whether its tasks do a role's work; a colocated job's do two."""
        both = (Role.INFERENCE, Role.TRAINER)
        return self.role is role or (self.role is Role.COLOCATED and role in both)

    @property
    def iterations(self) -> range:
        """The iterations of the segment; none for other jobs."""
        return range(self.first_iteration, self.end_iteration)


class Plan(PlanPart):
    """A run's jobs, each after those it depends on."""

    name: str
    kind: str = "unknown"
    """The algorithm; or an evaluation's suite, as ``suite paper_20``."""
    groups: int | None = None
    """Sampled groups of an iteration, or None."""
    iterations: int
    segments: int
    jobs: tuple[Job, ...]

    def job(self, name: str) -> Job:
        """The job of this name.

        Raises:
            KeyError: there is none.
        """
        return {job.name: job for job in self.jobs}[name]

    @property
    def tasks(self) -> int:
        """Array tasks of all jobs, as a cluster's submit limit counts."""
        return sum(job.tasks for job in self.jobs)

    def as_json(self) -> dict[str, Any]:
        """The form in plan.json."""
        return self.model_dump(mode="json")


FEW = 3
"""Job names in one sentence."""


def few_names(jobs: Sequence[str]) -> str:
    """First names for a sentence, and how many others."""
    more = len(jobs) - FEW
    return ", ".join(jobs[:FEW]) + (f" and {more} other job(s)" if more > 0 else "")


def read_plan(path: Path) -> Plan:
    advice = "the same submit command with another --run directory, which makes a run of its own"
    try:
        return read_typed(path, Plan, "the plan", advice=advice)
    except FileNotFoundError as error:
        raise UnreadableError("the run has no plan", where=path, advice=advice) from error
