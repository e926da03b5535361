"""One rank of the memory measurements: what a process takes at the peak of an update, beside what is predicted. With a
GPU that is the memory of its tensors there.

Arguments: rank, world size, address file, folder of results, and the case as JSON. A first engine of a tiny model
loads all libraries, so that what the peak is compared with holds them. The peak is that of the second update, when the
optimiser has its states.
"""

import gc
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from training_support import end_at_once
from transformers import Qwen2Config, Qwen2ForCausalLM

from mrt_hpc.plan.memory import ModelShape, TrainerSetting, shape_in, trainer_memory
from mrt_hpc.recipe.choices import Batching, Precision
from mrt_hpc.recipe.sections import Training
from mrt_hpc.training.accelerator import choose_kernels
from mrt_hpc.training.engine import TrainerEngine, build
from mrt_hpc.training.rendezvous import Ranks, join
from mrt_hpc.training.settings import TrainerSettings, TrainingSequence
from mrt_hpc.training.update_statistics import Stopwatch

PROMPT = 8
TINY = ModelShape(32, 64, 2, 4, 2, 8, 64, tied=False)
ON_GPU = torch.cuda.is_available()
STATUS, PEAK_RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Measured:
    """Bytes of a process, without its libraries."""

    peak: int
    predicted: float
    parameters: int
    step_s: float  # the seconds of the optimiser's step
    device: int  # bytes of a GPU that are in use after the updates, by all processes; 0 without one


class PeakClock(Stopwatch):
    """Forgets earlier peaks at the beginning of each phase, and keeps the highest of all phases."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if ON_GPU:
            torch.cuda.reset_peak_memory_stats()
        else:
            PEAK_RESET.write_text("5")
        with super().phase(name):
            yield
        self.peak = max(self.peak, torch.cuda.max_memory_allocated() if ON_GPU else resident("VmHWM"))


def resident(field: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def write_model(directory: Path, shape: ModelShape, seed: int = 0) -> None:
    """Write a Qwen2 model of a shape with random weights, unless it is there. They are so large that what is computed
    with other weights has other log-probabilities.
    """
    if (directory / "config.json").is_file():
        return
    config = Qwen2Config(
        hidden_size=shape.hidden, intermediate_size=shape.intermediate, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied, max_position_embeddings=32768, initializer_range=shape.hidden**-0.5,
    )  # fmt: skip
    torch.manual_seed(seed)
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)


def sequences(lengths: list[int], vocabulary: int) -> list[TrainingSequence]:
    """Sequences of so many positions, all but the first few of which are trained."""
    rng = np.random.default_rng(0)
    return [
        TrainingSequence(
            rng.integers(2, vocabulary, PROMPT).tolist(), rng.integers(2, vocabulary, count).tolist(),
            rng.normal(size=count).astype(np.float32), np.full(count, -5, np.float32), np.ones(count, bool),
        )
        for count in (length - PROMPT + 1 for length in lengths)
    ]  # fmt: skip


def training_of(fields: dict[str, Any], precision: str) -> Training:
    batching = Batching(fields.get("batching", "padded"))
    return Training(learning_rate=1e-6, **{**fields, "precision": Precision(precision), "batching": batching})


def warm_up(directory: Path, settings: TrainerSettings, ranks: Ranks) -> None:
    engine = build(settings, directory, ranks)
    for _ in range(2):
        engine.update(sequences([20] * 4, TINY.vocabulary))
    engine.engine.destroy()
    del engine
    gc.collect()


def second_update(engine: TrainerEngine, batch: list[TrainingSequence]) -> PeakClock:
    clock = PeakClock()
    for _ in range(2):
        clock = PeakClock()
        engine.accumulate(engine.prepare(batch), clock=clock)
        with clock.phase("step"):
            engine.apply()
    return clock


def measure(case: dict[str, Any], models: Path, ranks: Ranks) -> Measured:
    """Measure one case: fields of the recipe's section, name of the model and lengths of the sequences."""
    training = training_of(case["training"], case["precision"])
    settings, directory = TrainerSettings(training, 100, 1.0), models / case["model"]
    warm_up(models / "tiny", settings, ranks)
    before = torch.cuda.memory_allocated() if ON_GPU else resident("VmRSS")
    engine = build(settings, directory, ranks)
    shape = shape_in(directory)
    clock = second_update(engine, sequences(case["lengths"], shape.vocabulary))
    setting = TrainerSetting(training, shape, ranks.world_size, max(case["lengths"]), on_gpu=ON_GPU)
    free, total = torch.cuda.mem_get_info() if ON_GPU else (0, 0)
    peak, predicted = clock.peak - before, trainer_memory(setting).whole
    return Measured(peak, predicted, shape.parameters, clock.seconds["step"], total - free)


def main() -> None:
    rank, world_size = int(sys.argv[1]), int(sys.argv[2])
    address, folder, case = Path(sys.argv[3]), Path(sys.argv[4]), json.loads(sys.argv[5])
    torch.set_num_threads(len(os.sched_getaffinity(0)) if ON_GPU else 1)  # an offloaded optimiser has all cores
    choose_kernels(None)
    ranks = Ranks(rank, world_size, rank)
    join(ranks, address, timeout_s=240)
    (folder / f"memory-{rank}.json").write_text(json.dumps(asdict(measure(case, Path(case["models"]), ranks))))
    end_at_once()


if __name__ == "__main__":
    main()
