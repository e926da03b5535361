"""The trainer: one DeepSpeed engine on any number of ranks, ZeRO stage 0 to 3.

Every rank receives the whole batch and computes its share: micro-batches of its own, or a part of shared ones (see
``sequence_parallel``). The loss is divided by a number of the whole mini-batch, so the result depends on no number of
micro-batches or ranks. It writes no files.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from mrt_hpc.recipe.choices import Aggregation, Batching, Precision
from mrt_hpc.run.seeds import derive_seed
from mrt_hpc.training.accelerator import deepspeed, device, seed_generators
from mrt_hpc.training.agreement import require_agreement
from mrt_hpc.training.attention import RowRanks
from mrt_hpc.training.loss_kinds import LossTokens
from mrt_hpc.training.losses import TokenLoss, likelihood_loss, policy_loss
from mrt_hpc.training.micro_batch import Arrangement, MicroBatch, arrange, lay_out, part_of
from mrt_hpc.training.packing import split_by_group
from mrt_hpc.training.policy import Kernels, Policy, load_policy, logit_chunks, longest_of_model, parameter_count
from mrt_hpc.training.rendezvous import Ranks
from mrt_hpc.training.settings import Objective, TrainerSettings, TrainingSequence, learning_rate
from mrt_hpc.training.update_statistics import SkippedStep, Stopwatch, Tally, UpdateStats

log = logging.getLogger(__name__)

LARGEST_BUCKET = 500_000_000
"""Elements that ZeRO sends at once; a small model needs no larger buffer than itself."""


@dataclass(frozen=True)
class MicroStep:
    batch: MicroBatch
    chunks: int
    """Pieces of the vocabulary projection, the same on every rank."""


@dataclass(frozen=True)
class MiniBatch:
    """One optimiser step's sequences, as this rank holds them."""

    micro_steps: list[MicroStep]
    trained_tokens: int
    """On all ranks."""
    divisor: int
    """Of the loss, on all ranks."""
    arranged: Arrangement
    computed: Sequence[TrainingSequence]
    shares: Sequence[Sequence[tuple[int, ...]]]
    """[micro-steps][rows] the sequences of each row."""


def log_skipped(skipped: SkippedStep) -> None:
    log.warning("%s", skipped)


class TrainerEngine:
    """A policy under training. Create one with ``build``; all methods are collective."""

    def __init__(
        self, engine: Any, settings: TrainerSettings, source_dir: Path, ranks: Ranks, reference: Policy | None
    ) -> None:
        self.engine = engine
        self.settings = settings
        self.source_dir = source_dir
        self.ranks = ranks
        self.reference = reference
        self.step = 0
        """Optimiser steps since the start of the run."""
        self.skipped_in_a_row = 0
        """Optimiser steps skipped since the last one that was taken."""
        self._kernels = self.policy.kernels
        self._row_ranks = self.policy.row_ranks

    @property
    def policy(self) -> Policy:
        """Under ZeRO-3 its parameters are partitioned."""
        return self.engine.module

    def update(
        self, batch: Sequence[TrainingSequence], on_skip: Callable[[SkippedStep], None] = log_skipped
    ) -> UpdateStats:
        """Take one iteration's optimiser steps on ``batch``, which is the same on every rank.

        A batch without a trained token takes no step. A step whose loss or gradient norm is not finite is skipped on
        every rank: weights, optimiser and learning rate stay. ``on_skip`` is called afterwards on every rank, with the
        same argument; it may raise.
        """
        started = time.perf_counter()
        clock, tally = Stopwatch(), Tally(device())
        mini_batches = self._mini_batches(batch)
        with clock.phase("forward"):
            old_logprobs = [None, *(self.logprobs(m) for m in mini_batches[1:])]
        norms = []
        for number, (mini_batch, old) in enumerate(zip(mini_batches, old_logprobs, strict=False)):
            own = Tally(device())
            self.accumulate(mini_batch, old, clock, own)
            with clock.phase("step"):
                norm = self.apply()
            if isfinite(norm):
                norms.append(norm)
                tally.include(own)
            else:
                on_skip(self._describe_skip(number, mini_batch, own))
        return self._stats(batch, mini_batches, norms, clock, tally, started)

    def prepare(self, sequences: Sequence[TrainingSequence]) -> MiniBatch:
        """Pack one mini-batch and lay out this rank's share. Sequences without any advantage count in the divisor but
        are not computed, unless the KL term gives them a gradient.
        """
        training, world_size, parts = self.settings.training, self.ranks.world_size, self._row_ranks.parts
        computed = [s for s in sequences if s.trained_tokens and (s.has_signal or training.kl_coefficient > 0)]
        limit = training.max_tokens_per_micro_batch
        arranged = arrange(self._kernels.batching, computed, world_size, limit, parts)
        steps = arranged.steps or [((),) * (world_size // parts)]
        chunks = self._chunks(computed, steps)
        micro_steps = [self._micro_step(computed, step, count) for step, count in zip(steps, chunks, strict=True)]
        counts = [s.trained_tokens for s in sequences]
        return MiniBatch(micro_steps, sum(counts), self.divisor(counts), arranged, computed, steps)

    def divisor(self, counts: Sequence[int]) -> int:
        """Of the trained tokens of each sequence; sequences that are not computed count as the others."""
        match self.settings.training.aggregation:
            case Aggregation.TOKEN:
                return sum(counts)
            case Aggregation.SEQUENCE:
                return sum(count > 0 for count in counts)
            case Aggregation.CONSTANT:
                return len(counts) * self.settings.longest_trace

    def accumulate(
        self,
        mini_batch: MiniBatch,
        old_logprobs: list[torch.Tensor] | None = None,
        clock: Stopwatch | None = None,
        tally: Tally | None = None,
    ) -> None:
        """Compute the gradient of a mini-batch; afterwards it is complete on all ranks.

        Args:
            old_logprobs: before the iteration, a tensor a micro-step; None before its first step, where the forward
                pass gives them.
            clock: receives the seconds of forward and backward.
        """
        clock, tally = clock or Stopwatch(), tally or Tally(device())
        last = len(mini_batch.micro_steps) - 1
        for number, micro_step in enumerate(mini_batch.micro_steps):
            self.engine.set_gradient_accumulation_boundary(number == last)
            with clock.phase("forward"):
                loss = self._loss(micro_step, old_logprobs[number] if old_logprobs else None)
            with clock.phase("backward"):
                # DeepSpeed takes the mean over ranks; the sum is needed
                scale = self.ranks.world_size / mini_batch.divisor
                self.engine.backward(loss.total * _nan_unless_finite(loss.total, scale), scale_wrt_gas=False)
            tally.add(loss, mini_batch.divisor)

    def apply(self) -> float:
        """Clip the gradient, take one optimiser step, return the global norm before clipping. Where the norm is not
        finite, nothing changes on any rank. DeepSpeed's optimisers see to that themselves; where it wraps none, it
        would take the step.
        """
        for group in self.engine.optimizer.param_groups:
            group["lr"] = self.learning_rate(self.step)
        plain_norm = self._plain_gradient_norm()
        if plain_norm is not None and not isfinite(plain_norm):
            self.engine.zero_grad()
        else:
            self.engine.step()
        norm = plain_norm if plain_norm is not None else float(self.engine.get_global_grad_norm())
        self.step += isfinite(norm)
        self.skipped_in_a_row = 0 if isfinite(norm) else self.skipped_in_a_row + 1
        return norm

    def learning_rate(self, step: int) -> float:
        return learning_rate(step, self.settings.total_steps, self.settings.training)

    def _mini_batches(self, batch: Sequence[TrainingSequence]) -> list[MiniBatch]:
        groups, widths = [s.group for s in batch], [s.width for s in batch]
        parts = split_by_group(groups, widths, self.settings.training.optimizer_steps_per_iteration)
        prepared = (self.prepare([batch[i] for i in part]) for part in parts)
        return [m for m in prepared if m.trained_tokens]

    def _micro_step(
        self, sequences: Sequence[TrainingSequence], step: Sequence[tuple[int, ...]], chunks: int
    ) -> MicroStep:
        own, parts = [sequences[i] for i in step[self._row_ranks.row]], self._row_ranks.parts
        batch = lay_out(self._kernels.batching, own)
        if parts > 1:
            batch = part_of(batch, self._row_ranks.part, parts)
        return MicroStep(batch.to(device()), chunks)

    def _chunks(self, sequences: Sequence[TrainingSequence], plan: Sequence[Sequence[tuple[int, ...]]]) -> list[int]:
        """Pieces of the projection in each micro-step, the same on every rank. ZeRO-3 silently stops prefetching
        weights when their order changes: its count is always that of the largest allowed micro-batch.
        """
        # in a shared row one position may predict many tokens, and all of them may be in one part
        parts = self._row_ranks.parts if self._kernels.batching is Batching.PACKED else 1
        largest = [max(_most_trained([sequences[i] for i in share], parts) for share in step) for step in plan]
        if self.engine.zero_optimization_partition_weights():
            bound = max(-(-self.settings.training.max_tokens_per_micro_batch // parts), *largest)
            largest = [bound] * len(plan)
        return [logit_chunks(tokens, self.policy.vocabulary) for tokens in largest]

    def _loss(self, micro_step: MicroStep, old_logprobs: torch.Tensor | None) -> TokenLoss:
        batch = micro_step.batch
        logprobs, entropy = self.engine(batch, micro_step.chunks)
        if self.settings.objective is Objective.LIKELIHOOD:
            return likelihood_loss(logprobs, batch.advantages, entropy)
        with torch.no_grad():
            reference = None if self.reference is None else self.reference(batch, micro_step.chunks)[0]
        tokens = LossTokens(
            logprobs,
            logprobs.detach() if old_logprobs is None else old_logprobs,
            batch.behaviour_logprobs,
            batch.advantages,
            batch.sequences,
            batch.sequence_tokens,
            self.settings.training,
        )
        return policy_loss(tokens, entropy, reference)

    @torch.no_grad()
    def logprobs(self, mini_batch: MiniBatch) -> list[torch.Tensor]:
        return [self.engine(m.batch, m.chunks)[0] for m in mini_batch.micro_steps]

    def _describe_skip(self, number: int, mini_batch: MiniBatch, tally: Tally) -> SkippedStep:
        """The sequences of the micro-batches without a finite loss, on any rank; or the whole mini-batch where only the
        gradient is not finite. Collective.
        """
        bad = torch.zeros(len(mini_batch.shares), len(mini_batch.shares[0]), dtype=torch.int64, device=device())
        bad[:, self._row_ranks.row] = ~tally.finite_losses
        distributed.all_reduce(bad, op=distributed.ReduceOp.MAX)
        flagged = zip(chain(*mini_batch.shares), bad.flatten().tolist(), strict=True)
        skipped = [mini_batch.computed[index] for share, flag in flagged if flag for index in share]
        return SkippedStep(number, "loss" if skipped else "gradient", skipped or list(mini_batch.computed))

    def _plain_gradient_norm(self) -> float | None:
        """The norm where DeepSpeed wraps no optimiser (stage 0 in 32 bits), and so reports none."""
        if self.engine.zero_optimization():
            return None
        gradients = [p.grad for p in self.policy.parameters() if p.grad is not None]
        return float(torch.nn.utils.get_total_norm(gradients))

    def _stats(
        self,
        batch: Sequence[TrainingSequence],
        mini_batches: Sequence[MiniBatch],
        norms: Sequence[float],
        clock: Stopwatch,
        tally: Tally,
        started: float,
    ) -> UpdateStats:
        loss, sums, mismatch_max = tally.gather_sums()
        computed, steps = max(1.0, sums["tokens"]), max(1, len(norms))
        counted = [(m.arranged.positions, m.arranged.padding, m.arranged.shared) for m in mini_batches]
        positions, padding, shared = map(sum, zip((0, 0, 0), *counted, strict=True))
        return UpdateStats(
            loss=loss / steps,
            grad_norm=sum(norms) / steps,
            learning_rate=self.learning_rate(max(0, self.step - 1)),
            nll=sums["nll"] / computed,
            entropy=sums["entropy"] / computed if self._kernels.entropy else None,
            kl_reference=sums["kl_reference"] / computed,
            kl_old=sums["kl_old"] / computed,
            clip_fraction=sums["clipped"] / computed,
            mismatch_mean=sums["mismatch"] / computed,
            mismatch_max=mismatch_max,
            effective_sample_share=sums["mismatch"] ** 2 / (sums["mismatch_squared"] or 1.0) / computed,
            mismatch_kl=sums["mismatch_kl"] / computed,
            importance_capped_share=sums["capped"] / computed,
            tokens=sum(m.trained_tokens for m in mini_batches),
            computed_tokens=int(sums["tokens"]),
            positions=positions,
            padding_share=padding / max(1, positions),
            shared_prefix_share=shared / max(1, positions - padding + shared),
            sequences=len(batch),
            micro_steps=sum(len(m.micro_steps) for m in mini_batches),
            optimizer_steps=len(norms),
            skipped_steps=len(mini_batches) - len(norms),
            step=self.step,
            seconds_forward=clock.seconds["forward"],
            seconds_backward=clock.seconds["backward"],
            seconds_step=clock.seconds["step"],
            seconds_update=time.perf_counter() - started,
        )


def build(settings: TrainerSettings, model_dir: Path, ranks: Ranks) -> TrainerEngine:
    """Start a trainer from a Hugging Face directory; collective, after ``accelerator.choose_kernels`` and
    ``rendezvous.join``. ``model_dir`` also has the frozen reference of a KL term (whole on every rank), and the
    configuration and tokenizer to publish. Refuses a model that fails ``agreement``.
    """
    seed_generators(derive_seed(settings.seed, "trainer", ranks.rank))
    training = settings.training
    config = deepspeed_config(settings, parameter_count(model_dir))
    partition = config if training.zero_stage == 3 else None
    row_ranks = RowRanks.of(ranks, training.sequence_parallel)
    policy = load_policy(
        model_dir,
        settings.temperature,
        training.precision,
        training.gradient_checkpointing,
        partition,
        Kernels.of(training),
        row_ranks,
    )
    engine, *_ = deepspeed.initialize(
        model=policy,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=training.learning_rate, fused=True),
        model_parameters=_parameter_groups(policy, training.weight_decay),
        config=config,
        dist_init_required=False,
    )
    engine.train()
    longest = settings.longest or longest_of_model(model_dir)
    require_agreement(engine.module, longest, model_dir, settings.seed)
    reference = _reference(settings, model_dir, engine.module) if training.kl_coefficient > 0 else None
    return TrainerEngine(engine, settings, model_dir, ranks, reference)


def deepspeed_config(settings: TrainerSettings, parameters: int) -> dict[str, Any]:
    """The micro-batches per step are left open."""
    bf16 = settings.training.precision is Precision.BF16
    bucket = min(LARGEST_BUCKET, parameters + parameters % 2)  # ZeRO 1 and 2 need an even number
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": settings.training.gradient_clip,
        "bf16": {"enabled": bf16},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # torch's Adam takes its steps on a CPU as well, and needs no compiler
        "zero_optimization": {
            "stage": max(1, settings.training.zero_stage) if bf16 else settings.training.zero_stage,
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": bucket,
            "stage3_param_persistence_threshold": min(100_000, parameters // 100),
            "stage3_prefetch_bucket_size": min(50_000_000, bucket),
            **({"offload_optimizer": {"device": "cpu"}} if settings.training.offload_optimizer else {}),
        },
        "steps_per_print": None,
    }


def _nan_unless_finite(loss: torch.Tensor, scale: float) -> torch.Tensor:
    """The gradient of a loss that is not finite may be; all ranks notice a gradient of NaN."""
    return torch.where(loss.detach().isfinite(), scale, torch.nan)


def _most_trained(sequences: Sequence[TrainingSequence], parts: int) -> int:
    """The most in one part of a row in which sequences lie end to end; each position predicts one token."""
    positions = sum(s.width for s in sequences)
    return min(sum(s.trained_tokens for s in sequences), -(-positions // parts))


def _parameter_groups(policy: Policy, weight_decay: float) -> list[dict[str, Any]]:
    parameters = [p for p in policy.parameters() if p.requires_grad]
    dimensions = [len(getattr(p, "ds_shape", p.shape)) for p in parameters]  # a partitioned parameter is flat
    return [
        {"params": [p for p, n in zip(parameters, dimensions, strict=True) if n > 1], "weight_decay": weight_decay},
        {"params": [p for p, n in zip(parameters, dimensions, strict=True) if n <= 1], "weight_decay": 0.0},
    ]


def _reference(settings: TrainerSettings, directory: Path, trained: Policy) -> Policy:
    """Computes as the trained policy does."""
    kernels, ranks = trained.kernels, trained.row_ranks
    policy = load_policy(directory, settings.temperature, settings.training.precision, kernels=kernels, row_ranks=ranks)
    return policy.requires_grad_(False).eval().to(device())
