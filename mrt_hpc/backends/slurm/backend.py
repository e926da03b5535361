"""The back end for Slurm: each job of the plan is one sbatch call."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mrt_hpc.analysis.spending import Allocation
from mrt_hpc.attempt.python_look import PythonLookError, look_at_python, no_tasks_here
from mrt_hpc.backends.backend import Backend, JobOrder, Objections, QueuedTask, StartEstimate, WaitReason
from mrt_hpc.backends.slurm import cluster_limits, queue, reasons
from mrt_hpc.backends.slurm.commands import ignored_options
from mrt_hpc.backends.slurm.parameters import with_models_bound
from mrt_hpc.backends.slurm.site import SlurmSite, unknown_options
from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import Job, Plan
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.run.layout import RunLayout

LOOK_S = 20.0
"""Seconds that the Python of the tasks may take to say what it has, while a submission waits."""


@dataclass(frozen=True)
class SlurmBackend(Backend):
    """Submits job arrays to a cluster. submitit and the fields of recipes are imported only where sbatch texts are
    made, so that the queue can be asked at once.
    """

    site: SlurmSite
    place: ClassVar[str] = "the cluster"

    @property
    def queue(self) -> str | None:
        """The queue is the same for all profiles of Slurm clusters."""
        return "Slurm"

    def objections(self, plan: Plan) -> Objections:
        """Check the Python of the tasks where it is this one, and the plan against the profile, and against the
        cluster's limits if the cluster can be asked.
        """
        limits, doubts = None, [*unknown_options(self.site), *_ignored()]
        try:
            limits = cluster_limits.cluster_limits()
        except UserError as error:
            doubts.insert(0, f"the cluster's limits are not known: {error.what}: {error.value or 'no answer'}")
        own_python = self.site.python is None and self.site.container is None
        if own_python and (no_python := no_tasks_here()) is not None:
            return Objections(doubts, (no_python.what,), no_python)
        if limits is None:
            return Objections(doubts)
        settings, partitions = limits
        refused = cluster_limits.beyond(plan, self.site, settings, partitions)
        refusal = cluster_limits.refusal(self.site, refused) if refused else None
        return Objections([*doubts, *cluster_limits.closed_partitions(plan, self.site, partitions)], refused, refusal)

    def samples_on_gpus_only(self) -> str | None:
        """Ask the Python of the profile, after its setup lines."""
        site = self.site
        if site.container is None and site.python is None:
            return super().samples_on_gpus_only()
        words = [str(site.python)] if site.container is None else site.container.python_words
        try:
            has = look_at_python(words, setup=site.setup, environment=site.environment, deadline_s=LOOK_S)
        except PythonLookError:
            return None  # doctor says why
        return shlex.join(words) if has.needs_gpus else None

    def texts(self, plan: Plan, recipe: Experiment, layout: RunLayout) -> list[tuple[str, str]]:
        """The sbatch texts.

        Raises:
            UserError: the run directory has a path that Slurm would misread.
        """
        from mrt_hpc.backends.slurm.arrays import sbatch_texts

        return sbatch_texts(plan, with_models_bound(self.site, recipe), layout)

    def starts(self, jobs: Sequence[Job], recipe: Experiment, layout: RunLayout) -> list[StartEstimate]:
        """Ask ``sbatch --test-only`` once for each kind of job.

        Raises:
            UserError: the run directory has a path that Slurm would misread.
        """
        from mrt_hpc.backends.slurm.arrays import start_estimates

        return start_estimates(jobs, with_models_bound(self.site, recipe), layout)

    def submit(self, order: JobOrder) -> None:
        """Call sbatch once for each job that is not in the queue, and show what Slurm has made of the jobs.

        Raises:
            UserError: sbatch is missing, does not answer, or refuses.
        """
        from mrt_hpc.backends.slurm.arrays import submit_arrays
        from mrt_hpc.backends.slurm.queued_as import queued_otherwise

        sent = submit_arrays(
            order.jobs,
            with_models_bound(self.site, order.recipe),
            order.layout,
            known_ids={name: ":".join(awaited) for name, awaited in order.queued.items()},
            record=order.record,
            show=order.show,
            satisfied=order.done,
            lost_tasks=order.lost_tasks,
        )
        ids = dict(sent)
        for sentence in queued_otherwise(
            [job for job in order.jobs if job.name in ids], ids, self.site, order.layout.root
        ):
            order.show(sentence)

    def states(self, job_ids: Iterable[str], within_s: float | None = None) -> dict[str, QueuedTask]:
        """Ask one squeue and one sacct.

        Raises:
            UserError: a command is missing, did not answer, or refused.
        """
        return queue.queue_states(job_ids, within_s)

    def allocations(self, job_ids: Iterable[str]) -> list[Allocation] | None:
        """Ask one sacct.

        Raises:
            UserError: sacct is missing, did not answer, or refused.
        """
        return queue.accounted_attempts(job_ids)

    def unrecorded(self, root: Path, recorded: Iterable[str]) -> dict[str, list[str]]:
        """Ask one squeue.

        Raises:
            UserError: squeue is missing, did not answer, or refused.
        """
        return queue.unrecorded_jobs(root, recorded)

    def cancel(self, job_ids: Iterable[str]) -> list[str]:
        """Call scancel.

        Raises:
            UserError: a command is missing or did not answer, or jobs are still queued or running.
        """
        return queue.cancel(job_ids)

    def meaning(self, reason: str) -> WaitReason | None:
        """Look it up in the table of Slurm's reasons."""
        return reasons.meaning(reason)


def _ignored() -> list[str]:
    """A sentence on the options of sbatch that this shell sets, and that would win over the plan."""
    if not (ignored := ignored_options()):
        return []
    return [
        f"these variables of this shell are left out, as the recipe and the site profile say what a job gets: "
        f"{', '.join(ignored)} (what they ask for can stand in the site profile: account, qos, partitions, sbatch)"
    ]
