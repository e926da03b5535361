"""A trainer whose model is one short tensor: the roles' own code with an update that takes no time."""

from __future__ import annotations

import hashlib
import itertools
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from invariants import Audit, altered
from run_of import task_of
from safetensors.torch import load_file, save
from samples import draw_problems, rollout_with, sampled

from mrt_hpc.analysis.measures import IterationMetrics
from mrt_hpc.roles import trainer
from mrt_hpc.roles.sampling.verified_weights import verified_weights
from mrt_hpc.roles.task.context import Task
from mrt_hpc.roles.tracking import Tracker
from mrt_hpc.roles.trainer import Trainer, was_trained
from mrt_hpc.run.archive import commit_sampled, sampled_positions
from mrt_hpc.run.events import EventKind, EventLog
from mrt_hpc.run.groups import commit_group
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.leases import Observer, group_leases
from mrt_hpc.run.manifest import MANIFEST, DamagedError
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task
from mrt_hpc.run.weights import Weights, publish
from mrt_hpc.training import checkpoint, export, rendezvous
from mrt_hpc.training.rendezvous import Ranks
from mrt_hpc.training.settings import TrainerSettings, TrainingSequence
from mrt_hpc.training.trained_state import KEYS
from mrt_hpc.training.update_statistics import UpdateStats

NAME, SIZE, CHANGED = "weight", 256, 4  # numbers, and how many of them an update changes
CHANGES = (
    "sampling.problems_per_iteration=2", "sampling.rollouts_per_problem=2", "schedule.iterations=2",
    "schedule.iterations_per_job=2", "training.checkpoint_every=1", "training.keep_checkpoints=1",
    "training.keep_weights=2", "evaluation.benchmarks=[]", "data.problems=4",
)  # fmt: skip


class Attempts:
    """Gives every attempt of a simulation a name of its own."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Another simulation."""
        self._numbers = itertools.count()

    def new(self) -> str:
        return f"a{next(self._numbers)}"


ATTEMPTS = Attempts()


class Meanwhile:
    """What other tasks do while one waits: a process that is alone calls it in its pauses."""

    act: Callable[[], None] | None = None


MEANWHILE = Meanwhile()


@dataclass
class TinyEngine:
    """Stands where the trainer has its engine."""

    settings: TrainerSettings
    source_dir: Path
    ranks: Ranks = field(default_factory=Ranks)
    tensors: dict[str, torch.Tensor] = field(default_factory=lambda: {key: torch.zeros(SIZE) for key in KEYS})
    step: int = 0
    skipped_in_a_row: int = 0
    noise: bytes = b""
    """Makes the updates of each engine others, as those of another kind of GPU are."""

    def update(self, sequences: Sequence[TrainingSequence], on_skip: Callable[..., None]) -> UpdateStats:
        """New weights follow from the old ones, from what is learnt, and from draws, to the bit. Each update changes
        numbers of its own, of which the first is its loss: the weights say which updates they have had.
        """
        learnt = hashlib.sha256(self.tensors["weight"].numpy().tobytes() + self.noise)
        learnt.update(f"{random.random()} {np.random.rand()} {torch.rand(()).item()}".encode())
        for sequence in sequences:
            learnt.update(np.asarray(sequence.token_ids).tobytes() + sequence.advantages.tobytes())
        values = torch.from_numpy(np.frombuffer(learnt.digest()[:16], np.uint32).astype(np.float32))
        own = slice(self.step * CHANGED, (self.step + 1) * CHANGED)
        for number, key in enumerate(KEYS):
            self.tensors[key] = self.tensors[key].clone()
            self.tensors[key][own] = values * (number + 1)
        self.step += 1
        return replace(NOTHING, step=self.step, loss=float(values[0]), sequences=len(sequences))


NOTHING = UpdateStats(**{name: 0 for name in UpdateStats.__dataclass_fields__})


class TinyState:
    """Stands where a checkpoint has its view of the engine."""

    shapes: ClassVar = {NAME: (SIZE,)}

    def __init__(self, engine: TinyEngine) -> None:
        self._engine = engine
        self.optimizer_steps = engine.step

    def gather(self, name: str, key: str, rank: int) -> torch.Tensor:
        return self._engine.tensors[key]

    def holds(self, name: str) -> bool:
        return True

    def put(self, name: str, key: str, value: torch.Tensor) -> None:
        self._engine.tensors[key] = value.clone()

    def synchronise(self) -> None:
        """Nothing is elsewhere."""


@contextmanager
def tiny_engines(*, noisy: bool = False) -> Iterator[None]:
    """During the block trainers of this process have tiny engines; noisy ones do not compute the same twice."""

    def build(settings: TrainerSettings, directory: Path, *_: object) -> TinyEngine:
        return TinyEngine(settings, directory, noise=ATTEMPTS.new().encode() if noisy else b"")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "build", build)
        patch.setattr(trainer.Trainer, "_compare", lambda self: setattr(self, "_compared", True))
        patch.setattr(checkpoint, "TrainedState", TinyState)
        patch.setattr(export, "gather", lambda engine, dtype: {NAME: engine.tensors["weight"].to(dtype)})
        patch.setattr(export.GatheredWeights, "write", lambda self, to: write_model(self.tensors, to))
        joins = not torch.distributed.is_initialized()  # another test of this process may have joined
        if joins:
            rendezvous.join(Ranks())
        logging.disable(logging.CRITICAL)  # the warnings of thousands of runs
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
            if joins:
                rendezvous.leave()


def write_model(tensors: dict[str, torch.Tensor], directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(save(tensors))
    (directory / "config.json").write_text("{}")


def first_version(layout: RunLayout) -> None:
    publish(layout, 0, partial(write_model, {NAME: torch.zeros(SIZE, dtype=torch.bfloat16)}))


class Silent(EventLog):
    """Events are written for people, and nothing of a run depends on them."""

    def emit(self, kind: EventKind, **fields: Any) -> None:
        """Nothing."""


@dataclass(frozen=True)
class TinyRun:
    """A run of two iterations: its tasks one after the other, as often as it takes."""

    sampler: Task
    trainer: Task

    @staticmethod
    def of(layout: RunLayout, segment: int = 0) -> TinyRun:
        """The next attempts at the tasks of a segment."""
        name = ATTEMPTS.new()
        sampler, learner = (_task(layout, f"segment-{segment:03d}.{role}") for role in ("inference", "trainer"))
        log = Silent(layout.events / f"{name}.jsonl")
        observer = Observer(20.0)
        return TinyRun(*(replace(task, attempt=name, events=log, observer=observer) for task in (sampler, learner)))

    def end(self, promise: Callable[[Any], None]) -> None:
        """Train to the end, and evaluate each version: the trainer's own code, and the sampler's."""
        task = self.trainer
        write_task(task.layout, task.job.name, 0, TaskRecord(TaskState.RUNNING, attempt=task.attempt))
        if not was_trained(task):
            learner = Trainer.resume_from_checkpoint(task, Ranks(), Tracker())
            while (iteration := learner.iteration) < task.job.end_iteration:
                MEANWHILE.act = partial(self._sample, iteration, promise)
                self._sample(iteration, promise)
                while learner.iteration == iteration:
                    learner.go_on()
                promise(("iteration", iteration))
        evaluate(self.sampler, task.job.end_iteration)

    def _sample(self, iteration: int, promise: Callable[[Any], None]) -> None:
        """Sample and evaluate; weights that are damaged are left to the trainer, which publishes them again."""
        with suppress(DamagedError):
            evaluate(self.sampler, iteration)
            sample(self.sampler, iteration, promise)


@lru_cache(maxsize=4)
def _task(layout: RunLayout, job: str) -> Task:
    return task_of(layout, job)


def check_one_trainer(found: Audit, layout: RunLayout) -> None:
    """The newest checkpoint, the weights of its number and the metrics are the work of one trainer."""
    newest = max(path for path in layout.checkpoints.iterdir() if layout.step_of(path) is not None)
    (file,) = newest.glob("*.safetensors")
    saved, iterations = load_file(file)[f"{NAME}|{KEYS[0]}"], layout.step_of(newest) or 0
    published = load_file(layout.weights_version(iterations) / "model.safetensors")[NAME]
    found.check(torch.equal(saved.to(published.dtype), published), "checkpoint and weights are of two trainers")
    losses = [IterationMetrics.read(layout.metrics(iteration)).loss for iteration in range(iterations)]
    wanted = saved[: CHANGED * iterations : CHANGED].tolist()
    found.check(losses == wanted, f"metrics are of another trainer than the checkpoint: {losses}, not {wanted}")


def evaluate(task: Task, version: int) -> None:
    """Evaluate a version, unless that was done: what is sampled follows from the weights."""
    weights, shard = verified_weights(task, version), shard_of(task.layout, version)
    if not shard.exists():
        trace = rollout_with(drawn(weights, "evaluation", 0), iteration=-1, weights_version=version)
        commit_group(shard, sampled(trace), weights=weights.digest)


def shard_of(layout: RunLayout, version: int) -> Path:
    return layout.evaluation_shard(version, "tiny", 0)


def drawn(weights: Weights, problem: str, number: int) -> list[int]:
    """Six tokens that follow from the weights, of the content that was verified."""
    try:
        model = (weights.directory / "model.safetensors").read_bytes()
        wrong = altered(weights.directory) if (weights.directory / MANIFEST).exists() else None
    except (FileNotFoundError, ValueError) as error:  # also a manifest that is none
        wrong = str(error)
    if wrong is not None:
        raise DamagedError(f"damaged while it was loaded: {wrong}", where=weights.directory)
    return [*hashlib.sha256(model + f"{problem} {number}".encode()).digest()[:6]]


def sample(task: Task, iteration: int, promise: Callable[[Any], None]) -> None:
    """Sample what is missing of an iteration."""
    layout = task.layout
    problems = draw_problems(read_problems(layout.train_data), task.recipe.seed, iteration, 2)
    leases = group_leases(layout, iteration, task.holder, task.observer)
    for position in {*range(len(problems))} - sampled_positions(layout, iteration):
        if leases.claim(position):
            weights, problem = verified_weights(task, iteration), problems[position].id
            rollouts = [
                rollout_with(
                    drawn(weights, problem, number), iteration=iteration, problem_id=problem, sample=number,
                    weights_version=iteration, reward=float(number), boundaries=[0, 6],
                )
                for number in range(task.recipe.sampling.rollouts_per_problem)
            ]  # fmt: skip
            if commit_sampled(layout, iteration, position, sampled(*rollouts)):
                promise(("group", iteration, position))
