"""The policy as a module: its input is token ids, its output the log-probabilities of the trained tokens.

The full logits are never computed: only trained positions reach the vocabulary projection, in chunks that are computed
again in the backward pass when all of them would not fit, or fused with the cross-entropy (see ``projection``). The
softmax is of logits / temperature, the distribution that was sampled from.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.batching import Batching, Precision
from mrt_hpc.recipe.model_files import uneven_heads
from mrt_hpc.training.accelerator import device
from mrt_hpc.training.attention import CPU_ATTENTION, PACKED_ATTENTION, segments_of, take_rows
from mrt_hpc.training.projection import LOGIT_ELEMENTS, fuse
from mrt_hpc.training.sequence_parallel import OWN_ROWS, RowRanks, SharedRowSegments

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mrt_hpc.recipe.sections.training import Training
    from mrt_hpc.training.micro_batch import MicroBatch

LOGIT_CHANGES = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Configuration fields of models whose logits are more than a projection; such models are refused."""


@dataclass(frozen=True)
class Kernels:
    """The choices of a recipe that change how log-probabilities are computed, and none of them beyond rounding."""

    batching: Batching = Batching.PADDED
    """How sequences share a micro-batch."""
    fused: bool = False
    """Whether the projection is fused with the cross-entropy."""
    entropy: bool = True
    """Whether entropies are computed; otherwise they are 0."""

    @staticmethod
    def of(training: Training) -> Kernels:
        """Return the choices of a recipe's section."""
        return Kernels(training.batching, training.projection == "fused", training.entropy)

    @property
    def in_one_row(self) -> bool:
        """Whether the sequences of a micro-batch lie in one row, each with attention to its own tokens alone."""
        return self.batching is not Batching.PADDED


class Policy(nn.Module):
    """A causal language model that returns log-probabilities of given tokens."""

    def __init__(
        self,
        model: PreTrainedModel,
        temperature: float,
        autocast: bool,
        kernels: Kernels,
        row_ranks: RowRanks = OWN_ROWS,
    ) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.autocast = autocast
        self.kernels = kernels
        self.row_ranks = row_ranks
        if kernels.fused:
            fuse(model.get_output_embeddings(), temperature, kernels.entropy)

    @property
    def vocabulary(self) -> int:
        """The number of columns of the logits."""
        return int(self.model.config.get_text_config().vocab_size)

    def forward(self, batch: MicroBatch, chunks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log-probabilities [S], with gradient, and entropies [S], without, of the batch's trained tokens.

        Args:
            batch: B x W token ids with S trained tokens, laid out as ``kernels.batching`` says.
            chunks: pieces in which the S rows pass a projection that is not fused; under ZeRO-3 the same on every
                rank, as each piece gathers it.
        """
        device_type = batch.input_ids.device.type
        with torch.autocast(device_type, dtype=torch.bfloat16, enabled=self.autocast):
            options = self._row_options(batch) if batch.lengths else {}
            hidden = self.model.base_model(input_ids=batch.input_ids, use_cache=False, **options).last_hidden_state
            chosen = take_rows(hidden.flatten(0, 1), batch.positions, repeated=batch.paths is not None)
            if self.kernels.fused:
                return cast("tuple[torch.Tensor, torch.Tensor]", self._projection(chosen, batch.targets))
            pieces = zip(chosen.tensor_split(chunks), batch.targets.tensor_split(chunks), strict=True)
            if chunks == 1 or not torch.is_grad_enabled():
                parts = [self._score(rows, targets) for rows, targets in pieces]
            else:
                parts = [checkpoint(self._score, rows, targets, use_reentrant=False) for rows, targets in pieces]
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])

    @property
    def _projection(self) -> nn.Module:
        return cast("nn.Module", self.model.get_output_embeddings())

    def _row_options(self, batch: MicroBatch) -> dict[str, Any]:
        """Return what the layers of the model need to know of a row of several sequences."""
        config = self.model.config.get_text_config()
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        dtype = torch.bfloat16 if self.autocast else self.model.dtype
        segments = segments_of(batch.lengths or (), device(), dtype, head_size, batch.paths)
        if self.row_ranks.parts > 1:
            segments = SharedRowSegments(segments, self.row_ranks)
        return {"position_ids": batch.position_ids, "segments": segments}

    def _score(self, hidden: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self._projection(hidden).float() / self.temperature
        logprobs = -F.cross_entropy(logits, targets, reduction="none")
        return logprobs, _entropy(logits.detach()) if self.kernels.entropy else torch.zeros_like(logprobs)


def _entropy(logits: torch.Tensor) -> torch.Tensor:
    """Return the [S] entropies of softmax(logits), in nats."""
    logprobs = logits.log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def load_policy(
    directory: Path,
    temperature: float,
    precision: Precision,
    gradient_checkpointing: bool = False,
    partition: dict[str, Any] | None = None,
    kernels: Kernels = Kernels(),
    row_ranks: RowRanks = OWN_ROWS,
) -> Policy:
    """Load the policy from a Hugging Face directory.

    Args:
        directory: the model's.
        temperature: the log-probabilities are those of logits / temperature.
        precision: number format of weights and activations.
        gradient_checkpointing: whether activations are computed again in the backward pass.
        partition: DeepSpeed's configuration where the ranks partition each parameter as soon as it is created, so that
            no rank ever holds the whole model (ZeRO-3; collective); None for the whole model on this rank.
        kernels: how log-probabilities are computed.
        row_ranks: the ranks that share each row with this one.

    Raises:
        UserError: there is no such model, its logits are not a plain projection, the projection cannot be fused, or the
            ranks that share a row cannot have equally many heads.
    """
    config = model_config(directory)
    changes = [n for n in LOGIT_CHANGES if getattr(config, n, None) not in (None, 1, 1.0)]
    if changes:
        raise UserError(
            "the trainer does not know how this model changes its logits",
            value=changes,
            where=directory / "config.json",
            expected="a model whose logits are a plain projection",
            advice="take another model: --set model.path=DIRECTORY",
        )
    if config.get_text_config().num_attention_heads % row_ranks.parts:
        raise uneven_heads(config.get_text_config().num_attention_heads, row_ranks.parts, str(directory))
    dtype = torch.bfloat16 if precision is Precision.BF16 else torch.float32
    autocast = precision is Precision.BF16_AUTOCAST
    attention = PACKED_ATTENTION if kernels.in_one_row else _attention_of_padded_rows(autocast)
    with _partitioned_when_made(partition and _with_wide_buffers(partition, config, dtype)):
        loaded = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation=attention)
    model = cast("PreTrainedModel", loaded)
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return Policy(model, temperature, autocast, kernels, row_ranks)


def _attention_of_padded_rows(autocast: bool) -> str:
    return CPU_ATTENTION if autocast and device().type == "cpu" else "sdpa"


def model_config(directory: Path) -> PretrainedConfig:
    """Return the configuration of a Hugging Face directory.

    Raises:
        UserError: there is none.
    """
    if not (directory / "config.json").is_file():
        raise UserError(
            "the directory holds no model: config.json is missing",
            where=directory,
            expected="config.json and *.safetensors",
            advice=f"ls {directory} shows what is there; name a model with --set model.path=DIRECTORY",
        )
    return cast("PretrainedConfig", AutoConfig.from_pretrained(directory))


def parameter_count(directory: Path) -> int:
    """Return the number of parameters of a model, tied ones counted once, from its configuration alone."""
    return sum(p.numel() for p in _without_data(model_config(directory)).parameters())


def _without_data(config: PretrainedConfig, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """Return the model of a configuration, in which every tensor has a shape and a number format but no data."""
    with torch.device("meta"):
        return cast("PreTrainedModel", AutoModelForCausalLM.from_config(config, dtype=dtype))


def _with_wide_buffers(partition: dict[str, Any], config: PretrainedConfig, dtype: torch.dtype) -> dict[str, Any]:
    """Return DeepSpeed's configuration with the buffers that the model itself keeps in 32 bits.

    While DeepSpeed partitions, it gives each tensor the number format of the weights, against the model's code:
    frequencies of positions in bfloat16 are wrong by several radians after some thousand tokens.
    """
    model = _without_data(config, dtype)
    wide = [name for name, buffer in model.named_buffers() if buffer.dtype == torch.float32]
    kept = [*wide, *(model._keep_in_fp32_modules_strict or ())]
    return {**partition, "data_types": {**partition["data_types"], "keep_in_fp32_modules": kept}}


@dataclass(frozen=True)
class _Stage3:
    """The settings that transformers reads when it creates a model: whether to partition it, and DeepSpeed's
    configuration. The class of transformers itself for this needs a package that nothing else here needs.
    """

    config: dict[str, Any]

    def is_zero3(self) -> bool:
        """Return True."""
        return True


@contextmanager
def _partitioned_when_made(config: dict[str, Any] | None) -> Iterator[None]:
    """Partition, parameter by parameter, the models that transformers loads in the block; do nothing without a
    configuration.
    """
    if config is None:
        yield
        return
    stage = _Stage3(config)  # transformers keeps only a weak reference
    set_hf_deepspeed_config(stage)
    try:
        yield
    finally:
        unset_hf_deepspeed_config()


def logit_chunks(trained_tokens: int, vocabulary: int) -> int:
    """Return the number of pieces that keep the logits of one micro-batch within ``LOGIT_ELEMENTS``."""
    return max(1, -(-trained_tokens * vocabulary // LOGIT_ELEMENTS))
