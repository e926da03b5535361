"""Seconds of one update on CPU by the choices of ``training``: packed rows, shared prefixes, other projections.

    python benchmarks/bench_update_packing.py --run runs/quickstart
    python benchmarks/bench_update_packing.py --rounds 3 --traces 24

With a run it takes model and rollouts of the run's last iteration, with random advantages. The long-tailed lengths are
as many, log-normal with the same longest as 95th percentile, where they are cut, and 0.375 of it as median, as in the
paper. Without a run the model has random weights, and the sets are traces of 80 to 240 random tokens, four to a prompt;
the traces with four branches of 8 tokens at five even boundaries (``train_branches``); and eight continuations of 60
tokens of one prefix (algorithm ``mrt``). Number format fp32, ZeRO stage 0, one rank; the variants take turns.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from benchmarking import options, random_qwen3, table, turns, written
from paper_sequences import trained, with_advantages

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
VOCABULARY, PROMPT, GROUP = 256, 16, 4
Turn = tuple[float, float, float, int, int]
"""Wall seconds, CPU seconds, padding share, micro-steps and positions of an update."""


def recorded(groups: Path) -> list[TrainingSequence]:
    rng = np.random.default_rng(0)
    rows = [row for path in sorted(groups.glob("*/rollouts.parquet")) for row in pq.read_table(path).to_pylist()]
    return [with_advantages(row["prompt_ids"], row["token_ids"], rng) for row in rows]


def long_tailed(like: list[TrainingSequence]) -> list[TrainingSequence]:
    """As many sequences with long-tailed lengths, of the same tokens."""
    rng = np.random.default_rng(1)
    longest = max(len(s.token_ids) for s in like)
    sigma = -np.log(MEDIAN_SHARE) / 1.645
    drawn = np.exp(np.log(MEDIAN_SHARE * longest) + sigma * rng.normal(size=len(like)))
    tokens = [t for s in like for t in s.token_ids]
    counts = np.clip(drawn.astype(int), 1, longest).tolist()
    return [
        with_advantages(s.prompt_ids, rng.choice(tokens, count).tolist(), rng)
        for s, count in zip(like, counts, strict=True)
    ]


def random_traces(count: int) -> list[TrainingSequence]:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, VOCABULARY, PROMPT).tolist() for _ in range(count // GROUP)]
    lengths = rng.integers(80, 240, count).tolist()
    return [trained(prompts[n // GROUP], k, VOCABULARY, rng) for n, k in enumerate(lengths)]


def continuations(begun: list[TrainingSequence]) -> list[TrainingSequence]:
    """Eight continuations of the first half of each trace."""
    rng = np.random.default_rng(1)
    prefixes = [[*s.prompt_ids, *list(s.token_ids)[: len(s.token_ids) // 2]] for s in begun]
    return [trained(p, 60, VOCABULARY, rng) for p in prefixes for _ in range(8)]


def branched(traces: list[TrainingSequence], boundaries: int = 5, branches: int = 4) -> list[TrainingSequence]:
    """The traces, and branches of 8 tokens at even boundaries of each, as ``train_branches`` learns them."""
    rng = np.random.default_rng(2)
    found = list(traces)
    for s in traces:
        for boundary in range(boundaries):
            kept = len(s.token_ids) * boundary // boundaries
            context = [*s.prompt_ids, *list(s.token_ids)[:kept]]
            found += [with_advantages(context, rng.choice(s.token_ids, 8).tolist(), rng) for _ in range(branches)]
    return found


def trainer(model: Path, max_tokens: int, choices: dict[str, object]) -> TrainerEngine:
    """An engine as the quickstart has it, in 32 bits."""
    fields = {"learning_rate": 1e-6, "precision": Precision.FP32, "zero_stage": 0, "gradient_checkpointing": False}
    training = Training(**{**fields, "max_tokens_per_micro_batch": max_tokens, **choices})  # type: ignore[arg-type]
    return build(TrainerSettings(training, 10_000, 1.0), model, Ranks())


def measure(engines: dict[str, TrainerEngine], batch: list[TrainingSequence], rounds: int) -> dict[str, list[Turn]]:
    """The updates of each variant; the first round is left out."""

    def update(engine: TrainerEngine) -> Turn:
        wall, cpu = time.perf_counter(), time.process_time()
        stats = engine.update(batch)
        spent = (time.perf_counter() - wall, time.process_time() - cpu)
        return (*spent, stats.padding_share, stats.micro_steps, stats.positions)

    found = turns({name: partial(update, engine) for name, engine in engines.items()}, rounds + 1)
    return {name: each[1:] for name, each in found.items()}


HEAD = (
    "variant", "s, best", "median", "CPU s, best", "median", "CPU, of default", "padding", "micro-steps", "positions",
)  # fmt: skip


def report(found: dict[str, list[Turn]]) -> list[str]:
    """Rows of Markdown; ratios are to the first variant, round by round."""
    first, rows = next(iter(found.values())), []
    for name, rounds in found.items():
        walls, cpus = [r[0] for r in rounds], [r[1] for r in rounds]
        ratio = statistics.median(r[1] / base[1] for r, base in zip(rounds, first, strict=True))
        numbers = [min(walls), statistics.median(walls), min(cpus), statistics.median(cpus), ratio, rounds[0][2]]
        rows.append((name, *(f"{n:.2f}" for n in numbers), *rounds[0][3:]))
    return table(HEAD, rows)


def main() -> None:
    given = options(__doc__, run=Path, traces=32, layers=4, rounds=5, max_tokens=4096, output=Path)
    choose_kernels(None)
    join(Ranks())
    with tempfile.TemporaryDirectory() as folder:
        if given.run is not None:
            layout, variants = RunLayout(given.run), VARIANTS
            model = sorted((layout.root / "weights").glob("v*"))[-1]
            own = recorded(sorted((layout.root / "iterations").glob("*/groups"))[-1])
            sets = {
                "Lengths of the run": own,
                "Long-tailed lengths": long_tailed(own),
                "An eighth of the run with its branches": branched(own[: len(own) // 8]),
            }
        else:
            model, variants = Path(folder), {b.value: {"batching": b} for b in Batching}
            random_qwen3(128, given.layers, 4, VOCABULARY, tie_word_embeddings=True).save_pretrained(model)
            own = random_traces(given.traces)
            sets = {
                "Traces alone": own,
                "Traces and branches": branched(own),
                "Continuations": continuations(own[::GROUP]),
            }
        engines = {name: trainer(model, given.max_tokens, choices) for name, choices in variants.items()}
        lines = [f"# Updates on CPU: {given.rounds} rounds, {torch.get_num_threads()} threads", ""]
        for title, batch in sets.items():
            widths = np.array([s.width for s in batch])
            about = f"{len(batch)} sequences, {widths.sum()} positions of their own, {widths.min()} to {widths.max()}"
            lines += [f"## {title}: {about}", "", *report(measure(engines, batch, given.rounds)), ""]
    written("\n".join(lines), given.output)


if __name__ == "__main__":
    main()
