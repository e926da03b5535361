"""The DeepSpeed update of an iteration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mrt_hpc.recipe.base import (
    Beta,
    Count,
    LearningRate,
    Nodes,
    Norm,
    NotNegative,
    NumberFormat,
    Section,
    Share,
    Tokens,
)
from mrt_hpc.recipe.batching import Batching, Precision


class Training(Section):
    """The DeepSpeed update of an iteration."""

    learning_rate: LearningRate
    """The peak learning rate of AdamW."""
    warmup_ratio: Share = 0.1
    """The share of all optimiser steps over which the learning rate rises linearly to its peak. The first step has a
    rate above 0.
    """
    warmup_steps: NotNegative | None = None
    """The number of optimiser steps of that rise; null takes the share that warmup_ratio gives. A run that is given
    another number of iterations keeps the steps that it began with, and writes them here.
    """
    schedule: Literal["cosine", "constant"] = "cosine"
    """The course of the learning rate after the warm-up."""
    minimum_ratio: Share = 0.0
    """The end of the cosine, as a share of the peak. The cosine ends one optimiser step beyond the last one, so that
    the last step still learns.
    """
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.01
    """The decoupled weight decay of AdamW."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """The two betas of AdamW."""
    gradient_clip: Norm = 1.0
    """The maximum global norm of the gradients; larger gradients are scaled down to it."""
    clip_low: Share = 0.2
    """The importance ratio is clipped below 1 minus this value."""
    clip_high: Annotated[float, Field(gt=0, le=100)] = 0.2
    """The importance ratio is clipped above 1 plus this value."""
    importance_cap: Annotated[float, Field(ge=1, le=1e6)] = 2.0
    """The maximum of the importance weight between the trainer's and vLLM's distributions; larger weights are
    truncated.
    """
    kl_coefficient: Annotated[float, Field(ge=0, le=100)] = 0.0
    """The weight of KL(policy || weights version 0), the divergence of the trained policy from the first one, given
    each token's prefix. With 0 no reference model is loaded.
    """
    optimizer_steps_per_iteration: Count = 1
    """The number of mini-batches that the batch is split into, with one optimiser step each."""
    precision: Precision = Precision.BF16
    """The number format of the trainer."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 3
    """The DeepSpeed ZeRO stage. It says what is partitioned over the ranks: 1 the optimiser, 2 gradients as well, 3
    weights as well.
    """
    offload_optimizer: bool = False
    """Whether the optimiser's states and its 32-bit weights are kept in the memory of the CPU, where it takes its
    steps. A larger model then fits on the GPUs, and a step takes longer. It needs zero_stage 1 or higher, and 12 bytes
    of the memory of resources.trainer for each parameter. Results with and without it agree up to rounding.
    """
    max_tokens_per_micro_batch: Tokens = 16384
    """The maximum number of tokens of a micro-batch, padding included; tokens that are computed once for several
    sequences count once. A longer sequence gets a micro-batch of its own.
    """
    batching: Batching = Batching.PADDED
    """How sequences share a micro-batch. Results agree up to rounding. A model that does not compute sequences that lie
    in one row as it computes each alone gets padded rows, and the trainer's log says so.
    """
    sequence_parallel: Nodes = 1
    """The number of ranks that share each micro-batch, for traces whose activations do not fit one GPU: each computes
    an equal part of its positions, and attention of an equal part of the heads. It must divide resources.trainer.ranks
    and the model's attention heads, and takes batching packed or shared. Results agree up to rounding.
    """
    projection: Literal["chunked", "fused"] = "chunked"
    """How hidden states become log-probabilities. ``chunked`` keeps the logits of a micro-batch for the backward pass,
    or computes them in pieces where they are many. ``fused`` keeps one number a token, and computes the gradient in
    pieces by its formula: less memory, and fewer passes over the logits. Results agree up to rounding.
    """
    entropy: bool = True
    """Whether the entropy of the policy is measured. It takes more passes over all logits, and changes no weight."""
    weights_dtype: NumberFormat = "bfloat16"
    """The number format of the published weights versions."""
    gradient_checkpointing: bool = True
    """Whether activations are computed again in the backward pass, which saves memory."""
    deterministic: bool | None = None
    """Whether to use only kernels that give the same bits each time, so that a resumed run repeats an unbroken one. An
    operation that has no such kernel is then an error. null is on for CPU, where it costs nothing, and off on GPU,
    where the backward passes of attention and of the embedding become slower and cuBLAS keeps a workspace of its own.
    """
    checkpoint_every: Count = 1
    """The number of iterations between two checkpoints. A trainer that is lost computes at most so many again."""
    keep_checkpoints: Count = 2
    """The number of checkpoints that stay on disk."""
    keep_weights: Annotated[int, Field(ge=2, le=1_000_000)] = 3
    """The number of the newest weights versions that stay on disk. Versions to be evaluated stay in any case."""
    full_weights_every: Count = 1
    """The number of weights versions from one that is published as a whole model to the next. Those between hold only
    what has changed since the version before, to the bit; inference tasks put them together. 1 publishes whole models
    only. Versions that are evaluated, sample traces or end a segment are whole models in any case.
    """
