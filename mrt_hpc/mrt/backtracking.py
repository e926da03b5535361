"""Data for backtracking: a first attempt, back to its most promising step, and a right continuation from there (the
paper's open-ended parametrisation, without thinking tags). The page of the method has the four variants.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.mrt.rewards import is_right
from mrt_hpc.mrt.sft import ASSISTANT, USER, Conversation, Message, Suffix


class Variant(StrEnum):
    """The parts of attempt and revision that the model is shown, see above."""

    RESAMPLE = "resample"
    SHARED_PREFIX = "shared_prefix"
    NO_SHARED_PREFIX = "no_shared_prefix"
    NO_FULL_ROLLOUT = "no_full_rollout"


@dataclass(frozen=True)
class StepContinuation:
    """A rollout from a prefix of the attempt."""

    text: str
    reward: float
    whole: bool
    """Whether it came to its end: one that the limit cut would teach to stop there."""


@dataclass(frozen=True)
class Attempt:
    """A first attempt with rollouts from each of its prefixes."""

    problem_id: str
    problem: str
    steps: Sequence[str]
    """[k]"""
    ending: str
    """The text after the last step; steps and ending joined are the attempt."""
    reward: float
    continuations: Sequence[Sequence[StepContinuation]]
    """[k + 1] the rollouts from each prefix, the empty one first."""

    def values(self) -> NDArray[np.float64]:
        """[k + 1] the share of right rollouts from each prefix.

        Raises:
            ValueError: a prefix has no rollout.
        """
        if len(self.continuations) != len(self.steps) + 1 or not all(self.continuations):
            raise ValueError(f"{len(self.steps)} steps need rollouts from each of {len(self.steps) + 1} prefixes")
        return np.array([np.mean([c.reward for c in rollouts]) for rollouts in self.continuations])

    def prefix(self, boundary: int) -> str:
        """The text of the first ``boundary`` steps."""
        return "".join(self.steps[:boundary])

    def right_continuation(self, boundary: int) -> str | None:
        """The first right rollout from a prefix that came to its end."""
        return next((c.text for c in self.continuations[boundary] if is_right(c.reward) and c.whole), None)


@dataclass(frozen=True)
class Revision:
    """The text to learn from an attempt."""

    problem_id: str
    problem: str
    attempt: str
    boundary: int
    """j; the steps before it are kept."""
    revised: str


def best_boundary(values: NDArray[np.float64]) -> int:
    """The j of the greatest value; of several the last, which keeps most of the attempt.

    Source: paper, Section 6, and its experiments with backtracking.
    """
    return int(len(values) - 1 - np.argmax(values[::-1]))


def first_loss(values: NDArray[np.float64], rollouts: Sequence[int], min_loss_sigmas: float) -> int:
    """The boundary after the first step that lost more value than its noise explains; k when none did.

    The standard error of the difference between the two values of a step is that of two shares of the same underlying
    probability, sqrt(p (1 - p) (1 / n + 1 / m)), p being the share of right ones among the n + m rollouts together.

    Args:
        values: [k + 1] share of right ones among the rollouts from each prefix.
        rollouts: [k + 1] the number of these rollouts.
        min_loss_sigmas: how many standard errors a loss is larger than; 0 takes any loss.

    Source: the project's own; the variant is the paper's, and no code of it is released.
    """
    n = np.asarray(rollouts, dtype=np.float64)
    before, after = n[:-1], n[1:]
    pooled = (before * values[:-1] + after * values[1:]) / (before + after)
    errors = np.sqrt(pooled * (1 - pooled) * (1 / before + 1 / after))
    falls = np.flatnonzero(-np.diff(values) > min_loss_sigmas * errors)
    return int(falls[0]) + 1 if falls.size else len(values) - 1


def revise(attempt: Attempt, variant: Variant, *, min_loss_sigmas: float) -> Revision | None:
    """The revision of an attempt; None where the attempt is right or no rollout shows a right continuation.
    ``min_loss_sigmas``: see :func:`first_loss`.

    Source: paper, experiments with backtracking.
    """
    if is_right(attempt.reward):
        return None
    values = attempt.values()
    rollouts = [len(these) for these in attempt.continuations]
    cut = variant is Variant.NO_FULL_ROLLOUT
    end = first_loss(values, rollouts, min_loss_sigmas) if cut else len(attempt.steps)
    boundary = 0 if variant is Variant.RESAMPLE else best_boundary(values[: end + 1])
    continuation = attempt.right_continuation(boundary)
    if continuation is None:
        return None
    shown = attempt.prefix(end) + (attempt.ending if end == len(attempt.steps) else "")
    repeated = attempt.prefix(boundary) if variant is Variant.SHARED_PREFIX else ""
    return Revision(
        problem_id=attempt.problem_id,
        problem=attempt.problem,
        attempt=shown,
        boundary=boundary,
        revised=repeated + continuation,
    )


def revision_conversation(revision: Revision, backtrack: str, *, instruction: str, opening: str) -> Conversation:
    """Attempt and revision as two turns of the assistant, and between them the sentence about going back.

    Args:
        backtrack: that sentence; ``{step}`` stands for the number of steps kept.
        instruction: follows the problem, as in the prompts that the attempt was sampled from.
        opening: begins each turn of the assistant, where those prompts had it already.

    Source: the authors' code.
    """
    return Conversation(
        revision.problem_id,
        (
            Message(USER, revision.problem + instruction),
            Message(ASSISTANT, opening + revision.attempt),
            Message(USER, backtrack.format(step=revision.boundary)),
            Message(ASSISTANT, opening + revision.revised),
        ),
    )


def revision_suffix(revision: Revision, backtrack: str) -> Suffix:
    """The revision as a suffix to learn, after problem, attempt and, as a separate paragraph, the sentence between
    them.

    Source: the authors' code.
    """
    between = f"\n\n{backtrack.format(step=revision.boundary)}\n\n"
    return Suffix(revision.problem_id, revision.problem, revision.attempt + between, revision.revised)
