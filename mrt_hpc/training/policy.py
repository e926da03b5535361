"""The policy as a module: its input is token ids, its output the log-probabilities of the trained tokens.

Only trained positions reach the vocabulary projection, in chunks that the backward pass recomputes when not all fit, or
fused with the cross-entropy (see ``projection``). The softmax is of logits / temperature, the sampled distribution.
"""

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config

from mrt_hpc.errors import Advice, UserError
from mrt_hpc.recipe.choices import Batching, Precision
from mrt_hpc.recipe.model_files import INDEX, SINGLE_FILE, context_length, no_weights, uneven_heads
from mrt_hpc.recipe.sections import Training
from mrt_hpc.run.safetensors_file import StoredTensor, stored_tensors
from mrt_hpc.training import attention
from mrt_hpc.training.accelerator import device
from mrt_hpc.training.fused_projection import LOGIT_ELEMENTS, fuse
from mrt_hpc.training.micro_batch import MicroBatch

log = logging.getLogger(__name__)

NOT_MADE = (AttributeError, ImportError, KeyError, NotImplementedError, TypeError, ValueError)
"""transformers raises these where it cannot make a configuration's model."""

NOISE = re.compile("drop|jitter")
"""Fields whose names match make a forward pass in training mode random."""


@dataclass(frozen=True)
class Kernels:
    """Choices that change log-probabilities by rounding only."""

    batching: Batching = Batching.PADDED
    fused: bool = False
    """Whether the projection is fused with the cross-entropy."""
    entropy: bool = True
    """Entropies are 0 where this is false."""

    @staticmethod
    def of(training: Training) -> "Kernels":
        return Kernels(training.batching, training.projection == "fused", training.entropy)

    @property
    def is_one_row(self) -> bool:
        """Each sequence attends to its own tokens alone."""
        return self.batching is not Batching.PADDED


class Policy(nn.Module):
    """A causal language model that returns log-probabilities of given tokens."""

    def __init__(
        self,
        model: PreTrainedModel,
        temperature: float,
        autocast: bool,
        kernels: Kernels,
        row_ranks: attention.RowRanks = attention.OWN_ROWS,
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
    def device(self) -> torch.device:
        return self.model.device

    @property
    def padded_attention(self) -> str:
        chosen = self.own_attention
        return attention.CPU_ATTENTION if self.autocast and device().type == "cpu" and chosen == "sdpa" else chosen

    @property
    def own_attention(self) -> str:
        """The attention that transformers chooses for the model."""
        return self.model.get_correct_attn_implementation(None)

    def pad_rows(self) -> None:
        self.kernels = replace(self.kernels, batching=Batching.PADDED)
        self.model.set_attn_implementation(self.padded_attention)

    def training_precision(self) -> torch.autocast:
        """Matrix products then have the training's number format."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.autocast)

    @property
    def vocabulary(self) -> int:
        return int(self.model.config.get_text_config().vocab_size)

    def forward(self, batch: MicroBatch, chunks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities [S], with gradient, and entropies [S], without, of the batch's trained tokens.

        Args:
            batch: B x W token ids with S trained tokens, laid out as ``kernels.batching`` says.
            chunks: pieces of the S rows in an unfused projection; under ZeRO-3 the same on every rank, as each piece
                gathers it.
        """
        with self.training_precision():
            options = self._row_options(batch) if batch.lengths else {}
            hidden = self.model.base_model(input_ids=batch.input_ids, use_cache=False, **options).last_hidden_state
            chosen = attention.take_rows(hidden.flatten(0, 1), batch.positions, repeated=batch.paths is not None)
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
        """Arguments for the layers about a row of several sequences."""
        config = self.model.config.get_text_config()
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        dtype = torch.bfloat16 if self.autocast else self.model.dtype
        segments = attention.segments_of(batch.lengths or (), self.device, dtype, head_size, batch.paths)
        if self.row_ranks.parts > 1:
            segments = attention.SharedRowSegments(segments, self.row_ranks)
        return {"position_ids": batch.position_ids, "segments": segments}

    def _score(self, hidden: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self._projection(hidden).float() / self.temperature
        logprobs = -F.cross_entropy(logits, targets, reduction="none")
        return logprobs, _entropy(logits.detach()) if self.kernels.entropy else torch.zeros_like(logprobs)


def _entropy(logits: torch.Tensor) -> torch.Tensor:
    """[S] entropies of softmax(logits), in nats."""
    logprobs = logits.log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def load_policy(
    directory: Path,
    temperature: float,
    precision: Precision,
    gradient_checkpointing: bool = False,
    partition: dict[str, Any] | None = None,
    kernels: Kernels = Kernels(),
    row_ranks: attention.RowRanks = attention.OWN_ROWS,
) -> Policy:
    """Load the policy from a Hugging Face directory. A model that cannot have sequences in one row gets padded rows,
    with a warning.

    Args:
        partition: DeepSpeed's configuration for ZeRO-3 (collective), so that no rank holds the whole model; None for a
            whole model.
        row_ranks: the ranks that share each row with this one.
    """
    config = _remove_noise(model_config(directory))
    text = config.get_text_config()
    if row_ranks.parts > 1 and text.num_attention_heads % row_ranks.parts:
        raise uneven_heads(text.num_attention_heads, row_ranks.parts, str(directory))
    refuse_other_tensors(directory, config)
    dtype = torch.bfloat16 if precision is Precision.BF16 else torch.float32
    autocast = precision is Precision.BF16_AUTOCAST
    implementation = attention.PACKED_ATTENTION if kernels.is_one_row else None
    try:
        with _partitioned_when_made(partition and _keep_wide_buffers(partition, config, dtype)):
            loaded, report = AutoModelForCausalLM.from_pretrained(
                directory, config=config, dtype=dtype, attn_implementation=implementation, output_loading_info=True
            )
        model = cast("PreTrainedModel", loaded)
        if implementation and not _changes_attention(model):
            raise NotImplementedError("its layers compute attention of their own, whatever they are given")
    except NOT_MADE as error:
        if implementation is None or row_ranks.parts > 1:
            raise not_made(directory, error, row_ranks.parts > 1) from error
        log.warning("%s", padded_warning(kernels.batching, f"{type(error).__name__}: {error}"))
        padded = replace(kernels, batching=Batching.PADDED)
        return load_policy(directory, temperature, precision, gradient_checkpointing, partition, padded, row_ranks)
    refuse_other_keys(report, directory)
    # transformers forgets, while it loads a whole model, what the model's own code freezes.
    frozen = {name for name, tensor in _empty_model(config).named_parameters() if not tensor.requires_grad}
    for name, tensor in model.named_parameters():
        tensor.requires_grad_(name not in frozen)
    for module in model.modules():  # some models have dropout of their own, beyond their configuration
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy = Policy(model, temperature, autocast, kernels, row_ranks)
    if not kernels.is_one_row and policy.padded_attention != policy.own_attention:
        model.set_attn_implementation(policy.padded_attention)
    return policy


def _changes_attention(model: PreTrainedModel) -> bool:
    """Whether a model's layers compute attention as they are asked to."""
    used = model.config._attn_implementation
    model.set_attn_implementation(model.get_correct_attn_implementation(None))
    changed = model.config._attn_implementation != used
    model.set_attn_implementation(used)
    return changed


def _remove_noise(config: PretrainedConfig) -> PretrainedConfig:
    """Set dropout and routers' noise to 0: the trained policy must be the sampled one. The published configuration
    stays. (``agreement`` shows that none is left.)
    """
    for part in {id(c): c for c in (config, config.get_text_config())}.values():
        for name, value in vars(part).items():
            if NOISE.search(name) and isinstance(value, float):
                setattr(part, name, 0.0)
    return config


def model_config(directory: Path) -> PretrainedConfig:
    if not (directory / "config.json").is_file():
        raise UserError(
            "the directory holds no model: config.json is missing",
            where=directory,
            expected="config.json and *.safetensors",
            advice=Advice(
                "ls {directory} shows what is there; name a model with --set model.path=DIRECTORY", directory=directory
            ),
        )
    try:
        return cast("PretrainedConfig", AutoConfig.from_pretrained(directory))
    except NOT_MADE as error:
        raise not_made(directory, error) from error


def refuse_other_tensors(directory: Path, config: PretrainedConfig) -> None:
    """Refuse a checkpoint whose tensors are not those of its model, by the headers of its files alone: transformers
    loads it into a model without data, with all its renaming and merging of tensors.
    """
    stored = {t.name: _StoredShape(t.shape, t.dtype) for t in _tensors_of_model(directory)}
    try:
        kind = type(_empty_model(config))
        options = {"config": config, "state_dict": stored, "dtype": torch.float32, "output_loading_info": True}
        _, report = kind.from_pretrained(None, ignore_mismatched_sizes=True, **options)
    except NOT_MADE as error:
        raise not_made(directory, error) from error
    refuse_other_keys(report, directory)


def refuse_other_keys(report: dict[str, Any], directory: Path) -> None:
    """Refuse what transformers reports of a loading unless every tensor was used and none is missing."""
    mismatched = [f"{name} {tuple(stored)}, not {tuple(wanted)}" for name, stored, wanted in report["mismatched_keys"]]
    faults = {
        "lacks tensors of the model, which would be random numbers": sorted(report["missing_keys"]),
        "has tensors that the model does not know": sorted(report["unexpected_keys"]),
        "has tensors of other shapes than the model's": sorted(mismatched),
        "cannot be read into the model": [str(m) for m in report["error_msgs"]],
    }
    for fault, names in faults.items():
        if names:
            raise UserError(
                f"the checkpoint {fault}",
                value=f"{len(names)}: {', '.join(names[:4])}{', ...' if len(names) > 4 else ''}",
                where=directory,
                expected="each tensor of the model once, under the names of its architecture in config.json",
                advice="fetch the model again, or correct config.json (architectures, num_hidden_layers, "
                "tie_word_embeddings); tensors that no part of the model uses can be left out of a copy of its files",
            )


@dataclass(frozen=True)
class _StoredShape:
    """A tensor in a file without its data, with the methods by which transformers loads one."""

    shape: tuple[int, ...]
    dtype: str

    def __getitem__(self, _: object) -> "_StoredShape":
        return self

    def get_shape(self) -> list[int]:
        return [*self.shape]

    def get_dtype(self) -> str:
        return self.dtype

    def to(self, dtype: torch.dtype | None = None, **_: object) -> torch.Tensor:
        return torch.empty(self.shape, dtype=dtype, device="meta")


def _tensors_of_model(directory: Path) -> list[StoredTensor]:
    """Those of the files that transformers loads: the one of the usual name, or those of the index."""
    names = [SINGLE_FILE]
    if not (directory / SINGLE_FILE).is_file() and (directory / INDEX).is_file():
        names = sorted(set(json.loads((directory / INDEX).read_bytes())["weight_map"].values()))
    if missing := [name for name in names if not (directory / name).is_file()]:
        raise no_weights(directory, missing[0], str(directory))
    return [tensor for name in names for tensor in stored_tensors(directory / name)]


def padded_warning(batching: Batching, reason: str) -> str:
    """The warning about padded rows."""
    return (
        f"training.batching is padded and not {batching} for this model: it does not compute sequences that lie in one "
        f"row as it computes each alone ({reason})"
    )


def not_made(directory: Path, error: Exception, shares_rows: bool = False) -> UserError:
    """The error that transformers cannot make a model, in its words."""
    other = Advice("--set training.sequence_parallel=1, or " if shares_rows else "")
    return UserError(
        f"transformers cannot make this model for training: {type(error).__name__}: {error}",
        where=directory,
        advice=Advice("{other}take another model: --set model.path=DIRECTORY", other=other),
    )


def parameter_count(directory: Path) -> int:
    """Counted from the configuration alone; tied parameters count once."""
    return sum(p.numel() for p in _empty_model(model_config(directory)).parameters())


def longest_of_model(directory: Path) -> int:
    """The longest sequence by the model's configuration, in tokens; 0 if unknown."""
    return context_length(model_config(directory).to_dict()) or 0


def _empty_model(config: PretrainedConfig, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """Tensors have a shape and a number format, but no data."""
    with torch.device("meta"):
        return cast("PreTrainedModel", AutoModelForCausalLM.from_config(config, dtype=dtype))


def _keep_wide_buffers(partition: dict[str, Any], config: PretrainedConfig, dtype: torch.dtype) -> dict[str, Any]:
    """DeepSpeed's configuration, with the model's own 32-bit buffers.

    While DeepSpeed partitions, it gives each tensor the weights' number format: position frequencies in bfloat16 are
    wrong by several radians after some thousand tokens.
    """
    model = _empty_model(config, dtype)
    wide = [name for name, buffer in model.named_buffers() if buffer.dtype == torch.float32]
    kept = [*wide, *(model._keep_in_fp32_modules_strict or ())]
    return {**partition, "data_types": {**partition["data_types"], "keep_in_fp32_modules": kept}}


@dataclass(frozen=True)
class _Stage3:
    """transformers reads from it whether to partition a new model. Its own class for this needs a package that nothing
    else here needs.
    """

    config: dict[str, Any]

    def is_zero3(self) -> bool:
        return True


@contextmanager
def _partitioned_when_made(config: dict[str, Any] | None) -> Iterator[None]:
    """Partition the models that transformers loads in the block, parameter by parameter, if there is a
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
    """Pieces that keep the logits of one micro-batch within ``LOGIT_ELEMENTS``."""
    return max(1, -(-trained_tokens * vocabulary // LOGIT_ELEMENTS))
