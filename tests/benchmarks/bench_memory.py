"""Peak memory of real updates on CPU, beside what ``mrt-hpc plan`` predicts.

    python tests/benchmarks/bench_memory.py --output tests/benchmarks/results/memory

Each case is an update of a Qwen2 model with random weights, in new processes: shapes, ZeRO stages, one and two ranks,
number formats and lengths. The peak is the resident memory of rank 0 less that of a process with all libraries.
``MALLOC_MMAP_THRESHOLD_`` makes glibc give freed blocks back, so that the peak is what is in use; the last column is
the peak with glibc's default, by which a process keeps small blocks that it has freed. ``measured.json`` keeps what was
measured: cases that are in it are not measured again, and the table is made from it.
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

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "integration"), str(HERE.parents[1])]

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
    """One update."""

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
        """The first cells of its row."""
        choices = ", ".join(f"{name}: {str(value).lower()}" for name, value in self.choices.items())
        return (self.model, self.precision, *map(str, (self.stage, self.ranks, self.tokens)), choices)

    @property
    def words(self) -> str:
        """The case in words, by which it is kept."""
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


@dataclass(frozen=True)
class Row:
    """What was found of a case, bytes."""

    case: Case
    peak: int
    by_default: int

    @property
    def predicted(self) -> float:
        training = training_of(self.case.training, self.case.precision)
        shape = SHAPES[self.case.model]
        return trainer_memory(TrainerSetting(training, shape, self.case.ranks, self.case.tokens, on_gpu=False)).whole

    @property
    def ratio(self) -> float:
        return self.predicted / self.peak

    @property
    def cells(self) -> tuple[str, ...]:
        """Of its row."""
        predicted, peak, by_default = (f"{n / 2**20:,.0f}" for n in (self.predicted, self.peak, self.by_default))
        return (*self.case.cells, predicted, peak, f"{self.ratio:.2f}", by_default)


def outcome(case: Case, models: Path, environment: dict[str, str]) -> dict[str, Any]:
    """What the first rank of a case finds, in processes of its own: the fields of ``memory_worker.Measured``."""
    told = {"models": str(models), "model": case.model, "precision": case.precision, "training": case.training}
    told["lengths"] = [case.tokens] * case.ranks
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        with tempfile.TemporaryDirectory() as folder:
            run_ranks("memory_worker.py", [folder, json.dumps(told)], case.ranks, Path(folder))
            found: dict[str, Any] = json.loads((Path(folder) / "memory-0.json").read_text())
            return found
    finally:
        os.environ.clear()
        os.environ.update(before)


def measured(case: Case, models: Path, kept: dict[str, list[int]]) -> Row:
    """A case, with freed blocks given back and by glibc's default; as it was measured before, where it was."""
    if case.words not in kept:
        kept[case.words] = [int(outcome(case, models, given)["peak"]) for given in (GIVEN_BACK, {})]
    row = Row(case, *kept[case.words])
    print(*row.cells, sep=" | ", flush=True)
    return row


HEAD = ("model", "precision", "ZeRO", "ranks", "tokens", "choices", "predicted", "measured", "ratio", "glibc's default")


def table(rows: list[Row]) -> str:
    """The rows, and how far off they are."""
    off = [abs(row.ratio - 1) for row in rows]
    within, kept = sum(o <= 0.15 for o in off), max(row.by_default / row.peak for row in rows)
    lines = [
        "# Peak memory of an update: predicted and measured, MiB", "",
        *markdown(HEAD, [row.cells for row in rows], words=2), "",
        f"Off by {statistics.median(off):.1%} in the median and {max(off):.1%} at most; {within} of {len(off)} within "
        f"15 %. By default glibc holds up to {kept:.2f} times as much.",
    ]  # fmt: skip
    return "\n".join(lines)


def all_rows(file: Path | None) -> list[Row]:
    """All cases; what is measured is kept in the file at once."""
    kept: dict[str, list[int]] = json.loads(file.read_text()) if file is not None and file.is_file() else {}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder)
        for name, shape in SHAPES.items():
            write_model(models / name, shape)
        for case in CASES:
            rows.append(measured(case, models, kept))
            if file is not None:
                file.write_text(json.dumps(kept, indent=1) + "\n")
    return rows


def main() -> None:
    output = options(__doc__, output=Path).output
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    written(table(all_rows(None if output is None else output / "measured.json")), output)


if __name__ == "__main__":
    main()
