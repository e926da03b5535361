"""Small plans for the tests of the Slurm backend."""

from __future__ import annotations

from mrt_hpc.plan.jobs import Dependency, DependencyKind, Job, JobResources, Plan, Role


def job(
    name: str,
    *,
    role: Role = Role.INFERENCE,
    tasks: int = 1,
    ranks: int = 1,
    ok: tuple[str, ...] = (),
    any: tuple[str, ...] = (),
    max_parallel: int | None = None,
    memory_gib: float = 0.25,
    gpus: int = 0,
    minutes: int = 30,
) -> Job:
    """A job that asks for next to nothing; ``ok`` and ``any`` name the jobs that it waits for."""
    return Job(
        name=name,
        role=role,
        tasks=tasks,
        resources=JobResources(
            nodes=1,
            ranks_per_node=ranks,
            gpus_per_rank=gpus,
            cpus_per_rank=1,
            memory_gib_per_node=memory_gib * ranks,
            time_limit_minutes=minutes,
        ),
        after=tuple(
            [Dependency(job=other, kind=DependencyKind.AFTEROK) for other in ok]
            + [Dependency(job=other, kind=DependencyKind.AFTERANY) for other in any]
        ),
        max_parallel=max_parallel,
    )


def plan(*jobs: Job) -> Plan:
    """A plan of these jobs."""
    return Plan(name="trivial", iterations=1, segments=1, jobs=jobs)
