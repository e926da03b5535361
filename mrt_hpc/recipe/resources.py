"""What each role of a run needs of a machine."""

from __future__ import annotations

from mrt_hpc.recipe.base import NotNegative, Positive, PositiveFloat, Section


class RoleResources(Section):
    """What one process of a role needs."""

    gpus: NotNegative = 0
    """GPUs a process."""
    cpus: Positive = 2
    """CPU cores a process."""
    memory_gib: PositiveFloat = 8.0
    """Memory a process, GiB."""
    time_limit_minutes: Positive = 60
    """Wall-clock limit of the job, minutes."""


class InferenceResources(RoleResources):
    """The inference array of a segment."""

    tasks: Positive = 1
    """Array tasks, each with its own server; an iteration's problems are shared among them."""


class TrainerResources(RoleResources):
    """The trainer of a segment."""

    ranks: Positive = 1
    """Processes, one a GPU where there are GPUs."""
    ranks_per_node: Positive | None = None
    """Processes a node; null puts all on one node."""


class EvaluationResources(RoleResources):
    """The evaluation array of a segment."""

    max_parallel: Positive | None = None
    """Tasks of the array that run at the same time, at most; null leaves it to the queue."""


class Resources(Section):
    """What each role needs."""

    prepare: RoleResources = RoleResources()
    """The first job: makes or copies weights version 0."""
    inference: InferenceResources = InferenceResources()
    """vLLM servers for rollouts and branches."""
    trainer: TrainerResources = TrainerResources()
    """DeepSpeed updates."""
    evaluation: EvaluationResources = EvaluationResources()
    """Benchmarks."""
    report: RoleResources = RoleResources(cpus=1, memory_gib=4.0, time_limit_minutes=30)
    """Report and plots."""
