"""The reckoning of a run: GPU-hours and core-hours of every attempt, by role and by use. Where the queue keeps an
account, its seconds and resources count, and the run's events say what they were used for; elsewhere the events tell
both. Every second of an attempt has one use, so the uses add up to the whole.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrt_hpc.analysis.attempts import attempts
from mrt_hpc.plan.compile import role_resources
from mrt_hpc.plan.cost import UseHours
from mrt_hpc.plan.jobs import Role
from mrt_hpc.run.uses import Use

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mrt_hpc.analysis.attempts import Attempt
    from mrt_hpc.analysis.measures import EvaluationSummary
    from mrt_hpc.plan.jobs import JobResources, Plan
    from mrt_hpc.recipe.evaluation_recipe import Experiment
    from mrt_hpc.run.layout import RunLayout

HOUR_S = 3600.0
CLOCKS_APART_S = 60.0
"""At most, between the clock of a node and that of the queue's accounting, seconds."""
TRAINING_ROLES = frozenset({Role.PREPARE, Role.INFERENCE, Role.TRAINER, Role.COLOCATED})
"""The roles whose GPU-hours buy accuracy; those of evaluations only measure it."""


@dataclass(frozen=True)
class Allocation:
    """What one attempt of a task held, by the queue's accounting."""

    job: str
    """The name of the job in the plan."""
    task_id: str
    """The id of the task in the queue, as ``1234_5``."""
    began: float
    """Seconds since the epoch."""
    seconds: float
    """Until its end, or until now."""
    gpus: int | None
    """None where accounting does not name GPUs."""
    cpus: int | None
    queued_s: float
    """Seconds that it waited in the queue after it could have started."""
    failed: bool
    """Whether it ended otherwise than well."""


@dataclass(frozen=True)
class Accounts:
    """What is known of a run's jobs beside its events."""

    allocations: Sequence[Allocation] = ()
    """Of the queues that keep an account."""
    submitted: Mapping[str, float] | None = None
    """When each job was submitted, by its id."""


@dataclass(frozen=True)
class SpentAttempt:
    """The reckoning of one attempt."""

    job: str
    role: Role
    began: float
    seconds: float
    by_use: Mapping[Use, float]
    """Seconds, which add up to ``seconds``."""
    gpus: int
    cpus: int
    queued_s: float | None
    """Seconds in the queue before it; None where that is not known."""


@dataclass(frozen=True)
class PointPrice:
    """What the accuracy on a benchmark has cost."""

    benchmark: str
    first: int
    last: int
    """The first and the last weights version that were evaluated."""
    gain: float
    """In percentage points."""
    gpu_hours: float | None
    """GPU-hours of training for each point; None where nothing was gained."""
    core_hours: float | None
    """Core-hours of training for each point; None where nothing was gained."""


@dataclass(frozen=True)
class Spending:
    """The reckoning of a run."""

    attempts: tuple[SpentAttempt, ...]
    accounted: bool
    """Whether the queue's accounting was asked and knows the run."""
    notes: tuple[str, ...] = ()
    """What a reader has to know of the numbers, a sentence each."""

    @property
    def rows(self) -> list[UseHours]:
        """The hours by role and use, in the order of their definition; what took no time is left out."""
        found: dict[tuple[Role, Use], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        for attempt in self.attempts:
            for use, seconds in attempt.by_use.items():
                hours = found[attempt.role, use]
                for column, number in enumerate((1, attempt.gpus, attempt.cpus)):
                    hours[column] += seconds * number / HOUR_S
        return [UseHours(role, use, *found[role, use]) for role in Role for use in Use if (role, use) in found]

    @property
    def gpu_hours(self) -> float:
        """Of all attempts."""
        return sum(attempt.seconds * attempt.gpus for attempt in self.attempts) / HOUR_S

    @property
    def core_hours(self) -> float:
        """Of all attempts."""
        return sum(attempt.seconds * attempt.cpus for attempt in self.attempts) / HOUR_S

    @property
    def wall_seconds(self) -> float | None:
        """From the begin of the first attempt to the end of the last; None before the first."""
        if not self.attempts:
            return None
        return max(a.began + a.seconds for a in self.attempts) - min(a.began for a in self.attempts)

    @property
    def queue_hours(self) -> dict[Role, float]:
        """The hours that tasks of each role waited in the queue, where they are known. Nothing was allocated then."""
        found: dict[Role, float] = {}
        for attempt in self.attempts:
            if attempt.queued_s is not None:
                found[attempt.role] = found.get(attempt.role, 0.0) + attempt.queued_s / HOUR_S
        return {role: found[role] for role in Role if role in found}


def spending(layout: RunLayout, plan: Plan, recipe: Experiment, accounts: Accounts | None = None) -> Spending:
    """The reckoning of a run.

    Args:
        layout: the run directory.
        plan: of the run.
        recipe: of the run.
        accounts: what is known beside the events; None where only the run directory is asked.
    """
    accounts = accounts or Accounts()
    every = attempts(layout)
    found = [attempt for attempt in every if is_job(attempt.job, plan)]
    allocations = [one for one in accounts.allocations if is_job(one.job, plan)]
    strange = len(every) - len(found) + len(accounts.allocations) - len(allocations)
    pairs, rest = matched(allocations, found)
    known = {one.task_id.partition("_")[0] for one in allocations}
    uncounted = [a for a in rest if a.task_id.partition("_")[0] in known]
    spent = [_by_account(one, attempt, plan, recipe) for one, attempt in pairs]
    ready = Readiness(plan, found, accounts.submitted or {})
    spent += [_by_events(attempt, plan, recipe, ready) for attempt in rest]
    notes = [*_notes(allocations, uncounted, found, plan, recipe)]
    if strange:
        notes.append(
            f"{strange} attempt(s) do not count, as they name a job that no plan has: their records are damaged"
        )
    ordered = sorted(spent, key=lambda one: one.began)
    return Spending(tuple(ordered), bool(allocations), tuple(notes))


def matched(
    allocations: Iterable[Allocation], found: Iterable[Attempt]
) -> tuple[list[tuple[Allocation, Attempt | None]], list[Attempt]]:
    """Each allocation with the attempt that ran in it, if any wrote events, and the attempts that are left."""
    left = sorted(found, key=lambda attempt: attempt.started)
    pairs: list[tuple[Allocation, Attempt | None]] = []
    for one in sorted(allocations, key=lambda one: one.began):
        mine = [a for a in left if a.task_id == one.task_id and _within(one, a)]
        attempt = min(mine, key=lambda a: abs(a.started - one.began), default=None)
        pairs.append((one, attempt))
        if attempt is not None:
            left.remove(attempt)
    return pairs, left


def _within(one: Allocation, attempt: Attempt) -> bool:
    return one.began - CLOCKS_APART_S <= attempt.started <= one.began + one.seconds + CLOCKS_APART_S


def _by_account(one: Allocation, attempt: Attempt | None, plan: Plan, recipe: Experiment) -> SpentAttempt:
    """The reckoning of an allocation. Of one in which no attempt began, only its end is known."""
    asked = resources_of(one.job, plan, recipe)
    if attempt is not None:
        by_use = attempt.time_by_use(one.began, one.seconds)
    else:
        by_use = {Use.LOST if one.failed else Use.UNACCOUNTED: one.seconds}
    return SpentAttempt(
        job=one.job,
        role=role_of(one.job, plan),
        began=one.began,
        seconds=one.seconds,
        by_use=by_use,
        gpus=asked.gpus if one.gpus is None else one.gpus,
        cpus=asked.cpus if one.cpus is None else one.cpus,
        queued_s=one.queued_s,
    )


def _by_events(attempt: Attempt, plan: Plan, recipe: Experiment, ready: Readiness) -> SpentAttempt:
    asked, seconds = resources_of(attempt.job, plan, recipe), attempt.ended - attempt.began
    by_use = attempt.time_by_use(attempt.began, seconds)
    role = role_of(attempt.job, plan)
    queued_s = ready.queued_s(attempt)
    return SpentAttempt(attempt.job, role, attempt.began, seconds, by_use, asked.gpus, asked.cpus, queued_s)


@dataclass(frozen=True)
class Readiness:
    """Tells from the events when an attempt could have started: after its submission, after the attempt before it, and
    after the jobs that it waits for.
    """

    plan: Plan
    attempts: Sequence[Attempt]
    submitted: Mapping[str, float]
    """By the id of a job."""

    def queued_s(self, attempt: Attempt) -> float | None:
        """Seconds from then until it started; None for a job of no queue."""
        submitted = self.submitted.get(attempt.task_id.partition("_")[0])
        if submitted is None:
            return None
        awaited = {wait.job for job in self.plan.jobs if job.name == attempt.job for wait in job.after}
        before = [
            other.ended
            for other in self.attempts
            if other.began < attempt.began and (other.task_id == attempt.task_id or other.job in awaited)
        ]
        return max(0.0, attempt.began - max([submitted, *before]))


def _notes(
    allocations: Sequence[Allocation],
    uncounted: Sequence[Attempt],
    found: Sequence[Attempt],
    plan: Plan,
    recipe: Experiment,
) -> Iterable[str]:
    if any(one.gpus is None and resources_of(one.job, plan, recipe).gpus for one in allocations):
        yield "accounting does not name GPUs here (AccountingStorageTRES lacks gres/gpu): those of the plan are counted"
    if uncounted:
        yield f"{len(uncounted)} attempt(s) are not in accounting, and count by their own events"
    if silent := sum(attempt.uses[0][1] is Use.UNACCOUNTED for attempt in found):
        yield f"{silent} attempt(s) ran with an earlier version of mrt-hpc, which recorded no uses: {Use.UNACCOUNTED}"


def role_of(job: str, plan: Plan) -> Role:
    """The role of a job; one that the plan no longer has, as its recipe was changed, has its role in its name.

    Raises:
        ValueError: no plan has a job of this name.
    """
    planned = {one.name: one.role for one in plan.jobs}
    return planned[job] if job in planned else Role(re.sub(r"-\d+$", "", job.rpartition(".")[2]))


def is_job(job: str, plan: Plan) -> bool:
    """Whether this is the name of a job, of this plan or an earlier one."""
    try:
        role_of(job, plan)
    except ValueError:
        return False
    return True


def resources_of(job: str, plan: Plan, recipe: Experiment) -> JobResources:
    """The resources of a task of a job. A job that the plan no longer has, as its recipe was changed, gets those of its
    role.
    """
    named = {planned.name: planned.resources for planned in plan.jobs}
    if job in named:
        return named[job]
    return role_resources(recipe, role_of(job, plan))


def prices(spent: Spending, evaluations: Iterable[EvaluationSummary]) -> list[PointPrice]:
    """What each point of accuracy has cost, by benchmark: from the first evaluated weights version to the last one on
    the same problems, for the hours of training.
    """
    rows = [row for row in spent.rows if row.role in TRAINING_ROLES]
    gpu_hours, core_hours = sum(row.gpu_hours for row in rows), sum(row.core_hours for row in rows)
    found: dict[str, list[EvaluationSummary]] = defaultdict(list)
    for one in sorted(evaluations, key=lambda one: one.version):
        if one.per_problem.keys() == (found[one.benchmark] or [one])[0].per_problem.keys():
            found[one.benchmark].append(one)
    told = []
    for benchmark, versions in found.items():
        first, last = versions[0], versions[-1]
        gain = 100 * (last.accuracy - first.accuracy)
        if first.version != last.version:
            each = (gpu_hours / gain, core_hours / gain) if gain > 0 else (None, None)
            told.append(PointPrice(benchmark, first.version, last.version, gain, *each))
    return told
