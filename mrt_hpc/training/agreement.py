"""Whether the policy that is trained is the model that was given and is sampled.

A few short sequences are scored in every way of the trainer, and by the model's own logits of each sequence alone; all
must agree, whatever the model's name is.
"""

import inspect
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import distributed

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.choices import Batching
from mrt_hpc.training.micro_batch import lay_out, part_of
from mrt_hpc.training.policy import Policy, padded_warning
from mrt_hpc.training.settings import TrainingSequence

log = logging.getLogger(__name__)

LENGTHS = (21, 34, 55)
"""Tokens of the scored sequences."""
COMMON = 13
EXACT_NATS = 1e-3
"""For 32 bits, the largest difference of one log-probability: rounding stays below 2e-4 in every architecture that was
tried, and faults are above 0.1 (``benchmarks/results/architectures``).
"""
ROUNDED_NATS = 0.25
"""For 16 bits, the root mean square at a temperature of 1: 0.03 to 0.06 in dense models of 28 layers with random
weights and token ids, up to 0.19 in mixtures of 128 experts, where rounding chooses other experts, and above 0.3 where
sequences mix or logits are scaled, even at a few tokens. A temperature below 1 enlarges the rounding of logits in
log-probabilities, and is taken out again.
"""
FAILURES = (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""A model raises these where it cannot compute what it is asked for."""


class ForwardCheck(Enum):
    """The comparisons with the model's own log-probabilities of each sequence alone."""

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
"""Another model helps where nothing else does."""


@dataclass(frozen=True)
class LogprobDifference:
    check: ForwardCheck
    nats: float
    """Difference of log-probabilities: the largest in 32 bits, the root mean square in 16 bits; infinite where they
    could not be computed or are not finite.
    """
    limit: float
    reason: str = ""

    @property
    def agrees(self) -> bool:
        return self.nats <= self.limit

    @property
    def fault(self) -> str:
        return "cannot be computed" if self.reason else "are not the model's own of each sequence alone"

    @property
    def advice(self) -> str:
        stage = "--set training.zero_stage=2 where it is 3 (it partitions weights), or " if self.reason else ""
        return ADVICE.get(self.check, f"{stage}take another model: --set model.path=DIRECTORY")


def differences(policy: Policy, longest: int, seed: int = 0) -> list[LogprobDifference]:
    """Compare the trainer's log-probabilities with the model's, the same on every rank. Collective. Random token ids
    need no tokenizer, and reach embeddings and experts that a text would not. ``longest`` is in tokens.
    """
    training = policy.training
    try:
        with torch.no_grad():
            ids = _draw_sequences(policy.vocabulary, seed)
            return _worst_of_all_ranks([*_Comparison(policy.train(), longest, ids).compare_all()])
    finally:
        policy.train(training)


def require_agreement(policy: Policy, longest: int, directory: Path, seed: int = 0, field: str = "model.path") -> None:
    """Refuse a model whose training would not train what is sampled; see :func:`differences`. Where only sequences in
    one row differ, warn and go on with padded rows, which every model has. Collective.
    """
    differing = differences(policy, longest, seed)
    in_rows = [difference for difference in differing if not difference.agrees]
    if policy.row_ranks.parts == 1 and {difference.check for difference in in_rows} == {ForwardCheck.IN_ONE_ROW}:
        log.warning("%s", padded_warning(policy.kernels.batching, in_rows[0].reason or f"{in_rows[0].nats:.3g} nats"))
        policy.pad_rows()
        differing = differences(policy, longest, seed)
    refuse_differences(differing, directory, field)


def refuse_differences(differing: Sequence[LogprobDifference], directory: Path, field: str = "model.path") -> None:
    """Name the first check that failed."""
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


def _draw_sequences(vocabulary: int, seed: int) -> list[torch.Tensor]:
    draw = np.random.default_rng(seed)
    ids = [draw.integers(0, vocabulary, length) for length in LENGTHS]
    ids[1][:COMMON] = ids[0][:COMMON]
    return [torch.from_numpy(i) for i in ids]


def _worst_of_all_ranks(differing: list[LogprobDifference]) -> list[LogprobDifference]:
    if not distributed.is_initialized():
        return differing
    from mrt_hpc.training.rank_messages import exchange  # imports DeepSpeed, which the first job does not need

    of_ranks = exchange([[str(difference.nats), difference.reason] for difference in differing])
    worst = []
    for difference, outcomes in zip(differing, zip(*of_ranks, strict=True), strict=True):
        reason = next((reason for _, reason in outcomes if reason), "")
        worst.append(replace(difference, nats=max(float(nats) for nats, _ in outcomes), reason=reason))
    return worst


@dataclass(frozen=True)
class _Comparison:
    policy: Policy
    longest: int
    ids: list[torch.Tensor]

    def compare_all(self) -> Iterator[LogprobDifference]:
        """All checks; each rank runs the same forward passes in the same order."""
        with _plainly(self.policy, self.policy.padded_attention):
            yield self._outcome(ForwardCheck.REPEATED, self._repeat_forward)
            yield self._outcome(ForwardCheck.HEAD, lambda: self._score_together(self.sequences[-1:]))
            yield self._outcome(ForwardCheck.PADDED, lambda: self._score_together(self.sequences))
            yield self._outcome(ForwardCheck.LONGEST, self._shift_last_token)
        if self.policy.kernels.is_one_row:
            yield self._outcome(ForwardCheck.IN_ONE_ROW, lambda: self._score_together(self.sequences))

    @cached_property
    def sequences(self) -> list[TrainingSequence]:
        """Sequences with the model's own log-probabilities in place of those at sampling."""
        sequences = []
        for ids in self.ids:
            own, tokens = self._own(ids).numpy(), ids.tolist()
            advantages, mask = np.zeros(len(own), np.float32), np.ones(len(own), bool)
            sequences.append(TrainingSequence(tokens[:1], tokens[1:], advantages, own, mask))
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
        """[W - 1] log-probabilities of all tokens but the first, from the model's own logits."""
        policy = self.policy
        place = policy.device
        options = {} if positions is None else {"position_ids": positions[None].to(place)}
        with _plainly(policy, policy.own_attention), policy.training_precision():
            logits = policy.model(input_ids=ids[None].to(place), use_cache=False, **options).logits[0, :-1]
        scores = (logits.float() / policy.temperature).log_softmax(-1)
        return scores.gather(1, ids[1:, None].to(place))[:, 0].cpu()

    def _repeat_forward(self) -> torch.Tensor:
        return self._own(self.ids[-1]) - torch.from_numpy(self.sequences[-1].behaviour_logprobs)

    def _shift_last_token(self) -> torch.Tensor:
        """The change of log-probabilities where the last token has the longest sequence's last position."""
        ids = self.ids[-1]
        if "position_ids" not in inspect.signature(self.policy.model.base_model.forward).parameters:
            return torch.zeros(0)  # such a model knows no positions beyond the tokens that are there
        positions = torch.arange(len(ids))
        positions[-1] = max(self.longest, len(ids)) - 1
        own = torch.from_numpy(self.sequences[-1].behaviour_logprobs)
        return (self._own(ids, positions) - own)[:-1]

    def _score_together(self, sequences: Sequence[TrainingSequence]) -> torch.Tensor:
        """The policy's log-probabilities in one micro-batch, less the model's own."""
        policy = self.policy
        batch = lay_out(policy.kernels.batching, sequences)
        if policy.row_ranks.parts > 1 and policy.kernels.is_one_row:
            batch = part_of(batch, policy.row_ranks.part, policy.row_ranks.parts)
        batch = batch.to(policy.device)
        return policy(batch, 1)[0] - batch.behaviour_logprobs


@contextmanager
def _plainly(policy: Policy, attention: str) -> Iterator[None]:
    """Let the policy compute padded rows with this attention."""
    kernels, used, model = policy.kernels, policy.model.config._attn_implementation, policy.model
    policy.kernels = replace(kernels, batching=Batching.PADDED)
    model.set_attn_implementation(attention)
    try:
        yield
    finally:
        policy.kernels = kernels
        model.set_attn_implementation(used)
