"""The back end for Slurm: each job of the plan is one sbatch call."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from mrt_hpc.attempt.python_look import PythonLookError, look_at_python, needs_gpus, no_tasks_here
from mrt_hpc.backends.backend import Backend, JobOrder, Objections, StartEstimate
from mrt_hpc.backends.slurm import accounting, cluster_limits, reasons, survey
from mrt_hpc.backends.slurm import queue as slurm_queue
from mrt_hpc.backends.slurm.commands import ask_slurm, ignored_options, run_slurm
from mrt_hpc.backends.slurm.parameters import SIGNAL_BEFORE_LIMIT_S
from mrt_hpc.backends.slurm.plain_paths import bind_models
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import Job, Plan, few_names
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.run.layout import RunLayout

SHORTEST_TRY_S = 120
"""A server or a trainer begins in one to several minutes."""
LOOK_S = 20.0
"""The limit for a look at the tasks' Python, while a submission waits."""


@dataclass(frozen=True)
class SlurmBackend(Backend):
    site: SlurmSite
    place: ClassVar[str] = "the cluster"
    queue: ClassVar[str | None] = "Slurm"
    """The same for all profiles of Slurm clusters."""

    def objections(self, plan: Plan) -> Objections:
        """Check the tasks' Python where it is this one, and the plan against the limits of the profile and, if it
        answers, of the cluster.
        """
        limits, doubts = None, [*_ignored_options_remarks(), *_short_tries(plan), *self._charge_remarks(plan)]
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
        refused = cluster_limits.limit_excesses(plan, self.site, settings, partitions)
        refusal = cluster_limits.refusal(self.site, refused) if refused else None
        return Objections([*doubts, *cluster_limits.closed_partitions(plan, self.site, partitions)], refused, refusal)

    def _charge_remarks(self, plan: Plan) -> Iterator[str]:
        """The plan may count fewer GPUs than the cluster charges."""
        site = self.site
        if site.node_gpus is None and site.gets_whole_nodes and any(job.resources.gpus for job in plan.jobs):
            yield (
                f"jobs with GPUs get whole nodes, and are charged for all of their GPUs; the GPU-hours of the plan "
                f"count those that jobs ask for, until node_gpus in the profile of site {site.name} says how many a "
                "node has"
            )

    def samples_on_gpus_only(self) -> str | None:
        """Ask the Python of the profile, after its setup lines."""
        site = self.site
        if site.container is None and site.python is None:
            return super().samples_on_gpus_only()
        if site.container is not None and site.container.is_of_srun:
            return None  # only a job starts it
        words = [str(site.python)] if site.container is None else site.container.python_words
        try:
            site.refuse_to_run_here()
            has = look_at_python(words, setup=site.setup, environment=site.task_environment, deadline_s=LOOK_S)
        except (UserError, PythonLookError):
            return None  # doctor says why
        return shlex.join(words) if needs_gpus(has.vllm) else None

    def texts(self, plan: Plan, recipe: Experiment, layout: RunLayout) -> list[tuple[str, str]]:
        from mrt_hpc.backends.slurm.arrays import sbatch_texts

        return sbatch_texts(plan, bind_models(self.site, recipe), layout)

    def starts(self, jobs: Sequence[Job], recipe: Experiment, layout: RunLayout) -> list[StartEstimate]:
        from mrt_hpc.backends.slurm.starts import start_estimates

        return start_estimates(jobs, bind_models(self.site, recipe), layout)

    def submit(self, order: JobOrder) -> None:
        """Let sbatch test a job of each kind before, and show what Slurm has made of the jobs."""
        from mrt_hpc.backends.slurm.arrays import submit_arrays
        from mrt_hpc.backends.slurm.queued_as import queue_differences
        from mrt_hpc.backends.slurm.starts import refuse_untaken

        site = bind_models(self.site, order.recipe)
        due = [job for job in order.jobs if job.name not in order.queued or job.name in order.lost_tasks]
        refuse_untaken(due, site, order.layout, order.show)
        sent = submit_arrays(
            order.jobs,
            site,
            order.layout,
            known_ids={name: ":".join(awaited) for name, awaited in order.queued.items()},
            record=order.record,
            show=order.show,
            satisfied=order.done,
            lost_tasks=order.lost_tasks,
        )
        ids = dict(sent)
        mine = [job for job in order.jobs if job.name in ids]
        for sentence in queue_differences(mine, ids, self.site, order.layout.root):
            order.show(sentence)

    states = staticmethod(slurm_queue.queue_states)
    is_own = staticmethod(slurm_queue.is_own)
    """A job is known by name, script and time."""
    allocations = staticmethod(accounting.accounted_attempts)
    own_jobs = staticmethod(slurm_queue.own_jobs)
    cancel = staticmethod(slurm_queue.cancel)
    meaning = staticmethod(reasons.meaning)

    def cluster(self, within_s: float | None = None) -> str | None:
        printed = ask_slurm(survey.CONFIG) if within_s is None else run_slurm(survey.CONFIG, within_s)
        return survey.parse_settings(printed).name or None


def _short_tries(plan: Plan) -> Iterator[str]:
    short = [job for job in plan.jobs if job.resources.time_limit_minutes * 60 < SIGNAL_BEFORE_LIMIT_S + SHORTEST_TRY_S]
    for role in dict.fromkeys(job.role for job in short):
        jobs = [job for job in short if job.role is role]
        minutes = jobs[0].resources.time_limit_minutes
        yield (
            f"{few_names([job.name for job in jobs])}: the time limit of {minutes} minute(s) leaves a try "
            f"{max(0, minutes * 60 - SIGNAL_BEFORE_LIMIT_S)} s, as a task is asked to stop {SIGNAL_BEFORE_LIMIT_S} s "
            f"before it: raise resources.{role.section}.time_limit_minutes"
        )


def _ignored_options_remarks() -> Iterator[str]:
    if ignored := ignored_options():
        yield (
            f"these variables of this shell are left out, as the recipe and the site profile say what a job gets: "
            f"{', '.join(ignored)} (what they ask for can stand in the site profile: account, qos, partitions, sbatch)"
        )
