"""Tokens a second, model FLOPs utilisation and peak memory of whole updates on one GPU, by the choices of ``training``.

It needs torch, transformers, DeepSpeed, msgspec and the files of this package; no model, data, network or Slurm:

    PYTHONPATH=. python benchmarks/bench_trainer_gpu.py               # the shape of R1-Distill-Qwen-1.5B
    PYTHONPATH=. python benchmarks/bench_trainer_gpu.py --shape 7b --zero-stage 3    # 8 of the 28 layers of a 7B
    PYTHONPATH=. python benchmarks/bench_trainer_gpu.py --shape tiny --device cpu --seconds 60

An update is what the trainer does, at ZeRO stage 2 unless ``--zero-stage`` tells another: it arranges the sequences,
computes their gradient micro-batch by micro-batch, and takes DeepSpeed's step with torch's fused AdamW, all with the
trainer's configuration of DeepSpeed. Weights are random and in bfloat16, master weights, moments and gradients in 32
bits: 18 bytes a parameter at stages 2 and 3. With 28 layers a 7B needs 137 GB for them, so ``7b`` has 8 layers unless
``--layers`` tells another number, and nothing is offloaded. The formula counts the layers that there are; the
projection has a larger share in them than in the whole model.

Lengths are log-normal with a median of 6K and a 95th percentile of 16K tokens, cut at 16K (``tiny``: a 64th). Two sets:
``traces``, four to a prompt; and ``branches``, a quarter of the traces with two branches of 64 tokens at each of four
boundaries, as ``train_branches`` learns them. All variants compute the same sequences in turn, an update in each round;
the first round is left out where there is another. A variant that does not fit the memory is told as such. After
``--seconds`` it has ended: an update that would not end in time is skipped, and told.

    tokens/s = positions of all sequences, each on its own / seconds
    MFU = FLOPs / (seconds * peak)
    FLOPs = 6 * (positions * parameters of the layers + trained tokens * vocabulary * hidden size
                 + layers * heads * head size * sum over parts of (end^2 - start^2))

A part is a sequence, from start 0 to its end, so that causal attention counts as half of the square. Of ``shared`` it
is what a sequence does not share with one before it, and positions are those of all parts: shared prefixes count once
in the FLOPs, and as often as they are there in the tokens/s. Neither padding nor what is computed twice counts.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import statistics
import sys
import time
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from benchmarking import options
from benchmarking import table as markdown
from paper_sequences import CUT, SMALLER, batches_of, branched, config_of, flops, sampled
from torch import nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config
from transformers.utils import is_flash_attn_2_available

from mrt_hpc.recipe.choices import Batching, Precision
from mrt_hpc.recipe.sections import Training
from mrt_hpc.training.accelerator import choose_kernels, deepspeed
from mrt_hpc.training.attention import PACKED_ATTENTION
from mrt_hpc.training.engine import deepspeed_config
from mrt_hpc.training.policy import Kernels, Policy, logit_chunks
from mrt_hpc.training.rendezvous import Ranks, join, leave
from mrt_hpc.training.settings import TrainerSettings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from mrt_hpc.training.micro_batch import MicroBatch
    from mrt_hpc.training.settings import TrainingSequence

PEAK_TFLOPS = {"H100": 989.0, "H200": 989.0, "A100": 312.0, "L40S": 362.0, "B200": 2250.0}
"""Dense 16-bit matrix products a second, by the makers' data sheets."""

LEARNING_RATE = 1e-6
GRACE_S = 40.0  # so long after its time is over the process ends at once, whatever hangs


@dataclass(frozen=True)
class Variant:
    name: str
    kernels: Kernels | None  # none for plain transformers with whole logits

    @property
    def batching(self) -> Batching:
        return self.kernels.batching if self.kernels else Batching.PADDED


PLAIN_ATTENTION = "flash_attention_2" if is_flash_attn_2_available() else "sdpa"
"""Of plain transformers: the package flash-attn, or else torch's own, which chooses its flash kernel in bfloat16."""

VARIANTS = [
    Variant(f"plain transformers, {PLAIN_ATTENTION}, padded, whole logits", None),
    Variant("padded, chunked (the default)", Kernels()),
    Variant("padded, fused, no entropy", Kernels(fused=True, entropy=False)),
    Variant("packed, chunked", Kernels(Batching.PACKED)),
    Variant("packed, fused", Kernels(Batching.PACKED, fused=True)),
    Variant("packed, fused, no entropy", Kernels(Batching.PACKED, fused=True, entropy=False)),
    Variant("shared, fused, no entropy", Kernels(Batching.SHARED, fused=True, entropy=False)),
]


@dataclass
class Measured:
    name: str
    flops: float = 0.0  # of one update
    seconds: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)  # those of them in the optimiser's step
    peak_gib: float = 0.0
    problem: str = ""
    skipped: int = 0

    @property
    def kept(self) -> list[float]:
        return self.seconds[1:] or self.seconds


class OutOfTime(Exception):
    """The time of a set is over."""


class Scored(nn.Module):
    """One model, with the loss of a micro-batch as the chosen variant computes it."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.deadline = float("inf")
        self._logprobs: Callable[[MicroBatch], torch.Tensor] = _plain(model)

    def choose(self, variant: Variant, least_tokens: int = 0) -> None:
        """Compute as this variant does.

        Args:
            variant: to compute as.
            least_tokens: of a micro-batch, when the pieces for its projection are counted: at stage 3 the trainer has
                as many for each as for the largest.
        """
        vars(self.model.get_output_embeddings()).pop("forward", None)  # what an earlier variant fused
        self._logprobs = _ours(self.model, variant.kernels, least_tokens) if variant.kernels else _plain(self.model)

    def forward(self, batch: MicroBatch) -> torch.Tensor:
        """Return the sum over trained tokens of the advantage times the negative log-probability.

        Raises:
            OutOfTime: the deadline has passed.
        """
        wait(self.model.device)
        if time.perf_counter() > self.deadline:
            raise OutOfTime
        return -(self._logprobs(batch) * batch.advantages).sum()


def _ours(model: PreTrainedModel, kernels: Kernels, least_tokens: int) -> Callable[[MicroBatch], torch.Tensor]:
    """The log-probabilities [S] as the trainer computes them."""
    model.set_attn_implementation(PACKED_ATTENTION if kernels.is_one_row else "sdpa")
    policy = Policy(model, 1.0, False, kernels)
    return lambda batch: policy(batch, logit_chunks(max(least_tokens, batch.trained_tokens), policy.vocabulary))[0]


def _plain(model: PreTrainedModel) -> Callable[[MicroBatch], torch.Tensor]:
    model.set_attn_implementation(PLAIN_ATTENTION if model.dtype == torch.bfloat16 else "sdpa")

    def logprobs(batch: MicroBatch) -> torch.Tensor:
        logits = model(input_ids=batch.input_ids, use_cache=False).logits.flatten(0, 1)
        labels = torch.full((len(logits),), -100, device=logits.device)
        labels[batch.positions] = batch.targets
        return -F.cross_entropy(logits.float(), labels, reduction="none")[batch.positions]

    return logprobs


@dataclass
class Trainer:
    """DeepSpeed's engine with a model of random weights; one for all variants, made when it is needed."""

    config: Qwen2Config
    device: torch.device
    dtype: torch.dtype
    seed: int = 0
    stage: int = 2  # of ZeRO, in bfloat16
    _engine: Any = None

    @property
    def engine(self) -> Any:
        if self._engine is None:
            self._engine = engine_of(scored(self.config, self.device, self.dtype, self.seed), self.stage)
        return self._engine

    def drop(self) -> None:
        """Forget the engine: DeepSpeed cannot go on after an update that was broken off."""
        if self._engine is not None:
            destroy(self._engine)
        self._engine = None
        release(self.device)


def destroy(engine: Any) -> None:
    engine.destroy()
    for parameter in engine.module.parameters():
        vars(parameter).clear()  # DeepSpeed's methods, which hold the parameter and its gradient in a circle


def scored(config: Qwen2Config, device: torch.device, dtype: torch.dtype, seed: int) -> Scored:
    """A model of random weights whose activations are computed twice."""
    torch.manual_seed(seed)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return Scored(model.train())


def engine_of(module: Scored, stage: int) -> Any:
    """DeepSpeed's engine, as the trainer has it on one rank: of this ZeRO stage in bfloat16, of none in 32 bits."""
    narrow = module.model.dtype == torch.bfloat16
    training = Training(
        learning_rate=LEARNING_RATE,
        precision=Precision.BF16 if narrow else Precision.FP32,
        zero_stage=stage if narrow else 0,
    )
    parameters = sum(p.numel() for p in module.parameters())
    with redirect_stdout(sys.stderr):  # DeepSpeed prints what memory it takes
        engine, *_ = deepspeed.initialize(
            model=module,
            optimizer=lambda groups: torch.optim.AdamW(groups, lr=LEARNING_RATE, fused=True),
            model_parameters=list(module.parameters()),
            config=deepspeed_config(TrainerSettings(training, 1, 1.0), parameters),
            dist_init_required=False,
        )
    return engine


def accumulate(engine: Any, batches: Sequence[MicroBatch]) -> None:
    """Compute the gradient of the mean over all trained tokens."""
    trained = sum(b.trained_tokens for b in batches)
    for number, batch in enumerate(batches):
        engine.set_gradient_accumulation_boundary(number == len(batches) - 1)
        engine.backward(engine(batch) / trained, scale_wrt_gas=False)


def update(trainer: Trainer, variant: Variant, sequences: Sequence[TrainingSequence], max_tokens: int) -> float:
    """Take one update; return the seconds of the optimiser's step."""
    batches = [b.to(trainer.device) for b in batches_of(sequences, variant.batching, max_tokens)]
    accumulate(trainer.engine, batches)
    wait(trainer.device)
    started = time.perf_counter()
    trainer.engine.step()
    wait(trainer.device)
    return time.perf_counter() - started


@dataclass(frozen=True)
class Series:
    """The updates of all variants on one set of sequences."""

    name: str
    sequences: Sequence[TrainingSequence]
    max_tokens: int
    rounds: int

    def measure(self, trainer: Trainer, deadline: float) -> list[Measured]:
        """Let all variants take turns; skip updates that would not end by the deadline."""
        results = [Measured(v.name, self._flops(trainer.config, v)) for v in VARIANTS]
        for number in range(self.rounds):
            for variant, result in zip(VARIANTS, results, strict=True):
                if result.problem:
                    continue
                if time.perf_counter() + _expected(result, results) > deadline:
                    result.skipped += 1
                    continue
                self._visit(trainer, variant, deadline, result)
                told = f"{result.seconds[-1]:.2f} s" if result.seconds and not result.problem else result.problem
                print(f"{self.name}, round {number}, {variant.name}: {told}", file=sys.stderr, flush=True)
        return results

    def _visit(self, trainer: Trainer, variant: Variant, deadline: float, result: Measured) -> None:
        """Measure one update; a lack of memory or time is a result."""
        try:
            trainer.engine.module.deadline = deadline
            trainer.engine.module.choose(variant, self.max_tokens if trainer.stage == 3 else 0)
            release(trainer.device)
            started = time.perf_counter()
            result.step_seconds.append(update(trainer, variant, self.sequences, self.max_tokens))
            result.seconds.append(time.perf_counter() - started)
        except torch.OutOfMemoryError:
            result.problem = "out of memory"
        except OutOfTime:
            result.problem = "broken off at the end of its time"
        result.peak_gib = max(result.peak_gib, peak_gib(trainer.device))
        if result.problem:
            trainer.drop()

    def _flops(self, config: Qwen2Config, variant: Variant) -> float:
        return flops(config, self.sequences, batches_of(self.sequences, variant.batching, self.max_tokens))


def _expected(result: Measured, results: Sequence[Measured]) -> float:
    """The seconds of the next update: those of the longest one, of this variant or else of all."""
    longest = max((s for r in results for s in r.seconds), default=0.0)
    return 1.1 * max(result.seconds, default=longest)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def release(device: torch.device) -> None:
    """Give unused memory back, and forget its peak."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gib(device: torch.device) -> float:
    """The peak of the memory that tensors had; 0 on a CPU, where nothing counts it."""
    return torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0


def table(results: Sequence[Measured], positions: int, peak: float | None) -> str:
    """The results as Markdown; ratios are to plain transformers."""
    skipped = "updates skipped, as they would not have ended in time."
    notes = [f"{r.name}: {r.skipped} {skipped}" for r in results if r.skipped]
    notes += [f"{r.name}: {r.problem} after {len(r.seconds)} updates." for r in results if r.problem]
    return "\n".join([*markdown(HEAD, [_row(r, results[0].kept, positions, peak) for r in results]), "", *notes])


HEAD = ("variant", "tokens/s, best", "median", "times plain", "MFU, best", "PFLOPs", "step s", "peak GiB", "updates")


def _row(r: Measured, base: list[float], positions: int, peak: float | None) -> list[str]:
    if not r.seconds:
        return [r.name, r.problem or "no time left", "", "", "", f"{r.flops / 1e15:.3g}", "", "", "0"]
    best, median = min(r.kept), statistics.median(r.kept)
    return [
        r.name,
        f"{positions / best:,.0f}",
        f"{positions / median:,.0f}",
        f"{statistics.median(base) / median:.2f}" if base else "-",
        f"{r.flops / best / (peak * 1e12):.3f}" if peak else "-",
        f"{r.flops / 1e15:.3g}",
        f"{statistics.median(r.step_seconds):.2f}",
        f"{r.peak_gib:.1f}" if r.peak_gib else "-",
        f"{len(r.kept)}",
    ]


def peak_of(device: torch.device, given: float | None) -> float | None:
    """The peak of this device in TFLOPs a second; None where it is not known."""
    if given is not None or device.type != "cuda":
        return given
    name = torch.cuda.get_device_name(device)
    return next((peak for key, peak in PEAK_TFLOPS.items() if key in name), None)


def series_of(arguments: argparse.Namespace, vocabulary: int) -> list[Series]:
    scale = SMALLER if arguments.shape == "tiny" else 1
    max_tokens = arguments.max_tokens or CUT // (SMALLER // 4 if arguments.shape == "tiny" else 1)
    traces = sampled(arguments.sequences, scale, vocabulary, arguments.seed)
    few = traces[: max(1, len(traces) // 4)]
    sets = {"traces": traces, "branches": branched(few, scale, vocabulary, arguments.seed + 1)}
    return [Series(name, sets[name], max_tokens, arguments.rounds) for name in arguments.sets]


def main() -> None:
    arguments = options(
        __doc__,
        shape="1.5b",  # or another of ``paper_sequences.SHAPES``
        layers=int,  # as many as the shape has where none are given
        device="cuda",
        dtype="bfloat16",  # or float32
        zero_stage=2,  # the recipes have 2 and 3
        sequences=12,  # traces of the first set
        sets=["traces", "branches"],
        rounds=5,
        max_tokens=int,  # of a micro-batch; otherwise 16384, for tiny 1024
        seconds=540.0,  # after which it has ended
        peak_tflops=float,  # of the device; known for some GPUs
        seed=0,
        output=Path,  # a JSON file for the figures of every update
    )
    ends = time.perf_counter() + arguments.seconds
    faulthandler.dump_traceback_later(arguments.seconds + GRACE_S, exit=True)
    config, device = config_of(arguments.shape, arguments.layers), torch.device(arguments.device)
    choose_kernels(None)
    join(Ranks())
    trainer = Trainer(config, device, getattr(torch, arguments.dtype), arguments.seed, arguments.zero_stage)
    peak, series = peak_of(device, arguments.peak_tflops), series_of(arguments, config.vocab_size)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    layers, of_peak = config.num_hidden_layers, f"{peak:g}" if peak else "an unknown number of"
    stage = f"ZeRO {arguments.zero_stage}" if arguments.dtype == "bfloat16" else "no ZeRO"
    about = f"{arguments.shape} with {layers} layers, {arguments.dtype}, {stage}, torch {torch.__version__}"
    print(f"# Updates on {name}: {about}\n")
    print(f"MFU = FLOPs / (seconds * {of_peak} TFLOPs a second); FLOPs = 6 * (positions * parameters of the layers")
    print("+ trained tokens * vocabulary * hidden size + layers * heads * head size * sum of (end^2 - start^2))\n")
    measured = {}
    for number, one in enumerate(series):
        now = time.perf_counter()
        results = one.measure(trainer, now + (ends - now) / (len(series) - number))
        measured[one.name] = [asdict(r) for r in results]
        widths = [s.width for s in one.sequences]
        about = f"{len(widths)} sequences of {min(widths)} to {max(widths)} positions, {sum(widths)} in all"
        print(f"## {one.name}: {about}\n\n{table(results, sum(widths), peak)}", flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(measured, indent=1))
    trainer.drop()
    leave()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
