"""Tokens a second, model FLOPs utilisation and peak memory of an update's forward and backward pass, by choice.

It needs torch, transformers, DeepSpeed and this package; no model, data, network or Slurm. Weights are random. On GPU:

    python tests/benchmarks/bench_trainer_gpu.py                 # the shape of R1-Distill-Qwen-1.5B
    python tests/benchmarks/bench_trainer_gpu.py --shape 7b
    python tests/benchmarks/bench_trainer_gpu.py --shape tiny --device cpu --seconds 20

Lengths are log-normal with a median of 6K and a 95th percentile of 16K tokens, cut at 16K (``tiny``: a 64th). All
variants compute the same sequences in turn, a whole pass over them in each round; the first round is left out where
there is another. It ends by ``--seconds``, and a variant that does not fit the memory is told as such. The optimiser's
step, which is the same for all, is not part of it.

    MFU = FLOPs / (seconds * peak)
    FLOPs = sum over sequences of 6 * (positions * parameters of the layers + trained * vocabulary * hidden
                                       + layers * heads * head size * positions^2)

which counts causal attention as half, and neither padding nor activations that are computed again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config
from transformers.utils import is_flash_attn_2_available

from mrt_hpc.recipe.schema import Batching
from mrt_hpc.training.attention import PACKED_ATTENTION
from mrt_hpc.training.micro_batch import MicroBatch, arrange, lay_out
from mrt_hpc.training.policy import Kernels, Policy, logit_chunks
from mrt_hpc.training.sequence import TrainingSequence

if TYPE_CHECKING:
    from collections.abc import Callable

PEAK_TFLOPS = {"H100": 989.0, "H200": 989.0, "A100": 312.0, "L40S": 362.0, "B200": 2250.0}
"""Dense 16-bit matrix products a second, by the makers' data sheets."""

SHAPES = {
    "1.5b": (1536, 28, 12, 2, 8960, 151_936),
    "7b": (3584, 28, 28, 4, 18_944, 152_064),
    "tiny": (64, 2, 4, 2, 192, 2048),
}
"""Hidden size, layers, heads, key heads, intermediate size, vocabulary."""

MEDIAN, PERCENTILE_95, CUT = 6144, 16_384, 16_384
SMALLER = 64
"""By how much the lengths of the tiny shape are divided."""


@dataclass(frozen=True)
class Variant:
    """One way of computing the same gradient."""

    name: str
    kernels: Kernels | None
    """None for plain transformers with whole logits."""

    @property
    def batching(self) -> Batching:
        """How its sequences share a micro-batch."""
        return self.kernels.batching if self.kernels else Batching.PADDED


VARIANTS = [
    Variant("plain transformers, padded, whole logits", None),
    Variant("padded, chunked (the default)", Kernels()),
    Variant("padded, fused, no entropy", Kernels(fused=True, entropy=False)),
    Variant("packed, chunked", Kernels(Batching.PACKED)),
    Variant("packed, fused", Kernels(Batching.PACKED, fused=True)),
    Variant("shared, fused, no entropy", Kernels(Batching.SHARED, fused=True, entropy=False)),
    Variant("packed, fused, no entropy", Kernels(Batching.PACKED, fused=True, entropy=False)),
]


@dataclass
class Measured:
    """What the passes of one variant took."""

    name: str
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    peak_gib: float = 0.0
    problem: str = ""

    @property
    def kept(self) -> list[float]:
        """The seconds of all rounds but the first."""
        return self.seconds[1:] or self.seconds


class OutOfTime(Exception):
    """The time of the benchmark is over."""


def config_of(shape: str) -> Qwen2Config:
    """The configuration of a shape."""
    hidden, layers, heads, key_heads, intermediate, vocabulary = SHAPES[shape]
    return Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        intermediate_size=intermediate,
        max_position_embeddings=2 * CUT,
        tie_word_embeddings=False,
    )


def sampled(count: int, scale: int, vocabulary: int, seed: int) -> list[TrainingSequence]:
    """Sequences with lengths as in the paper, divided by ``scale``; a fortieth of the median is the prompt."""
    rng = np.random.default_rng(seed)
    sigma = np.log(PERCENTILE_95 / MEDIAN) / 1.645
    prompt = max(1, MEDIAN // scale // 40)
    drawn = np.minimum(np.exp(np.log(MEDIAN) + sigma * rng.normal(size=count)), CUT) / scale
    found = []
    for length in np.maximum(drawn.astype(int), prompt + 2).tolist():
        tokens = length - prompt
        found.append(
            TrainingSequence(
                rng.integers(0, vocabulary, prompt).tolist(),
                rng.integers(0, vocabulary, tokens).tolist(),
                rng.normal(size=tokens).astype(np.float32),
                np.zeros(tokens, np.float32),
                np.ones(tokens, bool),
            )
        )
    return found


def batches_of(sequences: list[TrainingSequence], batching: Batching, max_tokens: int) -> list[MicroBatch]:
    """The micro-batches of one pass."""
    steps = arrange(batching, sequences, 1, max_tokens).steps
    return [lay_out(batching, [sequences[i] for i in share]) for (share,) in steps]


def flops(config: Qwen2Config, sequences: list[TrainingSequence]) -> float:
    """The FLOPs of one pass by the formula above."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    layers = sum(p.numel() for p in model.base_model.layers.parameters())
    widths = np.array([s.width for s in sequences], dtype=float)
    trained = sum(s.trained_tokens for s in sequences)
    attention = config.num_hidden_layers * config.hidden_size * float((widths**2).sum())
    return 6 * (float(widths.sum()) * layers + trained * config.vocab_size * config.hidden_size + attention)


def ours(model: PreTrainedModel, kernels: Kernels) -> Callable[[MicroBatch], torch.Tensor]:
    """The loss of a micro-batch as the trainer computes it."""
    model.set_attn_implementation(PACKED_ATTENTION if kernels.in_one_row else "sdpa")
    policy = Policy(model, 1.0, False, kernels)

    def loss(batch: MicroBatch) -> torch.Tensor:
        chunks = logit_chunks(batch.trained_tokens, policy.vocabulary)
        logprobs, _ = policy(batch, chunks)
        return -(logprobs * batch.advantages).sum() / max(1, batch.trained_tokens)

    return loss


def plain(model: PreTrainedModel) -> Callable[[MicroBatch], torch.Tensor]:
    """The same by transformers alone: whole logits of padded rows."""
    flash = is_flash_attn_2_available() and model.dtype == torch.bfloat16
    model.set_attn_implementation("flash_attention_2" if flash else "sdpa")

    def loss(batch: MicroBatch) -> torch.Tensor:
        logits = model(input_ids=batch.input_ids, use_cache=False).logits.flatten(0, 1)
        labels = torch.full((len(logits),), -100, device=logits.device)
        labels[batch.positions] = batch.targets
        weights = torch.zeros(len(logits), device=logits.device)
        weights[batch.positions] = batch.advantages
        losses = F.cross_entropy(logits.float(), labels, reduction="none")
        return (losses * weights).sum() / max(1, batch.trained_tokens)

    return loss


def one_pass(model: PreTrainedModel, variant: Variant, batches: list[MicroBatch], deadline: float) -> None:
    """Compute the gradient of all micro-batches.

    Raises:
        OutOfTime: the deadline has passed between two of them.
    """
    vars(model.get_output_embeddings()).pop("forward", None)  # what an earlier variant fused
    loss = ours(model, variant.kernels) if variant.kernels else plain(model)
    for batch in batches:
        loss(batch).backward()
        wait(model.device)
        if time.perf_counter() > deadline:
            raise OutOfTime


def visit(
    model: PreTrainedModel, variant: Variant, batches: list[MicroBatch], deadline: float, measured: Measured
) -> None:
    """Measure one pass; a lack of memory is a result."""
    model.zero_grad(set_to_none=True)
    on_gpu = model.device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    started, cpu_started = time.perf_counter(), time.process_time()
    try:
        one_pass(model, variant, batches, deadline)
    except torch.OutOfMemoryError:
        measured.problem = "out of memory"
        return
    measured.seconds.append(time.perf_counter() - started)
    measured.cpu_seconds.append(time.process_time() - cpu_started)
    measured.peak_gib = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0


def wait(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(
    model: PreTrainedModel, sequences: list[TrainingSequence], max_tokens: int, deadline: float
) -> list[Measured]:
    """Let all variants take turns until the deadline is near."""
    passes = {}
    for batching in Batching:
        passes[batching] = [b.to(model.device) for b in batches_of(sequences, batching, max_tokens)]
    results = [Measured(v.name) for v in VARIANTS]
    try:
        while True:
            for variant, result in zip(VARIANTS, results, strict=True):
                if result.problem:
                    continue
                if time.perf_counter() + max(result.seconds, default=0.0) > deadline:
                    raise OutOfTime
                visit(model, variant, passes[variant.batching], deadline, result)
            if all(result.problem for result in results):
                return results
    except OutOfTime:
        return results


def table(results: list[Measured], tokens: int, work: float, peak: float | None) -> str:
    """The results as Markdown; ratios are to plain transformers."""
    base = results[0].kept
    lines = [
        "| variant | tokens/s, best | median | times plain | MFU, best | CPU s, median | peak GiB | passes |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for r in results:
        if not r.seconds:
            lines.append(f"| {r.name} | {r.problem or 'no time left'} | | | | | | 0 |")
            continue
        best, median = min(r.kept), statistics.median(r.kept)
        times = f"{statistics.median(base) / median:.2f}" if base else "-"
        mfu = f"{work / best / (peak * 1e12):.3f}" if peak else "-"
        cpu = statistics.median(r.cpu_seconds[1:] or r.cpu_seconds)
        memory = f"{r.peak_gib:.1f}" if r.peak_gib else "-"
        row = [r.name, f"{tokens / best:,.0f}", f"{tokens / median:,.0f}", times, mfu, f"{cpu:.2f}", memory]
        lines.append(f"| {' | '.join(row)} | {len(r.kept)} |")
    return "\n".join(lines)


def peak_of(device: torch.device, given: float | None) -> float | None:
    """The peak of this device in TFLOPs a second; None where it is not known."""
    if given is not None or device.type != "cuda":
        return given
    name = torch.cuda.get_device_name(device)
    return next((peak for key, peak in PEAK_TFLOPS.items() if key in name), None)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="1.5b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sequences", type=int, default=12)
    parser.add_argument("--max-tokens", type=int, help="of a micro-batch; default: 16384, for tiny 1024")
    parser.add_argument("--seconds", type=float, default=540.0, help="after which it ends")
    parser.add_argument("--peak-tflops", type=float, help="of the device; the default is known for some GPUs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="a JSON file for the figures of every pass")
    return parser.parse_args()


def main() -> None:
    """Print the table."""
    arguments = options()
    deadline = time.perf_counter() + arguments.seconds
    device, config, tiny = torch.device(arguments.device), config_of(arguments.shape), arguments.shape == "tiny"
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    sequences = sampled(arguments.sequences, SMALLER if tiny else 1, config.vocab_size, arguments.seed)
    torch.manual_seed(arguments.seed)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    results = measure(model, sequences, arguments.max_tokens or (1024 if tiny else 16_384), deadline)
    widths, work = [s.width for s in sequences], flops(config, sequences)
    peak = peak_of(device, arguments.peak_tflops)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{name}, {arguments.shape}, {dtype}: {len(widths)} sequences of {min(widths)} to {max(widths)} positions")
    print(f"MFU = {work:.3e} FLOPs a pass / (seconds * {peak or 'an unknown peak'} TFLOPs a second)\n")
    print(table(results, sum(widths), work, peak))
    if arguments.output:
        arguments.output.write_text(json.dumps([asdict(r) for r in results], indent=1))


if __name__ == "__main__":
    main()
