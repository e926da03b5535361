"""Peak memory of real updates on CPU, beside what ``mrt-hpc plan`` predicts.

    python benchmarks/bench_memory.py --output benchmarks/results/memory

Each case is an update of a Qwen2 model with random weights, in new processes. The peak is the resident memory of rank 0
less that of a process with all libraries. ``MALLOC_MMAP_THRESHOLD_`` makes glibc give freed blocks back, so that the
peak is what is in use; the last column is the peak with glibc's default. Cases that are in ``measured.json`` are not
measured again, and the table is made from it.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests" / "integration"), str(HERE.parent)]

from benchmarking import options, written  # noqa: E402
from benchmarking import table as markdown  # noqa: E402
from memory_worker import TINY, training_of, write_model  # noqa: E402
from training_support import run_ranks  # noqa: E402

from mrt_hpc.plan.memory import ModelShape, TrainerSetting, trainer_memory  # noqa: E402

GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": "262144"}
SHAPES = {
    "tiny": TINY,
    "even": ModelShape(512, 1536, 8, 8, 2, 64, 16384, tied=False),
    "vocabulary": ModelShape(256, 768, 4, 4, 2, 64, 65536, tied=True),
    "deep": ModelShape(384, 1024, 24, 6, 6, 64, 4096, tied=False),
    "wide": ModelShape(1024, 4096, 6, 8, 2, 128, 8192, tied=False),
}


@dataclass(frozen=True)
class Case:
    model: str
    stage: int
    ranks: int
    tokens: int  # of the one sequence of each rank
    precision: str = "bf16"
    choices: dict[str, object] = field(default_factory=dict)

    @property
    def training(self) -> dict[str, object]:
        return {**self.choices, "zero_stage": self.stage, "max_tokens_per_micro_batch": self.tokens}

    @property
    def cells(self) -> tuple[str, ...]:
        choices = ", ".join(f"{name}: {str(value).lower()}" for name, value in self.choices.items())
        return (self.model, self.precision, *map(str, (self.stage, self.ranks, self.tokens)), choices)

    @property
    def words(self) -> str:
        return f"| {' | '.join(self.cells)} |"


CASES = [
    *(Case("even", stage, ranks, 64) for stage in (1, 2, 3) for ranks in (1, 2)),
    *(Case("even", stage, ranks, 64, "fp32") for stage in (0, 1, 2, 3) for ranks in (1, 2)),
    Case("even", 1, 1, 2048),
    Case("wide", 1, 1, 4096),
    Case("wide", 2, 2, 2048),
    Case("wide", 1, 1, 2048, choices={"gradient_checkpointing": False}),
    Case("wide", 0, 1, 2048, "fp32", {"gradient_checkpointing": False}),
    Case("wide", 0, 1, 2048, "bf16_autocast"),
    Case("wide", 2, 2, 1024, choices={"offload_optimizer": True}),
    Case("wide", 2, 1, 2048, choices={"batching": "packed"}),
    Case("deep", 1, 1, 4096),
    Case("deep", 3, 2, 1024),
    Case("vocabulary", 1, 1, 1024),
    Case("vocabulary", 0, 1, 1024, "fp32"),
    Case("vocabulary", 1, 1, 2048, choices={"projection": "fused"}),
    Case("vocabulary", 2, 2, 2048, choices={"projection": "fused", "entropy": False}),
]


def outcome(case: Case, models: Path, environment: dict[str, str]) -> dict[str, Any]:
    """What the first rank of a case finds, in processes of its own: the fields of ``memory_worker.Measured``."""
    told = {"models": str(models), "model": case.model, "precision": case.precision, "training": case.training}
    told["lengths"] = [case.tokens] * case.ranks
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, environment):
        run_ranks("memory_worker.py", [folder, json.dumps(told)], case.ranks, Path(folder))
        found: dict[str, Any] = json.loads((Path(folder) / "memory-0.json").read_text())
        return found


def measured(case: Case, models: Path, kept: dict[str, list[int]]) -> list[int]:
    """The bytes of a case, with freed blocks given back and by glibc's default; as before, where it was measured."""
    if case.words not in kept:
        kept[case.words] = [int(outcome(case, models, given)["peak"]) for given in (GIVEN_BACK, {})]
        print(case.words, kept[case.words], flush=True)
    return kept[case.words]


HEAD = ("model", "precision", "ZeRO", "ranks", "tokens", "choices", "predicted", "measured", "ratio", "glibc's default")


def table(kept: dict[str, list[int]]) -> str:
    """All cases, and how far off the predictions are."""
    rows, off, held = [], [], []
    for case in CASES:
        training = training_of(case.training, case.precision)
        setting = TrainerSetting(training, SHAPES[case.model], case.ranks, case.tokens, on_gpu=False)
        predicted, (peak, by_default) = trainer_memory(setting).whole, kept[case.words]
        off.append(abs(predicted / peak - 1))
        held.append(by_default / peak)
        mib = [f"{n / 2**20:,.0f}" for n in (predicted, peak, by_default)]
        rows.append((*case.cells, *mib[:2], f"{predicted / peak:.2f}", mib[2]))
    within = sum(o <= 0.15 for o in off)
    lines = [
        "# Peak memory of an update: predicted and measured, MiB", "",
        *markdown(HEAD, rows, words=2), "",
        f"Off by {statistics.median(off):.1%} in the median and {max(off):.1%} at most; {within} of {len(off)} within "
        f"15 %. By default glibc holds up to {max(held):.2f} times as much.",
    ]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    """What is measured is kept at once."""
    output = options(__doc__, output=Path).output
    file = None if output is None else output / "measured.json"
    kept: dict[str, list[int]] = json.loads(file.read_text()) if file is not None and file.is_file() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name, shape in SHAPES.items():
            write_model(Path(folder) / name, shape)
        for case in CASES:
            measured(case, Path(folder), kept)
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(kept, indent=1) + "\n")
    written(table(kept), output)


if __name__ == "__main__":
    main()
