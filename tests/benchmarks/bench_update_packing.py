"""Seconds of one update on CPU by the choices of ``training``: lengths of a finished run, long-tailed ones, branches.

    python tests/benchmarks/bench_update_packing.py runs/quickstart --output tests/benchmarks/results/update-packing

It takes model and rollouts of the run's last iteration, with random advantages. The long-tailed lengths are as many,
log-normal with the same longest as 95th percentile, where they are cut, and 0.375 of it as median: 6K to 16K, as in the
paper. Number format fp32, ZeRO stage 0, one rank. The variants take turns; each round is one update of each.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

from mrt_hpc.recipe.choices import Batching, Precision
from mrt_hpc.recipe.sections import Training
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.training.accelerator import choose_kernels
from mrt_hpc.training.engine import TrainerEngine, build
from mrt_hpc.training.rendezvous import Ranks, join
from mrt_hpc.training.settings import TrainerSettings, TrainingSequence

VARIANTS: dict[str, dict[str, object]] = {
    "padded, chunked (the default)": {},
    "padded, fused": {"projection": "fused"},
    "packed, chunked": {"batching": Batching.PACKED},
    "packed, fused": {"batching": Batching.PACKED, "projection": "fused"},
    "packed, fused, no entropy": {"batching": Batching.PACKED, "projection": "fused", "entropy": False},
    "shared, fused": {"batching": Batching.SHARED, "projection": "fused"},
}
MEDIAN_SHARE = 0.375


def recorded(groups: Path) -> list[TrainingSequence]:
    """The rollouts of an iteration."""
    rng = np.random.default_rng(0)
    rows = [row for path in sorted(groups.glob("*/rollouts.parquet")) for row in pq.read_table(path).to_pylist()]
    return [sequence(row["prompt_ids"], row["token_ids"], rng) for row in rows]


def long_tailed(like: list[TrainingSequence]) -> list[TrainingSequence]:
    """As many sequences with long-tailed lengths, of the same tokens."""
    rng = np.random.default_rng(1)
    longest = max(len(s.token_ids) for s in like)
    sigma = -np.log(MEDIAN_SHARE) / 1.645
    drawn = np.exp(np.log(MEDIAN_SHARE * longest) + sigma * rng.normal(size=len(like)))
    tokens = [t for s in like for t in s.token_ids]
    counts = np.clip(drawn.astype(int), 1, longest).tolist()
    return [
        sequence(s.prompt_ids, rng.choice(tokens, count).tolist(), rng) for s, count in zip(like, counts, strict=True)
    ]


def sequence(prompt: list[int], tokens: list[int], rng: np.random.Generator) -> TrainingSequence:
    """A sequence whose tokens are all trained."""
    n = len(tokens)
    return TrainingSequence(
        prompt, tokens, rng.normal(size=n).astype(np.float32), np.full(n, -1, np.float32), np.ones(n, bool)
    )


def branched(traces: list[TrainingSequence], boundaries: int = 5, branches: int = 4) -> list[TrainingSequence]:
    """The traces, and branches of 8 tokens at even boundaries of each, as ``train_branches`` learns them."""
    rng = np.random.default_rng(2)
    found = list(traces)
    for s in traces:
        for boundary in range(boundaries):
            kept = len(s.token_ids) * boundary // boundaries
            context = [*s.prompt_ids, *list(s.token_ids)[:kept]]
            found += [sequence(context, rng.choice(s.token_ids, 8).tolist(), rng) for _ in range(branches)]
    return found


def trainer(model: Path, max_tokens: int, choices: dict[str, object]) -> TrainerEngine:
    """An engine as the quickstart has it, in 32 bits."""
    fields = {"learning_rate": 1e-6, "precision": Precision.FP32, "zero_stage": 0, "gradient_checkpointing": False}
    training = Training(**{**fields, "max_tokens_per_micro_batch": max_tokens, **choices})  # type: ignore[arg-type]
    return build(TrainerSettings(training, 10_000, 1.0), model, Ranks())


def measure(
    engines: dict[str, TrainerEngine], batch: list[TrainingSequence], rounds: int
) -> dict[str, list[tuple[float, float, float, int, int]]]:
    """Wall seconds, CPU seconds, padding share and micro-steps of each round; the first round is left out."""
    found: dict[str, list[tuple[float, float, float, int, int]]] = {name: [] for name in engines}
    for number in range(rounds + 1):
        for name in list(engines)[:: 1 if number % 2 else -1]:
            wall, cpu = time.perf_counter(), time.process_time()
            stats = engines[name].update(batch)
            spent = (time.perf_counter() - wall, time.process_time() - cpu)
            if number:
                found[name].append((*spent, stats.padding_share, stats.micro_steps, stats.positions))
    return found


def table(found: dict[str, list[tuple[float, float, float, int, int]]]) -> list[str]:
    """Rows of Markdown; ratios are to the first variant, round by round."""
    first = next(iter(found.values()))
    lines = [
        "| variant | s, best | median | CPU s, best | median | CPU, of default | padding | micro-steps | positions |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, rounds in found.items():
        walls, cpus = [r[0] for r in rounds], [r[1] for r in rounds]
        ratio = statistics.median(r[1] / base[1] for r, base in zip(rounds, first, strict=True))
        numbers = [min(walls), statistics.median(walls), min(cpus), statistics.median(cpus), ratio, rounds[0][2]]
        lines.append(f"| {name} | {' | '.join(f'{n:.2f}' for n in numbers)} | {rounds[0][3]} | {rounds[0][4]} |")
    return lines


def main() -> None:
    """Measure both sets of lengths and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--max-tokens", type=int, default=4096)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    layout = RunLayout(arguments.run)
    model = sorted((layout.root / "weights").glob("v*"))[-1]
    own = recorded(sorted((layout.root / "iterations").glob("*/groups"))[-1])
    choose_kernels(None)
    join(Ranks())
    engines = {name: trainer(model, arguments.max_tokens, choices) for name, choices in VARIANTS.items()}
    lines = []
    sets = {
        "Lengths of the run": own,
        "Long-tailed lengths": long_tailed(own),
        "An eighth of the run with its branches": branched(own[: len(own) // 8]),
    }
    for title, batch in sets.items():
        widths = np.array([s.width for s in batch])
        about = f"{len(batch)} sequences, {widths.min()} to {widths.max()} positions, median {int(np.median(widths))}"
        lines += [f"## {title}: {about}", "", *table(measure(engines, batch, arguments.rounds)), ""]
    print("\n".join(lines))
    if arguments.output:
        words = f"{arguments.rounds} rounds, {torch.get_num_threads()} threads"
        (arguments.output / "table.md").write_text("\n".join([f"# Updates, padded and packed: {words}", "", *lines]))


if __name__ == "__main__":
    main()
