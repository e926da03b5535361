"""The GPU-hours and core-hours of every attempt of a run, by role and by use. Where the queue keeps an account, its
seconds and resources count, and the run's events say their use; elsewhere the events say both. Every second has one
use.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import accumulate
from operator import add
from typing import Any

from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics
from mrt_hpc.plan.compile import role_resources
from mrt_hpc.plan.hours import UseHours, sum_hours
from mrt_hpc.plan.jobs import JobResources, Plan, Role
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.run.event_stream import EventStream
from mrt_hpc.run.events import PROGRESS, EventKind, Use
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.leases import last_beat
from mrt_hpc.run.task_state import TaskState, shown_task

Event = Mapping[str, Any]


# -- attempts ----------------------------------------------------------------------------------------------------------
# The attempts of a run's tasks, as their events describe them: begin, end, and what the time between was used for.


@dataclass(frozen=True)
class SampledTokens:
    """The tokens of groups and shards that stay, and of the groups that were thrown away before them."""

    every: int = 0
    branches: int = 0
    thrown: int = 0
    thrown_groups: int = 0

    def share(self, part: int) -> float:
        return part / self.every if self.every else 0.0

    def __add__(self, other: "SampledTokens") -> "SampledTokens":
        return SampledTokens(*map(add, astuple(self), astuple(other)))


Uses = tuple[tuple[float, Use], ...]
OF_NO_WORK = frozenset({Use.WAITING, Use.ENDING})
"""Uses that another attempt does not have to do again."""


@dataclass(frozen=True)
class SpentTime:
    """One attempt at an array task. Times are seconds since the epoch, by its node's clock."""

    job: str
    name: str
    """On Slurm the task's id, a dot, and how often it was started again."""
    started: float
    began: float
    """When its job began; ``started`` where the job script did not say."""
    ended: float
    """When its job ended; else the last sign of life."""
    uses: tuple[tuple[float, Use], ...]
    """The first one began with the attempt."""
    kept: float
    """The time of its last result that stays; ``began`` where it had none."""
    loses: bool
    """Whether its work after ``kept`` is lost."""
    sampled: SampledTokens

    @property
    def task_id(self) -> str:
        """The id is such as ``1234_5``."""
        return self.name.rpartition(".")[0]

    def time_by_use(self, began: float, seconds: float) -> dict[Use, float]:
        """The times start at ``began``, of this attempt or of its job by accounting, and add up to ``seconds``."""
        ended, spent = began + seconds, dict.fromkeys(Use, 0.0)
        changes = (min(time, ended) for time, _ in self.uses[1:])
        times = [*accumulate([began, *changes], max), ended]  # a clock may have been set back
        for (_, use), start, end in zip(self.uses, times[:-1], times[1:], strict=True):
            safe = min(max(self.kept, start), end) if self.loses and use not in OF_NO_WORK else end
            spent[use] += safe - start
            spent[Use.LOST] += end - safe
        spent[Use.THROWN] = self.sampled.share(self.sampled.thrown) * spent[Use.GENERATING]
        spent[Use.GENERATING] -= spent[Use.THROWN]
        spent[Use.BRANCHING] = self.sampled.share(self.sampled.branches) * spent[Use.GENERATING]
        spent[Use.GENERATING] -= spent[Use.BRANCHING]
        return {use: time for use, time in spent.items() if time}


def attempts(layout: RunLayout, stream: EventStream) -> list[SpentTime]:
    """Attempts by their begin, as the first rank of each wrote them."""
    processes = [[recorded.event for recorded in process] for process in stream.new_by_process()]
    signs = _signs_of_life(processes)
    begun = [events for events in processes if events[0]["kind"] == EventKind.TASK_STARTED]
    firsts = [events for events in begun if not events[0]["rank"]]
    companions = {events[0]["attempt"]: events for events in begun if _is_companion(events[0])}
    by_first_rank = (_attempt(layout, events, signs, companions.get(events[0]["attempt"], ())) for events in firsts)
    return sorted(by_first_rank, key=lambda attempt: attempt.began)


def _is_companion(first: Event) -> bool:
    return bool(first["rank"]) and first["rank"] == first.get("world_size")


def _signs_of_life(processes: Sequence[Sequence[Event]]) -> dict[str, float]:
    """The end of each attempt by its job script, or the last heartbeat that the next attempt found."""
    signs: dict[str, float] = {}
    for event in (event for events in processes for event in events):
        if event["kind"] == EventKind.ALLOCATION_ENDED:
            signs[event["attempt"]] = max(event["time"], signs.get(event["attempt"], 0.0))
        elif event["kind"] == EventKind.TASK_STARTED and event.get("earlier") is not None:
            earlier = event["earlier"]
            signs[earlier["attempt"]] = max(earlier["until"], signs.get(earlier["attempt"], 0.0))
    return signs


def _attempt(
    layout: RunLayout, events: Sequence[Event], signs: Mapping[str, float], companion: Sequence[Event]
) -> SpentTime:
    first, name = events[0], str(events[0]["attempt"])
    began = min(first["time"], first.get("began") or first["time"])
    endings = [event for event in events if event["kind"] == EventKind.TASK_ENDED]
    outcome = TaskState(endings[-1]["outcome"]) if endings else None
    uses = _uses(events, began)
    if companion:
        uses = _merge_turns(uses, _uses(companion, companion[0]["time"]))
    events = sorted([*events, *companion], key=lambda event: float(event["time"]))
    waited = max((use for use in uses if use[1] is not Use.ENDING), key=lambda use: use[0])[1] is Use.WAITING
    finished = outcome is TaskState.DONE or (outcome is TaskState.GAVE_BACK and waited)
    ended = max(events[-1]["time"], signs.get(name, 0.0), 0.0 if endings else _last_beat(layout, first))
    kept = max((event["time"] for event in events if event["kind"] in PROGRESS), default=began)
    return SpentTime(
        job=first["job"],
        name=name,
        started=first["time"],
        began=began,
        ended=ended,
        uses=uses,
        kept=kept,
        loses=not finished and not (outcome is None and _runs(layout, first)),
        sampled=_sampled_tokens(events),
    )


def _uses(events: Sequence[Event], began: float) -> Uses:
    changes = [(event["time"], Use(event["use"])) for event in events if event["kind"] == EventKind.USE]
    ends = [(event["time"], Use.ENDING) for event in events if event["kind"] == EventKind.TASK_ENDED]
    return ((began, Use.STARTING), *changes, *ends[-1:])


def _merge_turns(mine: Uses, companions: Uses) -> Uses:
    """Where trainer and companion take turns, the companion's use counts while the trainer waits."""
    times = sorted({time for time, _ in (*mine, *companions) if time >= mine[0][0]})
    both = [(time, _use_at(mine, time), _use_at(companions, time)) for time in times]
    return tuple((time, other if own is Use.WAITING and other is not Use.ENDING else own) for time, own, other in both)


def _use_at(uses: Uses, time: float) -> Use:
    """The use at a time; a process that has not begun waits."""
    return next((use for began, use in reversed(uses) if began <= time), Use.WAITING)


def _last_beat(layout: RunLayout, first: Event) -> float:
    """The last heartbeat; 0 where an attempt without an end has none."""
    beat = last_beat(layout.heart(first["job"], first["task"]))
    return beat[1] if beat is not None and beat[0] == first["attempt"] else 0.0


def _runs(layout: RunLayout, first: Event) -> bool:
    """Whether an attempt without an end is the one that its task is in now."""
    record = shown_task(layout, first["job"], first["task"])
    return record.state is TaskState.RUNNING and record.attempt == first["attempt"]


def _sampled_tokens(events: Sequence[Event]) -> SampledTokens:
    names = ("rollout_tokens", "branch_tokens", "thrown_tokens", "thrown_groups")
    rollouts, branches, *thrown = (sum(event.get(name, 0) for event in events) for name in names)
    return SampledTokens(rollouts + branches, branches, *thrown)


HOUR_S = 3600.0
CLOCKS_APART_S = 60.0
"""The most seconds between the clocks of a node and of the queue's accounting."""
TRAINING_ROLES = frozenset({Role.PREPARE, Role.INFERENCE, Role.TRAINER, Role.COLOCATED})
"""The roles whose GPU-hours buy accuracy; evaluations only measure it."""


@dataclass(frozen=True)
class Allocation:
    """The resources of one attempt, by the queue's accounting or by the run's events."""

    task_id: str
    """As ``1234`` or ``1234_5``."""
    began: float
    """Seconds since the epoch."""
    seconds: float
    """Until its end, or until now."""
    gpus: int | None
    """On all of its nodes; None where accounting does not name GPUs."""
    cpus: int | None
    queued_s: float | None
    """Waited in the queue after it could have started; None where that is not known."""
    failed: bool = False
    job: str = ""
    """Its name in the plan, which the queue does not know."""

    @property
    def job_id(self) -> str:
        return self.task_id.partition("_")[0]


@dataclass(frozen=True)
class Accounts:
    allocations: Sequence[Allocation] = ()
    """Of the queues that keep an account."""
    submitted: Mapping[str, float] | None = None
    """By job id."""


@dataclass(frozen=True)
class SpentAttempt:
    held: Allocation
    """With the resources of the plan where accounting names none."""
    role: Role
    by_use: Mapping[Use, float]
    """Seconds, which add up to those of ``held``."""


@dataclass(frozen=True)
class PointPrice:
    benchmark: str
    first: int
    last: int
    """The weights versions of the first and last evaluation."""
    gain: float
    """In percentage points."""
    gpu_hours: float | None
    """Of training for each point; None where nothing was gained."""
    core_hours: float | None
    """As ``gpu_hours``."""


@dataclass(frozen=True)
class Spending:
    attempts: tuple[SpentAttempt, ...]
    accounted: bool
    """Whether the queue's accounting knows the run."""
    notes: tuple[str, ...] = ()
    """Facts about the numbers, a sentence each."""
    sampled: SampledTokens = SampledTokens()
    """Of all attempts, by their events."""

    @property
    def rows(self) -> list[UseHours]:
        """Uses that took no time are left out."""
        return sum_hours(
            UseHours(spent.role, use, *(seconds * n / HOUR_S for n in (1, spent.held.gpus or 0, spent.held.cpus or 0)))
            for spent in self.attempts
            for use, seconds in spent.by_use.items()
        )

    @property
    def gpu_hours(self) -> float:
        return sum(attempt.held.seconds * (attempt.held.gpus or 0) for attempt in self.attempts) / HOUR_S

    @property
    def core_hours(self) -> float:
        return sum(attempt.held.seconds * (attempt.held.cpus or 0) for attempt in self.attempts) / HOUR_S

    @property
    def wall_seconds(self) -> float | None:
        """The time from the first begin of an attempt to the last end."""
        if not self.attempts:
            return None
        held = [attempt.held for attempt in self.attempts]
        return max(attempt.began + attempt.seconds for attempt in held) - min(attempt.began for attempt in held)

    @property
    def queue_hours(self) -> dict[Role, float]:
        """Hours in which nothing was allocated, where they are known."""
        hours: dict[Role, float] = {}
        for attempt in self.attempts:
            if attempt.held.queued_s is not None:
                hours[attempt.role] = hours.get(attempt.role, 0.0) + attempt.held.queued_s / HOUR_S
        return {role: hours[role] for role in Role if role in hours}


def spending(layout: RunLayout, plan: Plan, recipe: Experiment, accounts: Accounts | None = None) -> Spending:
    """``accounts`` is None where only the run directory is asked."""
    accounts = accounts or Accounts()
    stream = EventStream(layout.events)
    every = attempts(layout, stream)
    of_plan = [attempt for attempt in every if is_job(attempt.job, plan)]
    allocations = [allocation for allocation in accounts.allocations if is_job(allocation.job, plan)]
    strange = len(every) - len(of_plan) + len(accounts.allocations) - len(allocations)
    pairs, rest = match_attempts(allocations, of_plan)
    known = {allocation.job_id for allocation in allocations}
    uncounted = [a for a in rest if a.task_id.partition("_")[0] in known]
    spent = [_spent_attempt(allocation, attempt, plan, recipe) for allocation, attempt in pairs]
    submitted = accounts.submitted or {}
    for attempt in rest:
        queued, seconds = _queued_s(attempt, plan, of_plan, submitted), attempt.ended - attempt.began
        held = Allocation(attempt.task_id, attempt.began, seconds, None, None, queued, job=attempt.job)
        spent.append(_spent_attempt(held, attempt, plan, recipe))
    notes = list(stream.faults)
    if any(allocation.gpus is None and resources_of(allocation.job, plan, recipe).gpus for allocation in allocations):
        notes.append(
            "accounting does not name GPUs here (AccountingStorageTRES lacks gres/gpu): those of the plan are counted"
        )
    if uncounted:
        notes.append(f"{len(uncounted)} attempt(s) are not in accounting, and count by their own events")
    if strange:
        notes.append(
            f"{strange} attempt(s) do not count, as they name a job that no plan has: their records are damaged"
        )
    ordered = sorted(spent, key=lambda allocation: allocation.held.began)
    tokens = sum((attempt.sampled for attempt in of_plan), SampledTokens())
    return Spending(tuple(ordered), bool(allocations), tuple(notes), tokens)


def match_attempts(
    allocations: Iterable[Allocation], times: Iterable[SpentTime]
) -> tuple[list[tuple[Allocation, SpentTime | None]], list[SpentTime]]:
    """Each allocation with the attempt that ran in it, if any wrote events, and the attempts that are left."""
    left = sorted(times, key=lambda attempt: attempt.started)
    pairs: list[tuple[Allocation, SpentTime | None]] = []
    for allocation in sorted(allocations, key=lambda allocation: allocation.began):
        first, last = allocation.began - CLOCKS_APART_S, allocation.began + allocation.seconds + CLOCKS_APART_S
        mine = [a for a in left if a.task_id == allocation.task_id and first <= a.started <= last]
        attempt = min(mine, key=lambda a: abs(a.started - allocation.began), default=None)
        pairs.append((allocation, attempt))
        if attempt is not None:
            left.remove(attempt)
    return pairs, left


def _spent_attempt(held: Allocation, attempt: SpentTime | None, plan: Plan, recipe: Experiment) -> SpentAttempt:
    asked = resources_of(held.job, plan, recipe)
    if attempt is not None:
        by_use = attempt.time_by_use(held.began, held.seconds)
    else:
        by_use = {Use.LOST if held.failed else Use.UNACCOUNTED: held.seconds}
    gpus = asked.gpus if held.gpus is None else held.gpus
    cpus = asked.cpus if held.cpus is None else held.cpus
    return SpentAttempt(replace(held, gpus=gpus, cpus=cpus), role_of(held.job, plan), by_use)


def _queued_s(
    attempt: SpentTime, plan: Plan, attempts: Sequence[SpentTime], submitted: Mapping[str, float]
) -> float | None:
    """Seconds from the latest of an attempt's submission, the attempt before it and the jobs that it waits for, until
    its start; None for a job of no queue.
    """
    at = submitted.get(attempt.task_id.partition("_")[0])
    if at is None:
        return None
    awaited = {wait.job for job in plan.jobs if job.name == attempt.job for wait in job.after}
    before = [
        other.ended
        for other in attempts
        if other.began < attempt.began and (other.task_id == attempt.task_id or other.job in awaited)
    ]
    return max(0.0, attempt.began - max([at, *before]))


def role_of(job: str, plan: Plan) -> Role:
    """A job that the plan no longer has, as its recipe was changed, has its role in its name."""
    planned = {job.name: job.role for job in plan.jobs}
    return planned[job] if job in planned else Role(re.sub(r"-\d+$", "", job.rpartition(".")[2]))


def is_job(job: str, plan: Plan) -> bool:
    """A job of an earlier plan counts too."""
    try:
        role_of(job, plan)
    except ValueError:
        return False
    return True


def resources_of(job: str, plan: Plan, recipe: Experiment) -> JobResources:
    """A job that the plan no longer has gets those of its role."""
    named = {planned.name: planned.resources for planned in plan.jobs}
    if job in named:
        return named[job]
    return role_resources(recipe, role_of(job, plan))


def prices(spent: Spending, evaluations: Iterable[EvaluationSummary]) -> list[PointPrice]:
    """The prices are by benchmark, from the first evaluated weights version to the last one on the same problems, for
    the hours of training.
    """
    rows = [row for row in spent.rows if row.role in TRAINING_ROLES]
    gpu_hours, core_hours = sum(row.gpu_hours for row in rows), sum(row.core_hours for row in rows)
    by_benchmark: dict[str, list[EvaluationSummary]] = defaultdict(list)
    for evaluation in sorted(evaluations, key=lambda evaluation: evaluation.version):
        if evaluation.per_problem.keys() == (by_benchmark[evaluation.benchmark] or [evaluation])[0].per_problem.keys():
            by_benchmark[evaluation.benchmark].append(evaluation)
    prices = []
    for benchmark, versions in by_benchmark.items():
        first, last = versions[0], versions[-1]
        gain = 100 * (last.accuracy - first.accuracy)
        if first.version != last.version:
            each = (gpu_hours / gain, core_hours / gain) if gain > 0 else (None, None)
            prices.append(PointPrice(benchmark, first.version, last.version, gain, *each))
    return prices


@dataclass(frozen=True)
class BranchCost:
    """The tokens of a problem."""

    traces: float
    branches: float
    prefilled: float
    """Of both."""

    @classmethod
    def of(cls, iterations: Iterable[IterationMetrics]) -> "BranchCost | None":
        """None without branches."""
        counted = [m for m in iterations if m.branch_tokens and m.problems]
        if not counted:
            return None
        sums = [(m.generated_tokens or 0, m.branch_tokens or 0, m.prefilled_tokens or 0) for m in counted]
        problems = sum(m.problems or 0 for m in counted)
        generated, branches, prefilled = (sum(column) / problems for column in zip(*sums, strict=True))
        return cls(generated - branches, branches, prefilled)

    def __str__(self) -> str:
        share = self.branches / (self.traces + self.branches)
        return (
            f"{self.branches:,.0f} generated tokens a problem in branches of the prover beside {self.traces:,.0f} in "
            f"traces ({100 * share:.0f} %), and {self.prefilled:,.0f} prefilled tokens"
        )
