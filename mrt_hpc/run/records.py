"""The records that pass through the run directory: problems, rollouts and branches.

A `Rollout` is a trace with its tokens, its reward and the boundaries of its episodes. At the boundaries the prover
draws a `Branch` each time, or gives the `AnswerProbability` of answers that are known; `PrefixValue` is V_j as it was
estimated from them. The inference role writes them, a group at a time (:mod:`mrt_hpc.run.groups`); the trainer and the
report read them. Progress is not stored: it is the difference of two values (:mod:`mrt_hpc.mrt.progress`).
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from mrt_hpc.run.typed_file import Whole

SLIGHTLY_ABOVE_ONE = 1e-3
"""The tolerance for the logarithm of a probability, which rounding may raise slightly above 0."""


class FinishReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"
    """The model wrote its stop token, which is the last of the token ids."""
    LENGTH = "length"
    """The token limit cut it off."""


Gold = str | tuple[str, ...]
"""A gold answer; or two and more, where any one of them is right."""


def golds_of(gold: Gold) -> tuple[str, ...]:
    """Each gold answer."""
    return (gold,) if isinstance(gold, str) else gold


def gold_text(gold: Gold) -> str:
    """The gold answers as people read them."""
    return " or ".join(golds_of(gold))


@dataclass(frozen=True)
class Problem:
    """One problem x with its gold answer, or with several."""

    id: str
    problem: str
    answer: Gold


@dataclass(frozen=True)
class Rollout:
    """One trace sampled by the policy, with all that the trainer needs to learn from it.

    Lengths: T sampled tokens; k episodes, k + 1 boundaries. Episode z_j is ``token_ids[boundaries[j]:boundaries[j +
    1]]``.
    """

    iteration: int
    problem_id: str
    sample: int
    """Index within the group of the problem."""
    seed: int
    weights_version: int
    """The weights version that sampled the first token: the oldest, where several have sampled it."""
    prompt_ids: list[int]
    """The tokens before the sampled ones: the prompt, then a prefix and forced text if there are any."""
    forced: int
    """The number of tokens of the prover's text at the end of ``prompt_ids``; 0 for a rollout that continued to think.
    """
    token_ids: list[int]
    """[T], with the stop token last where ``finish_reason`` is STOP."""
    logprobs: list[float]
    """[T], natural logarithm, of the distribution sampled from (temperature applied); 0 for an inserted token."""
    finish_reason: FinishReason
    text: str
    answer: str | None
    """The final answer found in the text, None when there is none."""
    reward: float
    """r(x, z): 1 when the answer is right, else 0."""
    boundaries: list[int]
    """[k + 1] token offsets, from 0 to the end of the thought (of the trace, where the limit cut the thought)."""
    started: float
    """Seconds since the epoch, by the clock of the node that sampled."""
    seconds: float
    """The seconds from sending the request to its last token."""
    inserted: list[list[int]] = field(default_factory=list)
    """The first index and the number of tokens of each stretch of ``token_ids`` that a way of evaluating has inserted,
    in ascending order. All other tokens were sampled.
    """
    stage: int = 0
    """The number of this rollout among those of its sample: a round of revision, or a budget."""
    stages: int = 1
    """The number of rollouts of its sample; ``sample`` counts the stages of all samples of the problem through."""
    later_weights: list[list[int]] = field(default_factory=list)
    """The index of a token and a weights version: that version sampled this token and those after it, in ascending
    order. Empty where ``weights_version`` has sampled all tokens.
    """

    @property
    def counts(self) -> bool:
        """Whether this rollout is the result of its sample: the last of its stages."""
        return self.stage == self.stages - 1

    @property
    def tokens(self) -> int:
        """T, the number of tokens."""
        return len(self.token_ids)

    @property
    def sampled_tokens(self) -> int:
        """The number of tokens that the model has sampled."""
        return len(self.token_ids) - sum(length for _, length in self.inserted)

    def prefix(self, boundary: int) -> list[int]:
        """The sampled tokens before boundary j: the first j episodes."""
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
    """The tokens that mu sampled after the forced tokens."""
    logprobs: list[float]
    finish_reason: FinishReason
    text: str
    """The forced answer start with what mu sampled after it: the text that is graded."""
    answer: str | None
    reward: float
    known: bool
    """Whether it is among the answers whose probability was looked up beforehand."""
    look_ahead: float
    """The correction of its reward by looking ahead at its tokens, zero on average; 0 if the prover does not look
    ahead.
    """
    prompt_tokens: int
    """Length of problem, prefix and forced tokens together."""
    cached_tokens: int | None
    """The number of these tokens that the server had in its prefix cache; None if it did not report it."""
    later_weights: list[list[int]] = field(default_factory=list)
    """See :class:`Rollout`."""

    @property
    def tokens(self) -> int:
        """The number of tokens that mu sampled."""
        return len(self.token_ids)


@dataclass(frozen=True)
class AnswerProbability:
    """The probability that mu gives to an answer known before the branches, from the prefix c_j of a rollout."""

    iteration: int
    problem_id: str
    sample: int
    boundary: int
    answer: str
    probability: float
    """The probability of the answer and the end of its box, over the counted tokenisations, mu's temperature applied.
    """
    reward: float


@dataclass(frozen=True)
class PrefixValue:
    """V of the prefix c_j of a rollout, as it was estimated."""

    iteration: int
    problem_id: str
    sample: int
    boundary: int
    value: float
    variance: float
    """The variance of the estimate over its branches; NaN where a single branch shows nothing."""
    progress_variance: float
    """The variance of its difference to the value of the boundary asked about before it; NaN where that is not known.
    """
    branches: int
    """The number of branches that were drawn."""
    baseline: float
    """b, the reward expected of an answer not known beforehand; 0 where the prover does not use it."""


@dataclass(frozen=True)
class GroupStatistics:
    """The cost of one group of rollouts and branches."""

    rollouts: Whole
    branches: Whole
    rollout_tokens: Whole
    """Sampled tokens of the rollouts."""
    branch_tokens: Whole
    """Sampled for the prover: tokens of the branches, and one for each look at a probability."""
    prompt_tokens: Whole
    """Prompt tokens of branches and looks: problem, prefix and forced text."""
    cached_tokens: Whole
    """The number of these that came from the server's prefix cache."""
    prefilled_tokens: Whole
    """Prompt tokens that were in no prefix cache: of the rollouts, the branches and the looks."""
    seconds: dict[str, Annotated[float, Meta(ge=0, le=1e11)]]
    """Wall time of the task that sampled it, from its last look at the previous iteration to the moment this group was
    finished, by phase: waiting, loading, generation (branching included), grading.
    """
