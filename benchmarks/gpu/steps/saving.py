"""A checkpoint, a published version and a resumed trainer: bits compared, and seconds."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from mrt_hpc.run import weights
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import verify
from mrt_hpc.training import checkpoint, export
from mrt_hpc.training.engine import TrainerEngine
from mrt_hpc.training.settings import TrainingSequence
from mrt_hpc.training.trained_state import KEYS, TrainedState
from steps.engines import batch, digest, engine, model, timed
from steps.record import Record

STAGE = 2
DTYPE = "bfloat16"


def run(record: Record) -> None:
    record.needs_gpu_unless_tiny()
    directory = model(record)
    saved = Saved(directory, RunLayout(record.folder / "saving"), batch(record))
    saved.layout.root.mkdir()
    saved.layout.identity.write_text("first-day\n")  # nothing is written below a folder that is no run
    with engine(directory, zero_stage=STAGE) as trainer:
        trainer.update(saved.learnt)
        saved.digests = digests(trainer)
        record.part("checkpoint", saved.checkpoint, trainer)
        record.part("publish", saved.publish, trainer)
        record.part("update that goes on", saved.go_on, trainer)
    record.part("read and verify", saved.verify)
    record.part("resume", saved.resume)
    shutil.rmtree(saved.layout.root)


@dataclass
class Saved:
    """One trainer's state, as it was and as it is on the disk."""

    directory: Path
    layout: RunLayout
    learnt: list[TrainingSequence]
    digests: dict[str, int] | None = None  # of the state that was saved
    digests_later: dict[str, int] | None = None  # of the state an update later, in the trainer that went on

    @property
    def path(self) -> Path:
        return self.layout.checkpoint(1)

    def checkpoint(self, trainer: TrainerEngine) -> dict[str, Any]:
        _, save_s = timed(lambda: checkpoint.save(trainer, self.path, {"iteration": 1}))
        return {"save_s": save_s, "gib": size_gib(self.path)}

    def publish(self, trainer: TrainerEngine) -> dict[str, Any]:
        """Gather and write the weights; the files have the bits that the forward pass reads."""
        gathered, gather_s = timed(lambda: export.gather_weights(trainer, DTYPE))
        _, write_s = timed(lambda: weights.publish(self.layout, 1, gathered.write))
        version = self.layout.weights_version(1)
        stored = {name: t for file in version.glob("*.safetensors") for name, t in load_file(file).items()}
        held = dict(trainer.policy.model.named_parameters())
        same = held.keys() == stored.keys() and all(torch.equal(held[n].detach().cpu(), stored[n]) for n in held)
        return {"gather_s": gather_s, "write_s": write_s, "gib": size_gib(version), "same_bits": same}

    def go_on(self, trainer: TrainerEngine) -> dict[str, Any]:
        _, update_s = timed(lambda: trainer.update(self.learnt))
        self.digests_later = digests(trainer)
        return {"update_s": update_s, "changed": self.digests_later != self.digests}

    def verify(self) -> dict[str, Any]:
        bad = list[str]()
        found, good_s = timed(lambda: checkpoint.good(self.path.parent, lambda _, error: bad.append(str(error))))
        _, version_s = timed(lambda: verify(self.layout.weights_version(1)))
        return {"checkpoint_s": good_s, "version_s": version_s, "found": found == self.path, "bad": bad}

    def resume(self) -> dict[str, Any]:
        with engine(self.directory, zero_stage=STAGE) as trainer:
            cursor, load_s = timed(lambda: checkpoint.load(trainer, self.path))
            same = digests(trainer) == self.digests
            trainer.update(self.learnt)
            return {
                "load_s": load_s,
                "cursor": cursor,
                "same_bits": same,
                "same_bits_after_update": digests(trainer) == self.digests_later,
                "deterministic": torch.are_deterministic_algorithms_enabled(),
            }


def digests(trainer: TrainerEngine) -> dict[str, int]:
    """Of every tensor of the trainer's state, and of the weights that its forward pass reads."""
    trained = TrainedState(trainer)
    found = {}
    for name in trained.shapes:
        for key in KEYS:
            whole = trained.gather(name, key, 0)
            assert whole is not None  # there is one rank
            found[f"{name}|{key}"] = digest(whole)
    return found | {name: digest(p.detach().clone()) for name, p in trainer.policy.named_parameters()}


def size_gib(directory: Path) -> float:
    return sum(file.stat().st_size for file in directory.iterdir()) / 2**30
