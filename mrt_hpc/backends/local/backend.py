"""The back end without a queue: tasks are processes of the submitting command."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from mrt_hpc.attempt.early_end import settle
from mrt_hpc.attempt.python_look import no_tasks_here
from mrt_hpc.attempt.ranks import Running, ask_to_stop, start_ranks, stop, task_code
from mrt_hpc.attempt.run_progress import failed_tasks_error
from mrt_hpc.backends.backend import Backend, JobOrder, Objections
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.local.slots import Slots, machine_remarks, machine_slots
from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import Dependency, DependencyKind, Job, Plan, Role
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import RUNS_AGAIN, TaskState, forget_failures, read_tasks

# The local backend: it runs the plan's tasks as child processes, with their dependencies and with slots for CPUs and
# GPUs. The children end with this process. Their results are in the run directory, so running the plan again continues
# the run.


LOOK_EVERY_S = 0.1
"""Between two checks of the children."""
URGENCY = {role: {Role.EVALUATION: 1, Role.REPORT: 2}.get(role, 0) for role in Role}
"""Training comes before evaluation where slots are short."""


@dataclass
class LocalRun:
    """One pass through the plan on this machine."""

    plan: Plan
    layout: RunLayout
    site: LocalSite
    slots: Slots
    retries: int
    running: list[Running] = field(default_factory=list)
    ended: dict[tuple[str, int], TaskState] = field(default_factory=dict)
    turn: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Starts of each task: tasks that returned their slots start after the others."""

    def states(self, job: Job) -> list[TaskState]:
        running = {(r.job.name, r.index) for r in self.running}
        keys = [(job.name, index) for index in range(job.tasks)]
        return [TaskState.RUNNING if k in running else self.ended.get(k, TaskState.WAITING) for k in keys]

    def has_finished(self, job: Job) -> bool:
        """Whether all of its tasks have ended, with success or not."""
        return all(s not in (TaskState.WAITING, TaskState.RUNNING) for s in self.states(job))

    def is_fulfilled(self, dependency: Dependency) -> bool:
        job = self.plan.job(dependency.job)
        if dependency.kind is DependencyKind.AFTERANY:
            return self.has_finished(job)
        return all(s is TaskState.DONE for s in self.states(job))

    def hopeless(self, dependency: Dependency) -> bool:
        """What it needs has failed."""
        has_finished = self.has_finished(self.plan.job(dependency.job))
        return dependency.kind is DependencyKind.AFTEROK and has_finished and not self.is_fulfilled(dependency)


def run_plan(plan: Plan, layout: RunLayout, site: LocalSite, retries: int, show: Callable[[LocalRun], None]) -> bool:
    """Return whether every task ended well.

    Args:
        retries: failures that a task may have before the run is given up.
        show: called at each check, to show the progress.

    Raises:
        KeyboardInterrupt: the user stopped it; all children have ended.
        UserError: the plan needs more than this machine has.
    """
    run = LocalRun(plan, layout, site, machine_slots(plan, site), retries)
    for job in plan.jobs:
        forget_failures(layout, job.name, range(job.tasks))
        records = enumerate(read_tasks(layout, job.name, job.tasks))
        run.ended |= {(job.name, n): record.state for n, record in records if record.state is TaskState.DONE}
    try:
        while not all(run.has_finished(job) for job in plan.jobs):
            reap(run)
            cancel_hopeless(run)
            start_ready(run)
            show(run)
            time.sleep(LOOK_EVERY_S)
    finally:
        stop_all(run)
    show(run)
    return all(state is TaskState.DONE for state in run.ended.values())


def start_ready(run: LocalRun) -> None:
    """Tasks with fulfilled dependencies and free slots, the most urgent first."""
    for job, index in sorted(waiting_tasks(run), key=lambda t: (URGENCY[t[0].role], run.turn[t[0].name, t[1]])):
        unfinished = sum(r.job.name == job.name for r in run.running)
        if unfinished < (job.max_parallel or job.tasks) and run.slots.fit(job.resources):
            run.running.append(start_task(run, job, index))


def waiting_tasks(run: LocalRun) -> list[tuple[Job, int]]:
    return [
        (job, index)
        for job in run.plan.jobs
        if all(run.is_fulfilled(d) for d in job.after)
        for index, state in enumerate(run.states(job))
        if state is TaskState.WAITING
    ]


def start_task(run: LocalRun, job: Job, index: int) -> Running:
    gpus = run.slots.take(job.resources)
    run.turn[job.name, index] += 1
    environment = {
        **os.environ,
        "PYTHONSAFEPATH": "1",  # the folder that the command was typed in holds no modules of ours
        "OMP_NUM_THREADS": str(job.resources.cpus_per_rank),
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        **run.site.environment,
    }
    return start_ranks(run.layout, job, index, environment, gpus)


def reap(run: LocalRun) -> None:
    """Record ended tasks; a failed rank stops all ranks of its task."""
    for task in list(run.running):
        codes = task.exit_codes()
        if None in codes and not any(codes):
            continue
        stop(task)
        run.running.remove(task)
        run.slots.give_back(task.job.resources, task.gpus)
        code = task_code([code for code in codes if code is not None])  # of the ranks that ended by themselves
        record = settle(run.layout, task.job.name, task.index, task.attempt, code, run.retries)
        if record.state not in RUNS_AGAIN:
            run.ended[task.job.name, task.index] = record.state


def cancel_hopeless(run: LocalRun) -> None:
    for job in run.plan.jobs:
        if any(run.hopeless(d) for d in job.after):
            for index, state in enumerate(run.states(job)):
                if state is TaskState.WAITING:
                    run.ended[job.name, index] = TaskState.STOPPED


def stop_all(run: LocalRun) -> None:
    """Signal every child first, and then wait for each."""
    for task in run.running:
        ask_to_stop(task)
    for task in run.running:
        stop(task)
    run.running.clear()


STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""They stop the run, even if the shell started the command with these signals ignored."""


@dataclass(frozen=True)
class LocalBackend(Backend):
    site: LocalSite
    place: ClassVar[str] = "this machine"

    def objections(self, plan: Plan) -> Objections:
        """Refuse tasks that can never start here; doubt plans that ask for more cores or memory than there are."""
        doubts = machine_remarks(plan, self.site)
        if (no_python := no_tasks_here()) is not None:
            return Objections(doubts, (no_python.what,), no_python)
        try:
            machine_slots(plan, self.site)
        except UserError as error:
            return Objections(doubts, (f"{error.what}; {error.advice}",), error)
        return Objections(doubts)

    def submit(self, order: JobOrder) -> None:
        """A UserError where a task failed."""
        for number in STOPS:
            signal.signal(number, signal.default_int_handler)
        order.show(f"run directory: {order.layout.root}")
        retries = order.recipe.resilience.retries
        with order.display(order.layout) as look:
            well = run_plan(order.plan, order.layout, self.site, retries, lambda _: look())
        if not well:
            raise failed_tasks_error(order.plan, order.layout)
        order.show(f"done; the report: {order.layout.report}")
