"""The recipe's ``algorithm``: what is sampled for an update, and what it is paid for. One class an algorithm.

What an algorithm samples decides which jobs a run has: rollouts of every iteration (``samples_rollouts``), traces of
weights version 0 before the first (``collects``), and of later versions where these are refreshed, or nothing, where
samples are given as a file.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from mrt_hpc.recipe.base import Count, Positive, Section
from mrt_hpc.recipe.prompts import DEFAULT_BACKTRACK


class _Algorithm(Section):
    """What every algorithm tells of the traces that it starts from."""

    samples_rollouts: ClassVar[bool]
    collects: ClassVar[bool] = False

    def traces_version(self, iteration: int) -> int:  # noqa: ARG002 - some are refreshed
        """The weights version whose traces an iteration starts from, where it starts from any."""
        return 0

    def traces_versions(self, iterations: int) -> range:  # noqa: ARG002 - some are refreshed
        """The weights versions that sample traces for a run of so many iterations to start from."""
        return range(1 if self.collects else 0)


class Refreshed(_Algorithm):
    """Starts from traces that may be sampled again by later weights."""

    collects: ClassVar[bool] = True
    refresh_every: Positive | None = None
    """Iterations after which all traces that training starts from are sampled again, by the weights of that iteration;
    null samples them once, by weights version 0. It is a multiple of
    schedule.iterations_per_job. Training goes on from the weights and the optimiser state that it has, and the
    reference of training.kl_coefficient stays weights version 0.
    """

    def traces_version(self, iteration: int) -> int:
        """The weights version whose traces an iteration starts from."""
        return 0 if self.refresh_every is None else iteration - iteration % self.refresh_every

    def traces_versions(self, iterations: int) -> range:
        """The weights versions that sample traces for a run of so many iterations to start from."""
        return range(0, iterations, self.refresh_every or iterations)


class _RolloutAlgorithm(_Algorithm):
    """Learns from rollouts of the policy under training."""

    samples_rollouts: ClassVar[bool] = True


class Grpo(_RolloutAlgorithm):
    """Outcome reward only, compared within the group of a problem."""

    type: Literal["grpo"] = "grpo"
    divide_by_std: bool = True
    """Divide by the group's standard deviation; false is Dr. GRPO's form."""


class LengthPenalty(_RolloutAlgorithm):
    """GRPO on an outcome reward that pays right answers less the longer they are, against the problem's other right
    answers.
    """

    type: Literal["length_penalty"] = "length_penalty"
    coefficient: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """What an endlessly long right answer loses of its reward."""
    divide_by_std: bool = False
    """Divide by the group's standard deviation. In a group whose answers are all right the coefficient then cancels: a
    small one shortens answers as much as a large one.
    """


class Mrt(_RolloutAlgorithm, Refreshed):
    """The paper's offline form: rollouts from a prefix of a stale trace, half going on, half forced to answer."""

    type: Literal["mrt"] = "mrt"
    alpha: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the bonus against the outcome."""
    bonus: Literal["end_of_trace", "next_episode"] = "end_of_trace"
    """What alpha multiplies: the reward less the prefix's value (the authors' code), or the value that the first new
    episode reaches less the prefix's (the paper's equation), which takes branches at its end.
    """
    baseline: Literal["group", "termination"] = "group"
    """What a reward is compared with: the mean of the rollouts that went on, with the bonus on top; or the prefix's
    value alone, without a bonus.
    """
    train_terminated: bool = False
    """Learn also from the forced half: its answers, and the choice to stop against the choice to go on. The forced
    closing tags then count in the mismatch metrics as well, with the policy's probability of stopping.
    """
    divide_by_std: bool = False
    """Divide the outcome part by the group's standard deviation."""


class MrtOnline(_RolloutAlgorithm):
    """On-policy traces; each episode's tokens get the outcome advantage plus alpha times the episode's progress."""

    type: Literal["mrt_online"] = "mrt_online"
    alpha: Annotated[float, Field(ge=0)] = 1.0
    """Weight of progress against outcome."""
    divide_by_std: bool = True
    """Divide the outcome advantage by the group's standard deviation."""
    normalise_progress: bool = False
    """Centre and scale progress over the batch before it is weighted."""
    train_branches: bool = False
    """Learn also from the branches, each against the others at its boundary, where some are right and some are wrong.
    Nothing more is sampled; the trainer computes each as a sequence of its own, prefix included.
    """


class SupervisedAlgorithm(_Algorithm):
    """Maximises the likelihood of given or selected samples."""

    samples_rollouts: ClassVar[bool] = False
    sequences_per_iteration: Count
    """Samples of an iteration, drawn without repetition until all have been used."""
    max_tokens: Positive = 16384
    """Tokens of a sample, prompt included; longer ones are left out, and counted in the log."""


class Star(SupervisedAlgorithm, Refreshed):
    """Learn the right ones of ``sampling.rollouts_per_problem`` traces that the starting policy sampled."""

    type: Literal["star"] = "star"
    keep: Positive | None = None
    """Traces a problem, at most; null keeps all right ones."""


class MrtStar(SupervisedAlgorithm, Refreshed):
    """As star, but only traces whose episodes make progress, cut after the episode that first reaches the highest
    value.
    """

    type: Literal["mrt_star"] = "mrt_star"
    keep: Positive | None = None
    """Traces a problem, at most: those of greatest total positive progress; null keeps all."""
    threshold: Annotated[float, Field(ge=-1, le=1)] = -0.25
    """A trace with an episode whose progress lies below this is dropped."""


class Backtracking(SupervisedAlgorithm):
    """Learn to go back: an attempt of the starting policy, the step of highest value, a right continuation from
    there.
    """

    type: Literal["backtracking"] = "backtracking"
    collects: ClassVar[bool] = True
    variant: Literal["resample", "shared_prefix", "no_shared_prefix", "no_full_rollout"] = "shared_prefix"
    """What is shown of attempt and revision: start again; repeat the shared steps; go on without repeating them; stop
    the attempt where it first lost value.
    """
    min_loss_sigmas: Annotated[float, Field(ge=0)] = 3.0
    """How many standard errors of the difference between two values a step's loss of value is larger than, for variant
    no_full_rollout to stop the attempt there; 0 takes any loss. With fewer than 5 rollouts from a step no loss is as
    large as 3.
    """
    emit: Literal["conversations", "suffixes"] = "suffixes"
    """Learn attempt and revision as turns of a conversation, or the revision alone."""
    backtrack_text: str = DEFAULT_BACKTRACK
    """Stands between attempt and revision; {step} is the number of steps kept."""


class SftConversations(SupervisedAlgorithm):
    """Learn every turn of the assistant in given conversations, see ``data``."""

    type: Literal["sft_conversations"] = "sft_conversations"


class SftSuffix(SupervisedAlgorithm):
    """Learn a suffix, given the problem and a prefix that another model wrote, see ``data``."""

    type: Literal["sft_suffix"] = "sft_suffix"


Algorithm = Annotated[
    Grpo | LengthPenalty | Mrt | MrtOnline | Star | MrtStar | Backtracking | SftConversations | SftSuffix,
    Field(discriminator="type"),
]
