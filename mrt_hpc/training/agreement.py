"""Whether the policy that is trained is the model that was given and is sampled.

A few short sequences are scored in every way in which the trainer scores them, and by the model's own logits of each
sequence alone; all must agree. Before that, every tensor of the checkpoint must have found its place, and no place may
be left without one. Both look at the real thing: no list of names says which models are right.
"""

import inspect
import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import distributed, nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.choices import Batching
from mrt_hpc.training.micro_batch import lay_out, part_of
from mrt_hpc.training.policy import Policy, padded_instead
from mrt_hpc.training.settings import TrainingSequence

log = logging.getLogger(__name__)

LENGTHS = (21, 34, 55)
"""The numbers of tokens of the sequences that are scored."""
COMMON = 13
"""How many first tokens the first two of them share."""
EXACT_NATS = 1e-3
"""The largest difference in 32 bits of one log-probability: rounding stays below 2e-4 in every architecture that was
tried, and what is wrong is above 0.1 (``tests/benchmarks/results/architectures``).
"""
ROUNDED_NATS = 0.25
"""The root mean square in 16 bits, at a temperature of 1: it is 0.03 to 0.06 in dense models of 28 layers with random
weights and token ids, up to 0.19 in mixtures of 128 experts, where rounding chooses other experts, and above 0.3 where
sequences mix or logits are scaled, also where that is at a few tokens alone. Rounding is of logits: a temperature below
1 enlarges it in log-probabilities, and is taken out again.
"""
FAILURES = (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""What a model raises where it cannot compute what it is asked for."""

SMALL_VOCABULARY = 512
HEADS = r"(^|_)n(um)?_(\w+_)?heads?$"
"""How fields of configurations that are numbers of heads are named."""
MOST_LAYERS = 12
"""Layers of a small model; it has fewer where these show every kind that the pattern of its layers has."""


class ForwardCheck(Enum):
    """What is compared with the model's own log-probabilities of each sequence alone; the value says which ones."""

    REPEATED = "of one sequence in a second forward pass in training mode, as with dropout or noise in a router"
    HEAD = "of the head applied to the output of the base model, as where a model scales or caps its logits"
    PADDED = "of a sequence beside a longer one in a padded micro-batch"
    LONGEST = (
        "of tokens before one at the position of the longest sequence's last, as where the longest sequence of a "
        "micro-batch chooses the table of the rotary embedding (longrope, dynamic)"
    )
    IN_ONE_ROW = "of sequences that lie in one row"


ADVICE = {
    ForwardCheck.LONGEST: "lower sampling.max_tokens and sampling.max_prompt_tokens (algorithm.max_tokens where given "
    "samples are learnt) until the longest sequence is within "
    "original_max_position_embeddings of config.json, or take another model: --set model.path=DIRECTORY",
    ForwardCheck.IN_ONE_ROW: "--set training.sequence_parallel=1, with which micro-batches are padded for such a model",
}
"""What helps against a difference; where nothing else does, another model."""


@dataclass(frozen=True)
class LogprobDifference:
    """The outcome of one check."""

    check: ForwardCheck
    nats: float
    """The difference of the log-probabilities: the largest in 32 bits, the root mean square in 16 bits; infinite where
    they could not be computed or are not finite.
    """
    limit: float
    reason: str = ""
    """Why they could not be computed."""

    @property
    def agrees(self) -> bool:
        """Whether the difference is within the limit."""
        return self.nats <= self.limit

    @property
    def fault(self) -> str:
        """What is wrong where it is not."""
        return "cannot be computed" if self.reason else "are not the model's own of each sequence alone"

    @property
    def advice(self) -> str:
        """What helps."""
        stage = "--set training.zero_stage=2 where it is 3 (it partitions weights), or " if self.reason else ""
        return ADVICE.get(self.check, f"{stage}take another model: --set model.path=DIRECTORY")


def differences(policy: Policy, longest: int, seed: int = 0) -> list[LogprobDifference]:
    """Compare what the trainer computes with what the model computes, the same on every rank. Collective.

    The token ids are drawn from the vocabulary: this needs no tokenizer, and reaches embeddings and experts that a text
    would not.

    Args:
        policy: on its device, in the precision of the training.
        longest: tokens of the longest sequence that is trained.
        seed: of the token ids.
    """
    training = policy.training
    try:
        with torch.no_grad():
            return _worst_of_all_ranks(
                list(_Comparison(policy.train(), longest, _drawn(policy.vocabulary, seed)).made())
            )
    finally:
        policy.train(training)


def settle(policy: Policy, longest: int, directory: Path, seed: int = 0, field: str = "model.path") -> None:
    """Refuse a model whose training would not train what is sampled. Where only sequences that lie in one row differ,
    the policy goes on with padded rows, which every model has, and a warning says so. Collective.

    Args:
        policy: on its device, in the precision of the training.
        longest: tokens of the longest sequence that is trained.
        directory: of the model, for messages.
        seed: of the token ids.
        field: of the recipe that names the model.

    Raises:
        UserError: naming the first check that failed, by how much, and the field that helps.
    """
    differing = differences(policy, longest, seed)
    in_rows = [difference for difference in differing if not difference.agrees]
    if (
        policy.row_ranks.parts == 1
        and in_rows
        and all(difference.check is ForwardCheck.IN_ONE_ROW for difference in in_rows)
    ):
        log.warning("%s", padded_instead(policy.kernels.batching, in_rows[0].reason or f"{in_rows[0].nats:.3g} nats"))
        policy.pad_rows()
        differing = differences(policy, longest, seed)
    refuse_differences(differing, directory, field)


def refuse_differences(differing: Sequence[LogprobDifference], directory: Path, field: str = "model.path") -> None:
    """Refuse a model whose training would not train what is sampled.

    Raises:
        UserError: naming the first check that failed, by how much, and the field that helps.
    """
    for difference in differing:
        if not difference.agrees:
            statistic = "as root mean square" if difference.limit == ROUNDED_NATS else "for each token"
            raise UserError(
                "the trainer would not train the model that is sampled: its log-probabilities "
                f"{difference.check.value} {difference.fault}",
                value=difference.reason or f"{difference.nats:.3g} nats",
                where=f"{field}, {directory}",
                expected=f"a difference of at most {difference.limit:g} nats {statistic}",
                advice=difference.advice,
            )


def _drawn(vocabulary: int, seed: int) -> list[torch.Tensor]:
    draw = np.random.default_rng(seed)
    ids = [draw.integers(0, vocabulary, length) for length in LENGTHS]
    ids[1][:COMMON] = ids[0][:COMMON]
    return [torch.from_numpy(i) for i in ids]


def _worst_of_all_ranks(differing: list[LogprobDifference]) -> list[LogprobDifference]:
    if not distributed.is_initialized():
        return differing
    from mrt_hpc.training.rendezvous import exchange  # imports DeepSpeed, which the first job does not need

    of_ranks = exchange([[str(difference.nats), difference.reason] for difference in differing])
    return [
        replace(difference, **_worst(outcomes))
        for difference, outcomes in zip(differing, zip(*of_ranks, strict=True), strict=True)
    ]


def _worst(outcomes: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the largest of the differences of one check on all ranks, and why it could not be computed."""
    reasons = [reason for _, reason in outcomes if reason]
    return {"nats": max(float(nats) for nats, _ in outcomes), "reason": reasons[0] if reasons else ""}


@dataclass(frozen=True)
class _Comparison:
    policy: Policy
    longest: int
    ids: list[torch.Tensor]
    """The [W] token ids of each sequence."""

    def made(self) -> Iterator[LogprobDifference]:
        """Yield the outcome of every check; each rank runs the same forward passes in the same order."""
        with _plainly(self.policy, self.policy.padded_attention):
            yield self._outcome(ForwardCheck.REPEATED, self._repeated)
            yield self._outcome(ForwardCheck.HEAD, lambda: self._scored(self.sequences[-1:]))
            yield self._outcome(ForwardCheck.PADDED, lambda: self._scored(self.sequences))
            yield self._outcome(ForwardCheck.LONGEST, self._with_a_late_token)
        if self.policy.kernels.in_one_row:
            yield self._outcome(ForwardCheck.IN_ONE_ROW, lambda: self._scored(self.sequences))

    @cached_property
    def sequences(self) -> list[TrainingSequence]:
        """The sequences, each with the model's own log-probabilities in the place of those at sampling."""
        sequences = []
        for ids in self.ids:
            own, count = self._own(ids).numpy(), len(ids) - 1
            sequences.append(
                TrainingSequence(
                    ids[:1].tolist(), ids[1:].tolist(), np.zeros(count, np.float32), own, np.ones(count, bool)
                )
            )
        return sequences

    def _outcome(self, check: ForwardCheck, compute: Callable[[], torch.Tensor]) -> LogprobDifference:
        policy = self.policy
        limit = ROUNDED_NATS if policy.autocast or policy.model.dtype == torch.bfloat16 else EXACT_NATS
        try:
            gaps = compute().abs() * min(1.0, policy.temperature)
        except (torch.OutOfMemoryError, distributed.DistError):
            raise
        except UserError as error:
            return LogprobDifference(check, math.inf, limit, f"{error.what}: {error.value}")
        except FAILURES as error:
            return LogprobDifference(check, math.inf, limit, f"{type(error).__name__}: {error}")
        if not gaps.numel():  # no trained token is in this rank's part of the row
            return LogprobDifference(check, 0.0, limit)
        nats = float(gaps.square().mean().sqrt() if limit == ROUNDED_NATS else gaps.max())
        return LogprobDifference(check, nats if math.isfinite(nats) else math.inf, limit)

    def _own(self, ids: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Return the [W - 1] log-probabilities of all tokens but the first, from the model's own logits."""
        policy = self.policy
        place = policy.device
        options = {} if positions is None else {"position_ids": positions[None].to(place)}
        with _plainly(policy, policy.own_attention), policy.in_its_precision():
            logits = policy.model(input_ids=ids[None].to(place), use_cache=False, **options).logits[0, :-1]
        scores = (logits.float() / policy.temperature).log_softmax(-1)
        return scores.gather(1, ids[1:, None].to(place))[:, 0].cpu()

    def _repeated(self) -> torch.Tensor:
        return self._own(self.ids[-1]) - torch.from_numpy(self.sequences[-1].behaviour_logprobs)

    def _with_a_late_token(self) -> torch.Tensor:
        """Return the change of log-probabilities where the last token is at the position of the longest sequence's."""
        ids = self.ids[-1]
        if "position_ids" not in inspect.signature(self.policy.model.base_model.forward).parameters:
            return torch.zeros(0)  # such a model knows no positions beyond the tokens that are there
        positions = torch.arange(len(ids))
        positions[-1] = max(self.longest, len(ids)) - 1
        own = torch.from_numpy(self.sequences[-1].behaviour_logprobs)
        return (self._own(ids, positions) - own)[:-1]

    def _scored(self, sequences: Sequence[TrainingSequence]) -> torch.Tensor:
        """Return the policy's log-probabilities of these sequences in one micro-batch, less the model's own."""
        policy = self.policy
        batch = lay_out(policy.kernels.batching, sequences)
        if policy.row_ranks.parts > 1 and policy.kernels.in_one_row:
            batch = part_of(batch, policy.row_ranks.part, policy.row_ranks.parts)
        batch = batch.to(policy.device)
        return policy(batch, 1)[0] - batch.behaviour_logprobs


@contextmanager
def _plainly(policy: Policy, attention: str) -> Iterator[None]:
    """Let the policy work on padded rows in the block, with this attention."""
    kernels, used, model = policy.kernels, policy.model.config._attn_implementation, policy.model
    policy.kernels = replace(kernels, batching=Batching.PADDED)
    model.set_attn_implementation(attention)
    try:
        yield
    finally:
        policy.kernels = kernels
        model.set_attn_implementation(used)


def make_small(config: PretrainedConfig, directory: Path) -> None:
    """Write a small model of the architecture and with all options of a configuration. Its weights are random, and so
    large that what is wrong shows in log-probabilities.

    Raises:
        Exception: the class of the model does not take the small sizes; whatever it raises.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = cast("PreTrainedModel", AutoModelForCausalLM.from_config(_small(config), dtype=torch.float32))
        for matrix in (p for p in model.parameters() if p.ndim > 1):
            nn.init.normal_(matrix, std=1.5 / math.sqrt(matrix.shape[-1]))
        model.save_pretrained(directory)


def _small(config: PretrainedConfig) -> PretrainedConfig:
    """Return the configuration with fewer layers, heads, experts and tokens.

    All numbers of heads and all widths are divided by one factor, so that a width stays the product of a number of
    heads and their size, and what depends on the size of a head (rotary embeddings) stays as it is.
    """
    text = config.get_text_config()
    fields = text.to_dict()
    depth = int(text.num_hidden_layers)
    kept = min(depth, MOST_LAYERS, max(2, *(_until_all_kinds(n, v, depth) for n, v in fields.items())))
    factor = _factor(fields, int(text.hidden_size))
    small = {name: _smaller(name, value, factor, depth, kept) for name, value in fields.items()}
    return cast("PretrainedConfig", type(text).from_dict(small))


def _factor(fields: dict[str, Any], width: int) -> int:
    """Return the number by which heads and widths are divided: at least two heads are left where their number allows
    it, and a width of whole vectors.
    """
    counts = [v for n, v in fields.items() if re.search(HEADS, n) and not re.search("kv|key_value", n) and v]
    heads = math.gcd(*counts)
    left = [n for n in (*range(2, 17), 1) if heads % n == 0 and width * n // max(heads, 1) % 8 == 0]
    return heads // left[0] if heads and left else 1 if heads else 8


def _until_all_kinds(name: str, value: Any, depth: int) -> int:
    """Return the number of first layers that show every kind of layer that this field describes."""
    if isinstance(value, list | str) and len(value) == depth > 1:
        return max(value.index(kind) + 1 for kind in value)
    if isinstance(value, int) and re.search("period|interval|freq$|_step$|sliding_window_pattern", name):
        return int(value)
    return 0


def _smaller(name: str, value: Any, factor: int, depth: int, kept: int) -> Any:
    if isinstance(value, list | str) and len(value) == depth > 1:
        value = value[:kept]
    if isinstance(value, list):
        return [_smaller(name, part, factor, depth, kept) for part in value]
    if isinstance(value, dict):  # by number of the layer, in some
        return {key: part for key, part in value.items() if not str(key).isdigit() or int(key) < kept}
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    sizes = {
        "num_hidden_layers|^n_?layers?$|^num_layers$|max_window_layers": min(value, kept),
        "first_k_dense|num_dense_layers": min(value, 1),
        "vocab": min(value, SMALL_VOCABULARY),
        "token_id$": value % SMALL_VOCABULARY,
        "^n_group$|topk_group": 1,
        "per_tok|top_k|^moe_(topk|k)$": min(value, 2),
        "^(n|num|moe)_.*experts$": min(value, 4),
        HEADS: max(1, value // factor),
        "intermediate|ffn|n_inner": -(-value // (8 * factor)) * 8,
        "hidden_size|n_embd|d_model|n_groups|d_ssm": max(1, value // factor),
    }
    return next((size for pattern, size in sizes.items() if re.search(pattern, name)), value)
