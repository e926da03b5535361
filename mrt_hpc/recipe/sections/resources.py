"""What each role of a run needs of a machine."""

from __future__ import annotations

from mrt_hpc.recipe.base import Cores, Count, Gib, Gpus, Nodes, Section, WholeMinutes


class RoleResources(Section):
    """What one process of a role needs."""

    gpus: Gpus = 0
    """The number of GPUs of a process."""
    cpus: Cores = 2
    """The number of CPU cores of a process."""
    memory_gib: Gib = 8.0
    """The memory of a process, GiB."""
    time_limit_minutes: WholeMinutes = 60
    """The wall-clock limit of the job, minutes."""


class InferenceResources(RoleResources):
    """The inference array of a segment."""

    tasks: Count = 1
    """The number of array tasks, each with servers of its own (see serving.servers). They share the problems of an
    iteration.
    """
    nodes: Nodes = 1
    """The number of nodes of a task, each with these gpus, cpus and memory_gib. Above 1 the task starts a Ray cluster
    on them: it grades on all nodes, and with GPUs its one server spans all of them.
    """
    max_parallel: Count | None = None
    """The maximum number of tasks of the array that run at the same time; null leaves it to the queue. With more tasks
    than run at a time, each task of a long collection stays within its time limit.
    """


class TrainerResources(RoleResources):
    """The trainer of a segment."""

    ranks: Nodes = 1
    """The number of processes; with GPUs each process has its own."""
    ranks_per_node: Cores | None = None
    """The number of processes of a node; null puts all on one node."""


class EvaluationResources(RoleResources):
    """The evaluation array of a segment."""

    max_parallel: Count | None = None
    """The maximum number of tasks of the array that run at the same time; null leaves it to the queue."""


class Resources(Section):
    """What each role needs."""

    prepare: RoleResources = RoleResources()
    """The first job, which makes or copies weights version 0."""
    inference: InferenceResources = InferenceResources()
    """The vLLM servers for rollouts and branches."""
    trainer: TrainerResources = TrainerResources()
    """The DeepSpeed updates."""
    evaluation: EvaluationResources = EvaluationResources()
    """The benchmarks."""
    report: RoleResources = RoleResources(cpus=1, memory_gib=4.0, time_limit_minutes=30)
    """The report and its plots."""
