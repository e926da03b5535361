"""Reads successive snapshots of a run; what does not change is read once."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Generic, Self, TypeVar

from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics
from mrt_hpc.attempt.run_progress import Progress, progress
from mrt_hpc.backends.queued_jobs import QueueLook, look_at_queues
from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import Job, Plan, Role
from mrt_hpc.recipe.lock import look_at_lock
from mrt_hpc.run.layout import RunLayout, collection_of
from mrt_hpc.run.manifest import read_manifest
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.task_state import TaskRecord, TaskState
from mrt_hpc.run.typed_file import UnreadableError
from mrt_hpc.run.weights import published_versions
from mrt_hpc.view import snapshot
from mrt_hpc.view.explain import Cause, Explanation, stuck_tasks
from mrt_hpc.view.run_history import RunHistory, ShardCommitted
from mrt_hpc.view.run_look import NO_QUEUES, RunLook
from mrt_hpc.view.snapshot import Clock, expected_end, upcoming_events

# -- the queues, which are asked from time to time while the files of the run are shown


ASK_EVERY_S = 30.0
"""Between questions: one controller serves the whole cluster."""
WITHIN_S = 5.0
"""For a queue's answer: the first view waits for it, and so does the last."""


@dataclass
class QueueLooks(AbstractContextManager["QueueLooks"]):
    """The queues' latest answer. The context manager ends the asking thread."""

    layout: RunLayout
    within_s: float = WITHIN_S
    clock: Callable[[], float] = time.monotonic
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(max_workers=1), init=False)
    _asked: Future[QueueLook] | None = field(default=None, init=False)
    _latest: QueueLook | None = field(default=None, init=False)
    _next: float = field(default=0.0, init=False)

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def renew(self) -> None:
        """Make the next ``latest`` ask and wait: an older answer may differ from the files."""
        self._latest = self._asked = None

    def latest(self) -> QueueLook:
        """The newest answer. Only the first call waits; later ones ask again when due."""
        if self._asked is None and (self._latest is None or self.clock() >= self._next):
            self._asked = self._thread.submit(look_at_queues, self.layout, self.within_s)
        if self._asked is not None and (self._latest is None or self._asked.done()):
            self._latest, self._asked = self._asked.result(), None
            self._next = self.clock() + ASK_EVERY_S
        assert self._latest is not None, "the first call has waited for an answer"
        return self._latest


# -- how fast a run is, by its metrics, its groups and its events


LATEST = 5
"""Iterations that measure present throughput."""
TIMED = 10
"""Iterations whose median predicts the next one's duration."""


Held = TypeVar("Held")


@dataclass
class ChangingFiles(Generic[Held]):
    """Number files of a run, read again only when changed."""

    read: Callable[[Path], Held]
    _known: dict[Path, tuple[int, Held | str]] = field(default_factory=dict, init=False)
    """Change time, and content or fault."""

    def all_of(self, paths: Iterable[Path]) -> list[Held]:
        return [one for one in map(self._of, paths) if one is not None and not isinstance(one, str)]

    @property
    def faults(self) -> list[str]:
        """A line for each unreadable file."""
        return [known for _, known in self._known.values() if isinstance(known, str)]

    def _of(self, path: Path) -> Held | str | None:
        try:
            changed = path.stat().st_mtime_ns
            if (known := self._known.get(path)) is None or known[0] != changed:
                self._known[path] = (changed, self.read(path))
        except UnreadableError as error:
            self._known[path] = (changed, error.line)
        except OSError:
            return None
        return self._known[path][1]


def measurement_of(metrics: IterationMetrics) -> snapshot.Measured:
    gains = metrics.progress_by_episode
    return snapshot.Measured(
        iteration=metrics.iteration,
        reward=metrics.reward_mean,
        progress=sum(gains) / len(gains) if gains else None,
        answered=metrics.answered_share,
        seconds=metrics.wall_seconds,
    )


def iteration_seconds(iterations: Sequence[IterationMetrics]) -> float | None:
    """Median of the latest; None before the first has ended."""
    known = [iteration.wall_seconds for iteration in iterations[-TIMED:] if iteration.wall_seconds is not None]
    return median(known) if known else None


@dataclass
class Costs:
    """Costs of groups and shards by their manifests, each read once."""

    _known: dict[Path, dict[str, Any]] = field(default_factory=dict, init=False)

    def of(self, directory: Path) -> dict[str, Any]:
        """Empty where the manifest cannot be read now."""
        if directory not in self._known:
            try:
                self._known[directory] = dict(read_manifest(directory).about.get("statistics", {}))
            except (OSError, UserError):
                return {}
        return self._known[directory]


def tokens_of(cost: dict[str, Any]) -> int:
    """The sampled tokens of a group or shard, branches included."""
    return int(cost.get("rollout_tokens", 0)) + int(cost.get("branch_tokens", 0))


def throughput(
    layout: RunLayout, iterations: Sequence[IterationMetrics], groups: Iterable[Path], history: RunHistory, costs: Costs
) -> snapshot.TokenRates:
    latest = [iteration for iteration in iterations[-LATEST:] if iteration.generated_tokens]
    tokens = sum(iteration.generated_tokens or 0 for iteration in latest)
    sampling = _rate(tokens, sum(iteration.sampling_seconds or 0.0 for iteration in latest))
    return snapshot.TokenRates(
        sampling=sampling if sampling is not None else _group_rate([costs.of(group) for group in groups]),
        whole=_rate(tokens, sum(iteration.wall_seconds or 0.0 for iteration in latest)),
        training=_training_rate(iterations[-LATEST:]),
        evaluation=_shard_rate(layout, list(history.shards), costs),
    )


def _rate(tokens: float, seconds: float) -> float | None:
    return tokens / seconds if tokens and seconds else None


def _group_rate(costs: list[dict[str, Any]]) -> float | None:
    """One iteration's tokens over the time until its last group."""
    seconds = [float(cost.get("seconds", {}).get("generation", 0.0)) for cost in costs]
    return _rate(sum(map(tokens_of, costs)), max(seconds, default=0.0))


def _training_rate(iterations: Sequence[IterationMetrics]) -> float | None:
    """Positions computed by updates, padding included, over their seconds."""
    names = ("positions", "seconds_update")
    return _rate(*(sum(iteration.trainer.get(name, 0.0) for iteration in iterations) for name in names))


def _shard_rate(layout: RunLayout, shards: list[ShardCommitted], costs: Costs) -> float | None:
    """These shards' tokens from first begin to last end."""
    if not shards:
        return None
    places = [layout.evaluation_shard(shard.version, shard.benchmark, shard.shard) for shard in shards]
    tokens = sum(tokens_of(costs.of(place)) for place in places)
    return _rate(tokens, max(shard.ended for shard in shards) - min(shard.began for shard in shards))


# -- the snapshot

FAULTS_SHOWN = 20
_AT_REST = frozenset({TaskState.DONE, TaskState.WAITING})
"""Counted, not listed."""


@dataclass
class SnapshotReader:
    layout: RunLayout
    plan: Plan
    history: RunHistory
    metrics: ChangingFiles[IterationMetrics] = field(default_factory=lambda: ChangingFiles(IterationMetrics.read))
    summaries: ChangingFiles[snapshot.Evaluated] = field(default_factory=lambda: ChangingFiles(_read_evaluated))
    names: ChangingFiles[list[str]] = field(default_factory=lambda: ChangingFiles(_model_names))
    costs: Costs = field(default_factory=Costs)

    @classmethod
    def of(cls, layout: RunLayout, plan: Plan) -> Self:
        return cls(layout, plan, RunHistory.of(layout))

    def read(self, queues: QueueLook = NO_QUEUES) -> snapshot.Snapshot:
        look, now = RunLook.load_records(self.layout, self.plan, queues), time.time()
        self.history.update()
        done = progress(self.plan, self.layout, look.records)
        measured = self.metrics.all_of(map(self.layout.metrics, range(self.plan.iterations)))
        current = collection_of(done.iterations_done) if done.groups_collected is not None else done.iterations_done
        groups = [path for path in list_directory(self.layout.groups(current)) if path.name.isdecimal()]
        iterations = self._iterations(done, measured, len(groups))
        since, stuck = self.history.published.get(done.iterations_done), stuck_tasks(look)
        clock = Clock(now, done.iterations_done, iterations.seconds, since, held_up=bool(stuck))
        happenings = self.history.all_happenings(look.record_of)
        evaluations = self._evaluations(done.evaluations_done, done.evaluations)  # before the faults of its files
        return snapshot.Snapshot(
            run=str(self.layout.root),
            name=self.plan.name,
            kind=self.plan.kind,
            time=now,
            state=look.state,
            unreached=dict(queues.unreached),
            unreadable=tuple(self._unreadable(look, done)),
            warnings=done.warnings,
            process=look.process.pid if look.process is not None and look.runs_here else None,
            iterations=iterations,
            measured=tuple(map(measurement_of, measured)),
            evaluations=evaluations,
            jobs=tuple(_job(job, look) for job in self.plan.jobs),
            tasks=tuple(self._tasks(look, stuck)),
            throughput=throughput(self.layout, measured, groups, self.history, self.costs),
            fault_counts=dict(Counter(happening.kind for happening in happenings).most_common()),
            faults=tuple(
                snapshot.Fault(time=one.time, what=one.kind, task=one.task, detail=one.detail)
                for one in happenings[-FAULTS_SHOWN:]
            ),
            upcoming=tuple(upcoming_events(look, iterations, clock)),
            expected_end=expected_end(look, iterations, clock, list(self.history.shards)),
            report=str(self.layout.report) if done.report else None,
            report_is_old=done.report and done.stale,
        )

    def _iterations(self, done: Progress, measured: list[IterationMetrics], groups: int) -> snapshot.Iterations:
        samples = any(job.does(Role.INFERENCE) for job in self.plan.jobs) and done.iterations_done < done.iterations
        collects = done.groups_collected is not None
        is_archived = self.layout.group_archive(done.iterations_done).exists()
        whole = self.plan.groups or 0 if is_archived else groups  # of the current iteration
        return snapshot.Iterations(
            done=done.iterations_done,
            planned=done.iterations,
            weights_version=max(published_versions(self.layout), default=None),
            groups_done=done.groups_collected if collects else whole if samples else None,
            groups_planned=self.plan.groups if samples and not collects else None,
            seconds=iteration_seconds(measured),
        )

    def _evaluations(self, done: int, planned: int) -> snapshot.Evaluations:
        units = [unit for job in self.plan.jobs for unit in job.evaluations]
        benchmarks = list(dict.fromkeys(unit.benchmark for unit in units))
        places = sorted({(benchmarks.index(unit.benchmark), unit.version) for unit in units})
        results = self.summaries.all_of(self.layout.evaluation_summary(v, benchmarks[n]) for n, v in places)
        lock = () if self.plan.iterations else (self.layout.recipe_lock,)
        models = tuple(next(iter(self.names.all_of(lock)), []))
        return snapshot.Evaluations(done=done, planned=planned, results=tuple(results), models=models)

    def _unreadable(self, look: RunLook, done: Progress) -> Iterator[str]:
        """A line for each unreadable file."""
        yield from look.faults
        yield from done.unreadable
        yield from (line for line in self.metrics.faults if line not in done.unreadable)
        yield from self.summaries.faults
        yield from self.names.faults
        yield from self.history.stream.faults

    def _tasks(self, look: RunLook, stuck: Sequence[Explanation]) -> Iterator[snapshot.TaskView]:
        waiting = {
            (explanation.job, explanation.index): f"{explanation.sentence}\n  next:     {explanation.next}"
            for explanation in stuck
            if explanation.cause is not Cause.WAITS
        }
        for job, index, record in look.tasks():
            begins = record.state is TaskState.WAITING and (job.name, index) in look.running_tasks
            if record.state not in _AT_REST or begins:
                yield self._task(job, index, record, look, waiting.get((job.name, index), ""))

    def _task(self, job: Job, index: int, record: TaskRecord, look: RunLook, waits: str) -> snapshot.TaskView:
        news, queued = self.history.tasks.get((job.name, index)), look.queued_tasks.get((job.name, index))
        listed = look.listed_tasks.get((job.name, index))
        alive = (job.name, index) in look.running_tasks
        is_limited = alive and (job.name, index) not in look.tasks_between_attempts
        node = (queued.nodes if queued is not None else "") or (news.host if news is not None and alive else "")
        return snapshot.TaskView(
            job=job.name,
            index=index,
            role=job.role,
            state=record.state,
            alive=alive,
            queue_state="" if listed is None else listed.state,
            queue_reason="" if listed is None or listed.has_ended else listed.reason,
            attempt=record.attempt,
            since=record.time,
            node=node or None,
            weights_version=None if news is None else news.version,
            last_event=None if news is None else news.time,
            failures=record.failures,
            reason=record.message or ("" if queued is None else queued.reason),
            paused=waits,
            ends_at=queued.ends_at if queued is not None and is_limited else None,
        )


def _read_evaluated(path: Path) -> snapshot.Evaluated:
    return snapshot.Evaluated.model_validate(EvaluationSummary.read(path), from_attributes=True)


def _model_names(lock: Path) -> list[str]:
    try:
        return look_at_lock(lock).model_names
    except UserError as error:
        raise UnreadableError(error.what, where=lock) from error


def _job(job: Job, look: RunLook) -> snapshot.JobView:
    tasks = [look.listed_tasks[key] for index in range(job.tasks) if (key := (job.name, index)) in look.listed_tasks]
    counts = Counter((str(task.state), "" if task.has_ended else task.reason) for task in tasks)
    return snapshot.JobView(
        name=job.name,
        role=job.role,
        ids=tuple(look.queues.ids.get(job.name, ())),
        tasks=job.tasks,
        states=dict(Counter(record.state for record in look.records[job.name])),
        queue=tuple(snapshot.Queued(state=state, reason=why, tasks=count) for (state, why), count in counts.items()),
        after=tuple(wait.job for wait in job.after),
        time_limit_s=job.resources.time_limit_minutes * 60,
        gpus=job.resources.gpus,
    )
