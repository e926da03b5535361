"""Seconds of one update on CPU with branches: prefixes computed once, beside packed and padded. It needs no run.

    python tests/benchmarks/bench_shared_prefixes.py --output tests/benchmarks/results/shared-prefixes

The model has random weights. Each trace has 80 to 240 random tokens after a prompt of 16; four traces have one prompt.
Three sets of sequences: the traces alone (only prompts are shared); traces with four branches of 8 tokens at five even
boundaries (``train_branches``); and eight continuations of 60 tokens of one prefix (algorithm ``mrt``). Number format
fp32, ZeRO stage 0, one rank. The variants take turns; each round is one update of each.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from bench_update_packing import branched, measure, sequence, table, trainer
from transformers import Qwen3Config, Qwen3ForCausalLM

from mrt_hpc.recipe.choices import Batching
from mrt_hpc.training.accelerator import choose_kernels
from mrt_hpc.training.rendezvous import Ranks, join

if TYPE_CHECKING:
    from mrt_hpc.training.settings import TrainingSequence

VOCABULARY, PROMPT, GROUP = 256, 16, 4


def random_model(directory: Path, layers: int) -> Path:
    """Write a model of width 128."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(directory)
    return directory


def traces(count: int) -> list[TrainingSequence]:
    """Traces in groups of one prompt."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, VOCABULARY, PROMPT).tolist() for _ in range(count // GROUP)]
    lengths = rng.integers(80, 240, count).tolist()
    return [sequence(prompts[n // GROUP], rng.integers(0, VOCABULARY, k).tolist(), rng) for n, k in enumerate(lengths)]


def continuations(begun: list[TrainingSequence]) -> list[TrainingSequence]:
    """Eight continuations of the first half of each trace."""
    rng = np.random.default_rng(1)
    prefixes = [[*s.prompt_ids, *list(s.token_ids)[: len(s.token_ids) // 2]] for s in begun]
    return [sequence(p, rng.integers(0, VOCABULARY, 60).tolist(), rng) for p in prefixes for _ in range(8)]


def main() -> None:
    """Measure the three sets and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=int, default=32)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=4096)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    own = traces(arguments.traces)
    sets = {"Traces alone": own, "Traces and branches": branched(own), "Continuations": continuations(own[::GROUP])}
    choose_kernels(None)
    join(Ranks())
    with tempfile.TemporaryDirectory() as folder:
        model = random_model(Path(folder), arguments.layers)
        engines = {b.value: trainer(model, arguments.max_tokens, {"batching": b}) for b in Batching}
        lines = []
        for title, batch in sets.items():
            about = f"## {title}: {len(batch)} sequences, {sum(s.width for s in batch)} positions of their own"
            lines += [about, "", *table(measure(engines, batch, arguments.rounds)), ""]
    print("\n".join(lines))
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        words = f"# Shared prefixes on CPU: {arguments.rounds} rounds, {torch.get_num_threads()} threads"
        (arguments.output / "table.md").write_text("\n".join([words, "", *lines]))


if __name__ == "__main__":
    main()
