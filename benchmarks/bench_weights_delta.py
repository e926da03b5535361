"""Weights versions as deltas: how many weights an update changes, the bytes of a version, and the seconds to publish it
and to have it ready to load, each in full and as a delta.

    python benchmarks/bench_weights_delta.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf --text data/math_train.jsonl \
        --output benchmarks/results/weights-delta

A real language model (see ``small_language_model``) takes steps of AdamW on real text, with 32-bit weights and the
settings of the recipes; after each step its weights are published in bfloat16, in full and as a delta, in turn. The
first steps are not measured: the weights of the file lie on a grid. To have a whole model ready to load, its checksums
are compared; a delta is verified, applied to the version that the task has on its node, and the result is compared;
both with the published files in the page cache, and on the disk alone, as a task finds them whose node has not written
them. The first two deltas of a task go into new files, the later ones into those of a version that is not needed any
more.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from benchmarking import in_turn, options, spread, timed, written
from benchmarking import table as markdown
from small_language_model import convert
from transformers import AutoModelForCausalLM, AutoTokenizer

from mrt_hpc.roles.sampling.weights_on_node import LocalWeights
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import read_manifest, verify
from mrt_hpc.run.weights import publish
from mrt_hpc.run.weights_delta import TensorBytes, TensorKind, VersionKey, delta_between

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROWS, TOKENS = 2, 96
WARM_STEPS = 3
CACHED, ON_DISK = "ready to load from the page cache", "ready to load from the disk"


def batches(file: Path, tokenizer: Any) -> Iterator[torch.Tensor]:
    """[ROWS, TOKENS] tokens of the problems of a file, end to end."""
    text = "\n\n".join(json.loads(line)["problem"] for line in file.read_text().splitlines()[:2000])
    ids = torch.tensor(tokenizer(text).input_ids)
    for start in range(0, len(ids) - ROWS * TOKENS, ROWS * TOKENS):
        yield ids[start : start + ROWS * TOKENS].reshape(ROWS, TOKENS)


@dataclass
class Learner:
    model: Any
    batches: Iterator[torch.Tensor]
    optimiser: torch.optim.AdamW

    def step(self) -> None:
        ids = next(self.batches)
        self.model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad()

    def weights(self) -> dict[str, torch.Tensor]:
        """In bfloat16, as the trainer gathers them."""
        return {name: tensor.detach().to(torch.bfloat16, copy=True) for name, tensor in self.model.named_parameters()}


def as_bytes(weights: dict[str, torch.Tensor]) -> list[TensorBytes]:
    return [
        TensorBytes(TensorKind(name, "BF16", tuple(w.shape)), w.reshape(-1).view(torch.uint8).numpy())
        for name, w in sorted(weights.items())
    ]


@dataclass
class Measured:
    shares: list[float] = field(default_factory=list)  # of the weights that a step has changed
    bytes_full: list[int] = field(default_factory=list)
    bytes_delta: list[int] = field(default_factory=list)
    spent: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """By part its processor seconds and its wall seconds at each step."""

    def take_turns(self, parts: dict[str, Callable[[], object]], number: int) -> None:
        """Time the parts, in another order each time."""
        for part in in_turn(parts, number):
            self.spent.setdefault(part, []).append(timed(parts[part]))


def size(directory: Path) -> int:
    return sum(size for size, _ in read_manifest(directory).files.values())


@dataclass
class Versions:
    learner: Learner
    scratch: Path
    old: dict[str, torch.Tensor]
    found: Measured = field(default_factory=Measured)

    def __post_init__(self) -> None:
        """Version 1 is a whole model."""
        self.full, self.deltas = RunLayout(self.scratch / "full"), RunLayout(self.scratch / "deltas")
        self.tasks = {place: LocalWeights(self.deltas) for place in (CACHED, ON_DISK)}
        for layout in (self.full, self.deltas):
            layout.weights.mkdir(parents=True)
            self.publish_full(layout, 1, self.old)

    def add(self, version: int) -> None:
        """Take a step, publish its weights in full and as a delta, and make both ready to load, in turn."""
        self.learner.step()
        new = self.learner.weights()
        self.found.shares.append(share_changed(self.old, new))
        publishing = {
            "publish, in full": lambda: self.publish_full(self.full, version, new),
            "publish, delta": lambda: self.publish_delta(version, new),
        }
        self.found.take_turns(publishing, version)
        for place in (CACHED, ON_DISK):
            loading = {
                f"{place}, in full": lambda: verify(self.full.weights_version(version)),
                f"{place}, delta": partial(self.make_ready, version, self.tasks[place]),
            }
            if place == ON_DISK:
                leave_page_cache(self.full.weights_version(version))
                leave_page_cache(self.deltas.weights_version(version))
            self.found.take_turns(loading, version)
        self.found.bytes_full.append(size(self.full.weights_version(version)))
        self.found.bytes_delta.append(size(self.deltas.weights_version(version)))
        shutil.rmtree(self.full.weights_version(version))
        self.old = new

    def publish_full(self, layout: RunLayout, version: int, weights: dict[str, torch.Tensor]) -> None:
        publish(layout, version, lambda to: self.learner.model.save_pretrained(to, state_dict=weights))

    def publish_delta(self, version: int, new: dict[str, torch.Tensor]) -> None:
        base = VersionKey(version - 1, read_manifest(self.deltas.weights_version(version - 1)).digest)
        delta = delta_between(base, as_bytes(self.old), as_bytes(new))
        assert delta is not None
        publish(self.deltas, version, delta.write)

    def make_ready(self, version: int, task: LocalWeights) -> None:
        """As a task does whose server has loaded the version before."""
        task.note_served(task.of(version))


def leave_page_cache(directory: Path) -> None:
    """Have the next reader read the files of a directory from their disk."""
    for file in directory.iterdir():
        with file.open("rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def share_changed(old: dict[str, torch.Tensor], new: dict[str, torch.Tensor]) -> float:
    differing = sum(int((old[name].view(torch.int16) != new[name].view(torch.int16)).sum()) for name in new)
    return differing / sum(tensor.numel() for tensor in new.values())


def table(found: Measured, parameters: int, rate: float) -> str:
    full, delta = statistics.median(found.bytes_full), statistics.median(found.bytes_delta)
    rows = [["MB of a version", f"{full / 1e6:.1f}", f"{delta / 1e6:.2f}", f"{delta / full:.4f}"]]
    for part in ("publish", CACHED, ON_DISK):
        kinds = [zip(*found.spent[f"{part}, {kind}"], strict=True) for kind in ("in full", "delta")]
        processor, wall = zip(*kinds, strict=True)
        rows += [row(f"{part}, s", *wall), row("of it processor s", *processor)]
    changed = f"{statistics.median(found.shares):.2%} ({min(found.shares):.2%} to {max(found.shares):.2%})"
    return "\n".join([
        f"# Weights versions as deltas: {parameters / 1e6:.0f} million parameters, bfloat16, AdamW at {rate:g}, "
        f"{len(found.shares)} steps", "", "Medians over the steps; in brackets the least and the most.", "",
        *markdown(("", "in full", "delta", "delta / full"), rows), "", f"A step changes {changed} of the weights.",
    ])  # fmt: skip


def row(name: str, full: Sequence[float], delta: Sequence[float]) -> list[str]:
    """The medians of a part, in full and as a delta, and the ratio in the same step."""
    ratios = [b / a for a, b in zip(full, delta, strict=True)]
    return [name, f"{statistics.median(full):.2f}", f"{statistics.median(delta):.2f}", spread(ratios)]


def main() -> None:
    """Measure, and write the table; the text is JSON lines with a text under `problem`."""
    given = options(__doc__, required=["gguf", "text"], gguf=Path, text=Path, steps=9, learning_rate=1e-6, output=Path)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        (directory := scratch / "model").mkdir()
        convert(given.gguf, directory, steps=0)
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        optimiser = torch.optim.AdamW(model.parameters(), lr=given.learning_rate, weight_decay=0.01)
        learner = Learner(model, batches(given.text, AutoTokenizer.from_pretrained(directory)), optimiser)
        for _ in range(WARM_STEPS):
            learner.step()
        parameters = sum(parameter.numel() for parameter in model.parameters())
        versions = Versions(learner, scratch, learner.weights())
        with versions.tasks[CACHED].open(), versions.tasks[ON_DISK].open():
            for version in range(2, given.steps + 2):
                versions.add(version)
                written(table(versions.found, parameters, given.learning_rate), given.output)


if __name__ == "__main__":
    main()
