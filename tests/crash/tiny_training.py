"""A trainer whose model is one short tensor: the roles' own code with an update that takes no time."""

from __future__ import annotations

import hashlib
import itertools
import logging
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import torch
from run_of import task_of
from safetensors.torch import load_file, save
from samples import rollout_with, sampled

from mrt_hpc.roles import trainer
from mrt_hpc.roles.tracking import Tracker
from mrt_hpc.roles.trainer import Trainer, was_trained
from mrt_hpc.run.archive import commit_sampled, sampled_positions
from mrt_hpc.run.events import EventLog
from mrt_hpc.run.heartbeats import Observer
from mrt_hpc.run.leases import group_leases
from mrt_hpc.run.problems import draw_problems, read_problems
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task
from mrt_hpc.run.weights import publish
from mrt_hpc.run.weights_delta import chain_to, put_together
from mrt_hpc.training import checkpoint, export, rendezvous
from mrt_hpc.training.rendezvous import Ranks
from mrt_hpc.training.trained_state import KEYS
from mrt_hpc.training.update_statistics import UpdateStats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.events import EventKind
    from mrt_hpc.run.layout import RunLayout
    from mrt_hpc.training.settings import TrainerSettings, TrainingSequence

NAME, SIZE = "weight", 256  # numbers, of which an update changes four
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
        """New weights follow from the old ones and from what is learnt, to the bit."""
        learnt = hashlib.sha256(self.tensors["weight"].numpy().tobytes() + self.noise)
        for sequence in sequences:
            learnt.update(np.asarray(sequence.token_ids).tobytes() + sequence.advantages.tobytes())
        values = torch.from_numpy(np.frombuffer(learnt.digest()[:16], np.uint32).astype(np.float32))
        for number, key in enumerate(KEYS):
            self.tensors[key] = torch.cat([values * (number + 1), self.tensors[key][len(values) :]])
        self.step += 1
        return replace(NOTHING, step=self.step, sequences=len(sequences))


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
        patch.setattr(export, "write", write_model)
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


def write_model(engine: TinyEngine, tensors: dict[str, torch.Tensor], dtype: str, directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(save(tensors))
    (directory / "config.json").write_text("{}")


def first_version(layout: RunLayout) -> None:
    publish(layout, 0, partial(write_model, None, {NAME: torch.zeros(SIZE)}, "float32"))


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
    def of(layout: RunLayout) -> TinyRun:
        """The next attempts at its tasks."""
        name = ATTEMPTS.new()
        sampler, learner = (_task(layout, f"segment-000.{role}") for role in ("inference", "trainer"))
        log = Silent(layout.events / f"{name}.jsonl")
        observer = Observer(20.0)
        return TinyRun(*(replace(task, attempt=name, events=log, observer=observer) for task in (sampler, learner)))

    def end(self, promise: Callable[[Any], None]) -> None:
        """Train to the end; the trainer's own code, and the sampler's."""
        task = self.trainer
        write_task(task.layout, task.job.name, 0, TaskRecord(TaskState.RUNNING, attempt=task.attempt))
        if was_trained(task):
            return
        learner = Trainer.resumed(task, Ranks(), Tracker())
        while (iteration := learner.iteration) < task.job.end_iteration:
            sample(self.sampler, iteration, promise)
            while learner.iteration == iteration:
                learner.go_on()
            promise(("iteration", iteration))


@lru_cache(maxsize=4)
def _task(layout: RunLayout, job: str) -> Task:
    return task_of(layout, job)


def is_of_one_trainer(layout: RunLayout) -> bool:
    """Whether the newest checkpoint holds the weights that were published with it."""
    newest = max(path for path in layout.checkpoints.iterdir() if layout.step_of(path) is not None)
    (file,) = newest.glob("*.safetensors")
    published = load_file(layout.weights_version(layout.step_of(newest) or 0) / "model.safetensors")[NAME]
    return torch.equal(load_file(file)[f"{NAME}|{KEYS[0]}"].to(published.dtype), published)


def model_of(layout: RunLayout, version: int) -> bytes:
    """The file of weights of a version, which is put together where it was published as a delta."""
    chain = chain_to(layout, version)
    if not chain.links:
        return (chain.start / "model.safetensors").read_bytes()
    with TemporaryDirectory() as folder:
        put_together(chain, Path(folder))
        return (Path(folder) / "model.safetensors").read_bytes()


def sample(task: Task, iteration: int, promise: Callable[[Any], None]) -> None:
    """Sample what is missing of an iteration: the tokens follow from the weights, the problem and the number."""
    layout, sampling = task.layout, task.recipe.sampling
    weights = hashlib.sha256(model_of(layout, iteration)).hexdigest()
    drawn = draw_problems(read_problems(layout.train_data), task.recipe.seed, iteration, 2)
    there, leases = sampled_positions(layout, iteration), group_leases(layout, iteration, task.holder, task.observer)
    for position, problem in enumerate(drawn):
        if position in there or not leases.claim(position):
            continue
        rollouts = []
        for number in range(sampling.rollouts_per_problem):
            tokens = [*hashlib.sha256(f"{weights} {problem.id} {number}".encode()).digest()[:6]]
            rollouts.append(
                rollout_with(
                    tokens, iteration=iteration, problem_id=problem.id, sample=number, weights_version=iteration,
                    reward=float(number), boundaries=[0, 6],
                )
            )  # fmt: skip
        if commit_sampled(layout, iteration, position, sampled(*rollouts)):
            promise(("group", iteration, position))
