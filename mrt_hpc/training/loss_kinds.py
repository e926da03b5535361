"""The losses of the policy gradient, each a section of the recipe. A loss says what a token adds to the objective.

To add one, write a subclass of ``Loss`` and add its name to :data:`mrt_hpc.recipe.kinds.LOSSES`; or name a class of
any module in the recipe as ``training: {loss: {type: my_module:MyLoss}}``. This module imports no torch: recipes are
checked without it.

With the policies of ``losses``: rho = pi / pi_old, w = min(pi_old / mu, importance_cap) without gradient, and sg()
passes no gradient on.
"""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.kinds import LossSettings
from mrt_hpc.recipe.sections import Training

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_LOG_WEIGHT = 20.0
"""Greater log-weights are set to it: e^20 is far above any cap, yet finite in sums and logs."""


@dataclass(frozen=True)
class LossTokens:
    """The trained tokens of one micro-batch. The gradient is that of ``logprobs`` alone."""

    logprobs: "Tensor"
    """[S] log pi, with gradient; temperature applied, as in the others."""
    old_logprobs: "Tensor"
    """[S] log pi_old."""
    behaviour_logprobs: "Tensor"
    """[S] log mu."""
    advantages: "Tensor"
    """[S]"""
    sequences: "Tensor"
    """[S] int64, a number below S for each sequence. Tokens of one sequence need not lie side by side."""
    sequence_tokens: "Tensor"
    """[S] float32, the number of trained tokens of each token's sequence."""
    training: Training
    """The fields that losses share: clip_low, clip_high, importance_cap."""

    @cached_property
    def ratio(self) -> "Tensor":
        """[S] rho, with gradient."""
        return (self.logprobs - self.old_logprobs).exp()

    @cached_property
    def mismatch(self) -> "Tensor":
        """[S] pi_old / mu before truncation."""
        return (self.old_logprobs - self.behaviour_logprobs).clamp(max=LARGEST_LOG_WEIGHT).exp()

    @cached_property
    def weight(self) -> "Tensor":
        """[S] w."""
        return self.mismatch.clamp(max=self.training.importance_cap)

    @property
    def entropy(self) -> "Tensor":
        """Refused: there is none with a gradient."""
        raise UserError(
            "a loss gets no entropy: the trainer measures it without a gradient, which would need all logits of a "
            "micro-batch",
            expected="a loss of log-probabilities and advantages",
            advice="take a higher training.clip_high, which lets rare tokens become likelier",
        )

    def clip(self, ratio: "Tensor") -> "Tensor":
        """[S] between 1 - clip_low and 1 + clip_high."""
        return ratio.clamp(1.0 - self.training.clip_low, 1.0 + self.training.clip_high)

    def surrogate(self, ratio: "Tensor") -> "Tensor":
        """[S] PPO's pessimistic objective: the smaller of the clipped and the unclipped one."""
        return (ratio * self.advantages).minimum(self.clip(ratio) * self.advantages)

    def is_clipped(self, ratio: "Tensor") -> "Tensor":
        """[S] bool, whether ``surrogate`` has no gradient there."""
        return self.clip(ratio) * self.advantages < ratio * self.advantages

    def sequence_mean(self, values: "Tensor") -> "Tensor":
        """[S] the mean of [S] values over the trained tokens of each token's sequence. A loss that calls it says
        ``whole_sequences = True``.
        """
        sums = values.new_zeros(len(values)).index_add(0, self.sequences, values)
        return sums[self.sequences] / self.sequence_tokens


class Loss(LossSettings):
    @abstractmethod
    def objective(self, tokens: LossTokens) -> "Tensor":
        """[S] what is maximised, token by token; a token that is masked has 0, and stays in the divisor. It has a
        gradient by ``tokens.logprobs`` alone, and none where a sequence has no advantage but 0: such sequences are not
        computed. Whatever tokens share a micro-batch, each has the same.
        """

    def bounds(self, tokens: LossTokens) -> "Tensor":
        """[S] bool, the tokens whose gradient the loss bounds, for ``clip_fraction``."""
        return tokens.is_clipped(tokens.ratio)


class Clipped(Loss):
    """w min(rho A, clip(rho) A): the gradient of a token ends where the ratio has left the clip in the direction of the
    advantage.

    Source: Schulman et al. (2017), with truncated importance weights.
    """

    type: Literal["clipped"] = "clipped"

    def objective(self, tokens: LossTokens) -> "Tensor":
        return tokens.weight * tokens.surrogate(tokens.ratio)


class Cispo(Loss):
    """w sg(clip(rho)) A log pi: the ratio is clipped, and every token keeps its gradient.

    Source: MiniMax-M1 (arXiv 2506.13585).
    """

    type: Literal["cispo"] = "cispo"

    def objective(self, tokens: LossTokens) -> "Tensor":
        return (tokens.weight * tokens.clip(tokens.ratio)).detach() * tokens.advantages * tokens.logprobs

    def bounds(self, tokens: LossTokens) -> "Tensor":
        """Where the ratio is clipped, on either side."""
        return tokens.clip(tokens.ratio) != tokens.ratio


class Dppo(Loss):
    """sg(min(pi / mu, importance_cap)) A log pi, and 0 where the probability of the token is further than
    ``divergence`` from that of sampling and the advantage would take it further.

    Source: Divergence PPO with binary total variation (arXiv 2602.04879).
    """

    type: Literal["dppo"] = "dppo"
    divergence: Annotated[float, Field(gt=0, le=1)] = 0.15
    """The largest difference of a token's probability from that of sampling, beyond which no update takes it further.
    The default is that of verl's script for this loss; others take 0.1 to 0.2.
    """

    def objective(self, tokens: LossTokens) -> "Tensor":
        ratio = (tokens.logprobs.detach() - tokens.behaviour_logprobs).exp().clamp(max=tokens.training.importance_cap)
        return (ratio * tokens.advantages * tokens.logprobs).where(~self.bounds(tokens), 0.0)

    def bounds(self, tokens: LossTokens) -> "Tensor":
        moved = tokens.logprobs.detach().exp() - tokens.behaviour_logprobs.exp()
        return (moved.abs() > self.divergence) & (moved * tokens.advantages > 0)


class GspoToken(Loss):
    """w min(s A, clip(s) A) with s = sg(s_i) pi / sg(pi), where s_i is the geometric mean of rho over the sequence: a
    sequence is clipped as a whole, and each token keeps its own advantage. Its clips are usually far narrower than
    those of a token: 0.0003 and 0.0004 in the paper.

    Source: the token variant of GSPO (arXiv 2507.18071).
    """

    whole_sequences: ClassVar[bool] = True
    type: Literal["gspo_token"] = "gspo_token"

    def objective(self, tokens: LossTokens) -> "Tensor":
        return tokens.weight * tokens.surrogate(self.sequence_ratio(tokens))

    def bounds(self, tokens: LossTokens) -> "Tensor":
        return tokens.is_clipped(self.sequence_ratio(tokens))

    def sequence_ratio(self, tokens: LossTokens) -> "Tensor":
        """[S] s_i in value, with the gradient of each token's own log pi."""
        mean = tokens.sequence_mean((tokens.logprobs - tokens.old_logprobs).detach())
        return mean.exp() * (tokens.logprobs - tokens.logprobs.detach()).exp()


class Masked(Loss):
    """As ``clipped`` with the whole weight pi_old / mu where it lies between ``low`` and ``high``, and 0 elsewhere.

    Source: IcePop, masked importance sampling.
    """

    type: Literal["masked"] = "masked"
    low: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The smallest importance weight of a token that is learnt."""
    high: Annotated[float, Field(ge=1, le=1e6)] = 5.0
    """The largest importance weight of a token that is learnt; ``importance_cap`` truncates none of them."""

    def objective(self, tokens: LossTokens) -> "Tensor":
        return (tokens.mismatch * tokens.surrogate(tokens.ratio)).where(self._is_learnt(tokens), 0.0)

    def bounds(self, tokens: LossTokens) -> "Tensor":
        return super().bounds(tokens) | ~self._is_learnt(tokens)

    def _is_learnt(self, tokens: LossTokens) -> "Tensor":
        return (tokens.mismatch >= self.low) & (tokens.mismatch <= self.high)
