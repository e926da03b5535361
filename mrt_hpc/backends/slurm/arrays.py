"""The Slurm backend: a plan's jobs as submitit arrays, printed or submitted.

Each job is one sbatch call for all its tasks, the same for `plan --sbatch` and `submit`; ids of other jobs are ``{job
name}`` until they are known. Only this module and :mod:`mrt_hpc.backends.slurm.task` import submitit.
"""

import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from submitit.core.utils import DelayedSubmission, JobPaths
from submitit.slurm.slurm import SlurmExecutor

from mrt_hpc.backends.slurm import parameters as script_of
from mrt_hpc.backends.slurm import plain_paths
from mrt_hpc.backends.slurm.commands import Answer, SlurmRefusedError, answer_of, is_unreachable
from mrt_hpc.backends.slurm.queue import own_jobs
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.backends.slurm.slurm_output import remark, submitted_id
from mrt_hpc.backends.slurm.task import TaskCall
from mrt_hpc.errors import Advice, ExitCode, UserError
from mrt_hpc.plan.jobs import Dependency, DependencyKind, Job, Plan
from mrt_hpc.run import atomic
from mrt_hpc.run.layout import RunLayout

MAX_TIMEOUTS = 8
"""How often submitit requeues a task that a signal reached before its own handlers; later the recipe's retries count
(see :mod:`mrt_hpc.attempt.next_state`).
"""

SBATCH_S = 150.0
"""sbatch itself retries for 120 s if the queue is full, and then reports the reason."""
ROOM_S = 120.0
"""A job that is one too many is offered again for so long; sbatch does not wait for a limit of its user's jobs."""
OFFER_EVERY_S = 10.0
QUEUE_FULL = re.compile(r"temporarily unable to accept job|queue full|resource temporarily unavailable", re.IGNORECASE)
TOO_MANY = re.compile(r"\w*(?:Max|Grp)Submit\w*")
"""Limits of the jobs in the queue."""

Record = Callable[[str, str], None]
"""``record(job name, Slurm job id)``, called as soon as the id is known."""
Show = Callable[[str], None]


class ArrayExecutor(SlurmExecutor):
    """submitit's executor for one job of the plan: one sbatch, one pickle to which the tasks' names are links. The id
    is recorded before anything else can fail.
    """

    def __init__(
        self, job: Job, site: SlurmSite, layout: RunLayout, *, waited_for: bool, indices: Sequence[int] = ()
    ) -> None:
        folder = layout.logs / job.name
        super().__init__(folder, max_num_timeout=MAX_TIMEOUTS, python=script_of.python_command(job, site, layout))
        self.job, self.indices = job, list(indices) or list(range(job.tasks))
        parameters = script_of.sbatch_parameters(job, site, layout, waited_for=waited_for)
        if indices:
            parameters["additional_parameters"]["array"] = array_of(indices, job.max_parallel)
        self.update_parameters(**parameters, dependency=script_of.dependency_tokens(job))
        if job.tasks > 1:
            self.parameters["map_count"] = job.tasks  # submitit's own word for the size of an array

    @classmethod
    def affinity(cls) -> int:
        """sbatch texts are also written where Slurm is not installed."""
        return 2

    def text(self, ids: Mapping[str, str]) -> str:
        """The sbatch script; unknown ids are ``{name}``."""
        text = self._make_submission_file_text(self._submitit_command_str, uid="")
        return script_of.fill_in_ids(script_of.escape_for_sbatch(text), self.job, ids)

    def submit_call(self, call: TaskCall, ids: Mapping[str, str], show: Show) -> tuple[str, list[str]]:
        """Run sbatch; return the job's id, and sbatch's other lines. :meth:`give_pickle` has to follow
        within a minute.
        """
        script = self.folder / script_of.SCRIPT
        atomic.write_text(script, self.text(ids), private=True)  # it has the variables of the site
        self._write_pickle(call)
        command = ["sbatch", "--parsable", str(script)]
        answer = self._offer(command, script, show)
        job_id, others = submitted_id(answer.printed, command)
        script.replace(JobPaths(self.folder, job_id).submission_file)
        return job_id, [*others, *filter(None, map(str.strip, answer.remarks.splitlines()))]

    def _offer(self, command: Sequence[str], script: Path, show: Show) -> Answer:
        end, shown = time.monotonic() + ROOM_S, False
        while True:
            try:
                return answer_of(command, SBATCH_S)
            except SlurmRefusedError as refusal:
                limit = TOO_MANY.search(refusal.reason)
                if limit is None or time.monotonic() + OFFER_EVERY_S > end:
                    raise _sbatch_error(refusal, self.job, script) from None
            if not shown:
                show(f"job {self.job.name} would be one too many in the queue ({limit[0]}): waiting for {ROOM_S:.0f} s")
                shown = True
            time.sleep(OFFER_EVERY_S)

    def _write_pickle(self, call: TaskCall) -> None:
        delayed = DelayedSubmission(call)
        delayed.set_timeout(self.job.resources.time_limit_minutes, self.max_num_timeout)
        with atomic.replace_file(self._pickle) as temporary:
            delayed.dump(temporary)

    @property
    def _pickle(self) -> Path:
        return self.folder / "call.pkl"

    def give_pickle(self, call: TaskCall, job_id: str) -> None:
        """Put the pickle where each task of ``job_id`` (or the one task that it names) looks for it; an existing file
        stays.
        """
        if not self._pickle.exists():
            self._write_pickle(call)
        is_one_task = self.job.tasks == 1 or "_" in job_id
        for task in [job_id] if is_one_task else [f"{job_id}_{k}" for k in self.indices]:
            with suppress(FileExistsError):
                os.link(self._pickle, JobPaths(self.folder, task).submitted_pickle)


def sbatch_texts(plan: Plan, site: SlurmSite, layout: RunLayout) -> list[tuple[str, str]]:
    """Texts in the order of submission, with ``{job name}`` in place of job ids. Needs no Slurm and writes nothing."""
    layout = plain_paths.require_plain_path(layout, site.container)
    placeholders = {job.name: f"{{{job.name}}}" for job in plan.jobs}
    awaited = must_end_well(plan.jobs)
    executors = (ArrayExecutor(job, site, layout, waited_for=job.name in awaited) for job in plan.jobs)
    return [(executor.job.name, executor.text(placeholders)) for executor in executors]


def must_end_well(jobs: Sequence[Job]) -> set[str]:
    return {wait.job for job in jobs for wait in job.after if wait.kind is DependencyKind.AFTEROK}


def submit_arrays(
    jobs: Sequence[Job],
    site: SlurmSite,
    layout: RunLayout,
    *,
    known_ids: Mapping[str, str],
    record: Record,
    show: Show = remark,
    satisfied: Collection[str] = (),
    lost_tasks: Mapping[str, Sequence[int]] | None = None,
    call: Callable[[str, str], TaskCall] = TaskCall,
) -> list[tuple[str, str]]:
    """Submit the jobs of a plan that have no id yet, in the given order.

    Call it again to continue an interrupted submission: a job whose id was lost between sbatch and ``record`` is found
    in the queue (see :func:`own_jobs`).

    Args:
        known_ids: by job name; these jobs are passed over. An id of the job, or ids of jobs and tasks with colons in
            between, as a dependency has them.
        record: called as soon as sbatch has printed an id.
        show: shows the site's words, and what a submission waits for.
        satisfied: jobs that ended well earlier.
        lost_tasks: tasks of jobs in ``known_ids`` that are sent again.
        call: makes what each task calls, from run directory and job name.

    Returns:
        Name and id of each job submitted or found.
    """
    layout = plain_paths.require_plain_path(layout, site.container)
    ids, partly = dict(known_ids), lost_tasks or {}
    todo = [job for job in jobs if job.name not in known_ids or job.name in partly]
    recorded = {job_id.partition("_")[0] for several in ids.values() for job_id in several.split(":")}
    listed = own_jobs(layout) if todo else {}
    lost = {name: left for name, found in listed.items() if (left := [one for one in found if one not in recorded])}
    awaited = must_end_well(jobs)
    submitted: list[tuple[str, str]] = []
    said: set[str] = set()
    for job in jobs:
        indices = partly.get(job.name, ())
        unsatisfied = tuple(wait for wait in job.after if wait.job not in satisfied)
        due = _delay_lost_tasks(job.model_copy(update={"after": unsatisfied}), indices)
        executor = ArrayExecutor(due, site, layout, waited_for=job.name in awaited, indices=indices)
        pickled = call(str(layout.root), job.name)
        if job.name in known_ids:
            for known in ids[job.name].split(":"):
                executor.give_pickle(pickled, known)  # an earlier call may have ended before it could
            if not indices:
                continue
        _require_known(executor.job, ids)
        words: list[str] = []
        if job.name in lost:
            job_id = lost[job.name][-1]
        else:
            job_id, words = executor.submit_call(pickled, ids, show)
        record(job.name, job_id)
        # A job may start at once, and waits for it; what is shown may fail or block.
        executor.give_pickle(pickled, job_id)
        for line in words:
            if line not in said:
                show(f"sbatch says: {line}")
        said.update(words)
        ids[job.name] = f"{ids[job.name]}:{job_id}" if job.name in known_ids else job_id
        submitted.append((job.name, job_id))
    return submitted


def array_of(indices: Sequence[int], max_parallel: int | None) -> str:
    return f"{','.join(map(str, indices))}%{max_parallel or len(indices)}"


def _delay_lost_tasks(job: Job, lost: Sequence[int]) -> Job:
    """Lost tasks start after live ones where parallel tasks are limited: Slurm limits them only within one array."""
    if not lost or job.max_parallel is None:
        return job
    return job.model_copy(update={"after": (*job.after, Dependency(job=job.name, kind=DependencyKind.AFTERANY))})


def _require_known(job: Job, ids: Mapping[str, str]) -> None:
    for wait in job.after:
        if wait.job not in ids:
            raise UserError(
                f"job {job.name} waits for a job that was never submitted",
                value=wait.job,
                expected="one of " + (", ".join(ids) or "(no job has been submitted)"),
                advice="submit the plan's jobs in order",
            )


def _sbatch_error(refusal: SlurmRefusedError, job: Job, script: Path) -> UserError:
    passing, expected = True, None
    if is_unreachable(refusal):
        what = f"sbatch had no answer from the controller; job {job.name} may be queued all the same"
        advice = (
            "scontrol ping shows whether the controller is up; then the same submit command, which takes over the jobs "
            "of this run that it finds in the queue"
        )
    elif TOO_MANY.search(refusal.reason):
        what = f"job {job.name} would be one too many: a limit allows no more of your jobs in the queue"
        expected = "room for a plan's jobs below the limit that Slurm names"
        advice = (
            "repeat the same submit command when jobs of yours have left the queue (squeue --me --array | wc -l); "
            "max_submit_jobs in the site profile states the limit, and mrt-hpc doctor shows it"
        )
    elif QUEUE_FULL.search(refusal.reason):
        what = f"Slurm had no room in its queue for job {job.name}"
        expected = "room for a plan's jobs below MaxJobCount (scontrol show config), which all users share"
        advice = "repeat the same submit command when other users' jobs have left the queue (squeue --array | wc -l)"
    else:
        passing, what = False, f"Slurm refused to queue job {job.name}"
        expected = "a request that the site's partitions, account and limits allow"
        advice = Advice("try `sbatch --test-only {script}`, correct the site profile, and submit again", script=script)
    code = ExitCode.RETRYABLE if passing else ExitCode.FATAL
    return UserError(what, value=refusal.reason, where=str(script), expected=expected, advice=advice, exit_code=code)
