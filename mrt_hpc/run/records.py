"""The records that pass through the run directory: problems, rollouts and branches.

At each boundary of a `Rollout` the prover draws `Branch`es or gives the `AnswerProbability` of known answers;
`PrefixValue` is V_j as estimated from them. Progress, the difference of two values, is not stored.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from mrt_hpc.run.typed_file import Whole

SLIGHTLY_ABOVE_ONE = 1e-3
"""Rounding may raise a log-probability slightly above 0."""


class FinishReason(StrEnum):
    STOP = "stop"
    """The model wrote its stop token, the last of the token ids."""
    LENGTH = "length"
    """The token limit cut it off."""


Gold = str | tuple[str, ...]
"""A gold answer; or several, any of which is right."""


def golds_of(gold: Gold) -> tuple[str, ...]:
    return (gold,) if isinstance(gold, str) else gold


def gold_text(gold: Gold) -> str:
    """The gold answers as people read them."""
    return " or ".join(golds_of(gold))


@dataclass(frozen=True)
class Problem:
    """One problem x with its gold answer or answers."""

    id: str
    problem: str
    answer: Gold


@dataclass(frozen=True)
class Rollout:
    """One trace sampled by the policy.

    Lengths: T sampled tokens; k episodes, k + 1 boundaries. Episode z_j is ``token_ids[boundaries[j]:boundaries[j +
    1]]``.
    """

    iteration: int
    problem_id: str
    sample: int
    """Index within the group of the problem."""
    seed: int
    weights_version: int
    """The version that sampled the first token: the oldest, where several sampled."""
    prompt_ids: list[int]
    """The prompt, then a prefix and forced text if any."""
    forced: int
    """Tokens of the prover's text at the end of ``prompt_ids``; 0 for a rollout that continued to think."""
    token_ids: list[int]
    """[T], with the stop token last where ``finish_reason`` is STOP."""
    logprobs: list[float]
    """[T] natural logarithms, temperature applied; 0 for an inserted token."""
    finish_reason: FinishReason
    text: str
    answer: str | None
    """The final answer, None when there is none."""
    reward: float
    """r(x, z), in [0, 1], 1 when the answer is right; 0 where the verifier could not judge it."""
    boundaries: list[int]
    """[k + 1] token offsets, from 0 to the end of the thought (of the trace, where the limit cut it)."""
    started: float
    """Seconds since the epoch, by the clock of the node that sampled."""
    seconds: float
    """From sending the request to its last token."""
    inserted: list[list[int]] = field(default_factory=list)
    """First index and length of each stretch of ``token_ids`` that a way of evaluating inserted, ascending."""
    stage: int = 0
    """This rollout's place in its sample: a round of revision, or a budget."""
    stages: int = 1
    """Rollouts of its sample; ``sample`` counts the stages of all samples of the problem through."""
    later_weights: list[list[int]] = field(default_factory=list)
    """Pairs of token index and version: from that token on this version sampled, ascending. Empty where
    ``weights_version`` sampled all.
    """
    credit_bounds: list[int] = field(default_factory=list)
    """[k + 1] token offsets: ``token_ids[credit_bounds[j]:credit_bounds[j + 1]]`` gets the credit of episode z_j. See
    :func:`mrt_hpc.mrt.episodes.credit_bounds`. Empty in groups of earlier versions, which credited ``boundaries``.
    """
    judged: bool = True
    """False where the verifier could not judge it, or any branch of a boundary: it is not learnt."""
    reward_parts: list[float] = field(default_factory=list)
    """The rewards that ``reward`` is the weighted sum of, if it is one."""

    @property
    def right(self) -> bool:
        from mrt_hpc.mrt.rewards import is_right  # numpy, which commands that only look do without

        return is_right(self.reward, self.reward_parts)

    @property
    def counts(self) -> bool:
        """Whether this rollout is its sample's result: the last stage."""
        return self.stage == self.stages - 1

    @property
    def tokens(self) -> int:
        return len(self.token_ids)

    @property
    def sampled_tokens(self) -> int:
        return len(self.token_ids) - sum(length for _, length in self.inserted)

    @property
    def credited(self) -> list[int]:
        """[k + 1] token offsets between which the episodes are credited."""
        return self.credit_bounds or self.boundaries

    def prefix(self, boundary: int) -> list[int]:
        """The sampled tokens of the first j episodes."""
        return self.token_ids[: self.boundaries[boundary]]


@dataclass(frozen=True)
class Branch:
    """One completion of the prover mu from the prefix c_j of a rollout."""

    iteration: int
    problem_id: str
    sample: int
    """The rollout's index within its group."""
    boundary: int
    """j: the prefix is the first j episodes."""
    branch: int
    """Index within the G branches of this prefix."""
    seed: int
    weights_version: int
    token_ids: list[int]
    """Sampled by mu after the forced tokens."""
    logprobs: list[float]
    finish_reason: FinishReason
    text: str
    """The graded text: the forced answer start and what mu sampled."""
    answer: str | None
    reward: float
    known: bool
    """Whether its answer's probability was looked up beforehand."""
    look_ahead: float
    """Correction of its reward by looking ahead, zero on average; 0 if the prover does not look ahead."""
    prompt_tokens: int
    """Of problem, prefix and forced tokens together."""
    cached_tokens: int | None
    """Prompt tokens in the server's prefix cache; None if not reported."""
    later_weights: list[list[int]] = field(default_factory=list)
    """See :class:`Rollout`."""
    judged: bool = True
    """A value is made of those that could be judged."""

    @property
    def tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class AnswerProbability:
    """The probability under mu of a known answer, from the prefix c_j of a rollout."""

    iteration: int
    problem_id: str
    sample: int
    boundary: int
    answer: str
    probability: float
    """Of the answer and the end of its box, over the counted tokenisations, mu's temperature applied."""
    reward: float
    judged: bool = True
    """See :class:`Branch`."""


@dataclass(frozen=True)
class PrefixValue:
    """The estimated V of the prefix c_j of a rollout."""

    iteration: int
    problem_id: str
    sample: int
    boundary: int
    value: float
    variance: float
    """Over its branches; NaN where a single branch shows nothing."""
    progress_variance: float
    """Of the difference to the boundary asked about before; NaN where unknown."""
    branches: int
    """How many were drawn."""
    baseline: float
    """b, the expected reward of an unknown answer; 0 where unused."""


@dataclass(frozen=True)
class GroupStatistics:
    """The cost of one group."""

    rollouts: Whole
    branches: Whole
    rollout_tokens: Whole
    branch_tokens: Whole
    """Tokens of the branches, and one for each look at a probability."""
    prompt_tokens: Whole
    """Of branches and looks: problem, prefix and forced text."""
    cached_tokens: Whole
    """Those from the server's prefix cache."""
    prefilled_tokens: Whole
    """Prompt tokens in no prefix cache: of rollouts, branches and looks."""
    seconds: dict[str, Annotated[float, Meta(ge=0, le=1e11)]]
    """Wall time of the sampling task by phase (waiting, loading, generation with branching, grading), from its last
    look at the previous iteration to the end of this group.
    """
    thrown_groups: Whole = 0
    """Groups that were sampled in this place before, and thrown away; all other numbers include them."""
    thrown_tokens: Whole = 0
    """Their sampled tokens, branches included."""

    @property
    def tokens(self) -> int:
        return self.rollout_tokens + self.branch_tokens
