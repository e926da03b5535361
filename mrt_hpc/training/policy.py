"""The policy as a module: its input is token ids, its output the log-probabilities of the trained tokens.

The full logits are never computed: only trained positions reach the vocabulary projection, in chunks that are computed
again in the backward pass when all of them would not fit, or fused with the cross-entropy (see ``projection``). The
softmax is of logits / temperature, the distribution that was sampled from.
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

from mrt_hpc.errors import UserError, word
from mrt_hpc.recipe.choices import Batching, Precision
from mrt_hpc.recipe.model_files import INDEX, SINGLE_FILE, context_length, no_weights, uneven_heads
from mrt_hpc.recipe.sections import Training
from mrt_hpc.run.safetensors_file import SafetensorsFile
from mrt_hpc.training import attention
from mrt_hpc.training.accelerator import device
from mrt_hpc.training.losses import LOGIT_ELEMENTS, fuse
from mrt_hpc.training.micro_batch import MicroBatch

log = logging.getLogger(__name__)

NOT_MADE = (AttributeError, ImportError, KeyError, NotImplementedError, TypeError, ValueError)
"""What transformers raises where it cannot make a model of a configuration as it is asked to."""

NOISE = re.compile("drop|jitter")
"""What the names of configuration fields have in common that make a forward pass in training mode random."""


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
    def of(training: Training) -> "Kernels":
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
        """Where its weights are."""
        return self.model.device

    @property
    def padded_attention(self) -> str:
        """The name of the attention of padded rows."""
        chosen = self.own_attention
        return attention.CPU_ATTENTION if self.autocast and device().type == "cpu" and chosen == "sdpa" else chosen

    @property
    def own_attention(self) -> str:
        """The name of the attention that transformers chooses for the model."""
        return self.model.get_correct_attn_implementation(None)

    def pad_rows(self) -> None:
        """Compute each sequence in a row of its own from now on."""
        self.kernels = replace(self.kernels, batching=Batching.PADDED)
        self.model.set_attn_implementation(self.padded_attention)

    def in_its_precision(self) -> torch.autocast:
        """Return the context in which its matrix products have the number format of the training."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.autocast)

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
        with self.in_its_precision():
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
        """Return what the layers of the model need to know of a row of several sequences."""
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
    row_ranks: attention.RowRanks = attention.OWN_ROWS,
) -> Policy:
    """Load the policy from a Hugging Face directory. A model that cannot have sequences in one row gets padded rows,
    and a warning says so.

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
        UserError: there is no such model, its tensors are not those of the checkpoint, transformers cannot make it, the
            projection cannot be fused, or the ranks that share a row cannot have equally many heads.
    """
    config = _without_noise(model_config(directory))
    text = config.get_text_config()
    if row_ranks.parts > 1 and text.num_attention_heads % row_ranks.parts:
        raise uneven_heads(text.num_attention_heads, row_ranks.parts, str(directory))
    refuse_other_tensors(directory, config)
    dtype = torch.bfloat16 if precision is Precision.BF16 else torch.float32
    autocast = precision is Precision.BF16_AUTOCAST
    implementation = attention.PACKED_ATTENTION if kernels.in_one_row else None
    try:
        with _partitioned_when_made(partition and _with_wide_buffers(partition, config, dtype)):
            loaded, report = AutoModelForCausalLM.from_pretrained(
                directory, config=config, dtype=dtype, attn_implementation=implementation, output_loading_info=True
            )
        model = cast("PreTrainedModel", loaded)
        if implementation and not _changes_attention(model):
            raise NotImplementedError("its layers compute attention of their own, whatever they are given")
    except NOT_MADE as error:
        if implementation is None or row_ranks.parts > 1:
            raise not_made(directory, error, row_ranks.parts > 1) from error
        log.warning("%s", padded_instead(kernels.batching, f"{type(error).__name__}: {error}"))
        padded = replace(kernels, batching=Batching.PADDED)
        return load_policy(directory, temperature, precision, gradient_checkpointing, partition, padded, row_ranks)
    refuse_other_keys(report, directory)
    _freeze_as_made(model, config)
    for module in model.modules():  # some models have dropout of their own, beyond their configuration
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy = Policy(model, temperature, autocast, kernels, row_ranks)
    if not kernels.in_one_row and policy.padded_attention != policy.own_attention:
        model.set_attn_implementation(policy.padded_attention)
    return policy


def _freeze_as_made(model: PreTrainedModel, config: PretrainedConfig) -> None:
    """Freeze the parameters that the model's own code freezes: transformers forgets it while it loads a whole model."""
    frozen = {name for name, tensor in _without_data(config).named_parameters() if not tensor.requires_grad}
    for name, tensor in model.named_parameters():
        tensor.requires_grad_(name not in frozen)


def _changes_attention(model: PreTrainedModel) -> bool:
    """Whether the layers of a model compute attention as they are asked to."""
    used = model.config._attn_implementation
    model.set_attn_implementation(model.get_correct_attn_implementation(None))
    changed = model.config._attn_implementation != used
    model.set_attn_implementation(used)
    return changed


def _without_noise(config: PretrainedConfig) -> PretrainedConfig:
    """Set every probability of dropout, and every noise in a router, to 0: the policy that is trained must be the one
    that was sampled. The published configuration stays as it is. (``agreement`` shows that none is left.)
    """
    for part in {id(c): c for c in (config, config.get_text_config())}.values():
        for name, value in vars(part).items():
            if NOISE.search(name) and isinstance(value, float):
                setattr(part, name, 0.0)
    return config


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
            advice=f"ls {word(directory)} shows what is there; name a model with --set model.path=DIRECTORY",
        )
    try:
        return cast("PretrainedConfig", AutoConfig.from_pretrained(directory))
    except NOT_MADE as error:
        raise not_made(directory, error) from error


def refuse_other_tensors(directory: Path, config: PretrainedConfig) -> None:
    """Refuse a checkpoint whose tensors are not those of its model, by the headers of its files alone: transformers
    loads it, with all its renaming and merging of tensors, into a model without data.

    Raises:
        UserError: naming the tensors that are missing, unknown or of another shape; or a file is missing.
    """
    stored = {t.name: _StoredShape(t.shape, t.dtype) for file in _weights_files(directory) for t in file.tensors}
    try:
        kind = type(_without_data(config))
        _, report = kind.from_pretrained(
            None,
            config=config,
            state_dict=stored,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except NOT_MADE as error:
        raise not_made(directory, error) from error
    refuse_other_keys(report, directory)


def refuse_other_keys(report: dict[str, Any], directory: Path) -> None:
    """Refuse what transformers reports of the loading of a checkpoint unless every tensor was used and none is missing.

    Raises:
        UserError: naming the tensors.
    """
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
    """What a tensor in a file is, without its data; it has the methods by which transformers loads one."""

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


def _weights_files(directory: Path) -> list[SafetensorsFile]:
    """Return the files that transformers loads: the one of the usual name, or those that the index names.

    Raises:
        UserError: there is neither, or one is missing.
    """
    names = [SINGLE_FILE]
    if not (directory / SINGLE_FILE).is_file() and (directory / INDEX).is_file():
        names = sorted(set(json.loads((directory / INDEX).read_bytes())["weight_map"].values()))
    if missing := [name for name in names if not (directory / name).is_file()]:
        raise no_weights(directory, missing[0], str(directory))
    return [SafetensorsFile.read(directory / name) for name in names]


def padded_instead(batching: Batching, reason: str) -> str:
    """The warning that the rows of a model are padded, whatever the recipe asks for."""
    return (
        f"training.batching is padded and not {batching} for this model: it does not compute sequences that lie in one "
        f"row as it computes each alone ({reason})"
    )


def not_made(directory: Path, error: Exception, shares_rows: bool = False) -> UserError:
    """The error that transformers cannot make a model, in its words."""
    other = "--set training.sequence_parallel=1, or " if shares_rows else ""
    return UserError(
        f"transformers cannot make this model for training: {type(error).__name__}: {error}",
        where=directory,
        advice=f"{other}take another model: --set model.path=DIRECTORY",
    )


def parameter_count(directory: Path) -> int:
    """Return the number of parameters of a model, tied ones counted once, from its configuration alone."""
    return sum(p.numel() for p in _without_data(model_config(directory)).parameters())


def longest_of_model(directory: Path) -> int:
    """Return the number of tokens of the longest sequence that a model holds, by its configuration; 0 if unknown."""
    return context_length(model_config(directory).to_dict()) or 0


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
