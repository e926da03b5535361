"""The recipe's ``prover``: how the prefixes of a trace get their values. One class a prover.

All of them close the thought at a boundary, but the continuation, which lets it go on. Which quantity a prover
estimates differs: ``forced_answer`` samples whatever mu writes next, ``boxed_answer``, ``gold_likelihood`` and
``rao_blackwell`` make it begin with the answer itself.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mrt_hpc.recipe.base import Count, Positive, PositiveFloat, Section
from mrt_hpc.recipe.prompts import BOX, DEFAULT_FORCED_TEXT


class _Prover(Section):
    forced_text: str = DEFAULT_FORCED_TEXT
    """Written after the prefix: it closes the thought and starts the answer. Where prompt.thought_end is empty, the
    default is a text of the same meaning without a tag.
    """
    temperature: PositiveFloat = 0.9
    """mu's temperature, of sampled branches and of exact probabilities alike."""
    model: str | None = None
    """A Hugging Face directory of another model that serves as mu, from a server of its own; null is the policy itself.
    """
    memory_share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Of the memory for serving, and of the cores without a GPU, what the server of another model takes."""
    model_max_tokens: Positive | None = None
    """Tokens of the longest sequence that the server of another model holds; null is what the policy's holds. A
    tokenizer that cuts the same text into more tokens needs more.
    """


class _SamplingProver(_Prover):
    branches: Count = 4
    """G, branches at each boundary."""
    max_tokens: Positive = 512
    """Tokens of a branch, at most."""
    seeds: Literal["common", "independent"] = "independent"
    """Whether the branches of all boundaries of a trace share their random numbers, which makes the noise of two
    values alike, so that it cancels in their difference; each value by itself stays as it is.
    """


class ForcedAnswer(_SamplingProver):
    """mu stops the thought with a short text and samples an answer; V is the mean reward of the branches."""

    type: Literal["forced_answer"] = "forced_answer"


class _BoxedProver(_SamplingProver):
    max_tokens: Positive = 64
    """Tokens of a branch, at most."""
    box: str = BOX
    """Written after forced_text, unless that ends with it."""


class BoxedAnswer(_BoxedProver):
    r"""As forced_answer, but the answer begins inside ``\boxed{`` and ends where that closes: branches of a few
    tokens.
    """

    type: Literal["boxed_answer"] = "boxed_answer"


class LookAhead(_BoxedProver):
    """As boxed_answer, but at each token of a branch the verifier looks at what the likely next tokens would make of
    the answer, and chance is replaced by their probabilities. Costs no further tokens.
    """

    type: Literal["look_ahead"] = "look_ahead"
    likely_tokens: Annotated[int, Field(ge=1, le=64)] = 20
    """Candidates at each token, at most."""
    least_probability: Annotated[float, Field(gt=0, lt=1)] = 0.005
    """Candidates below this are not looked at."""
    planner: Literal["uniform", "by_openness"] = "uniform"
    """Whether every boundary gets G branches, or one, and further ones where its answer is still open, G on average."""


class Majority(_SamplingProver):
    """maj@p over the branches, votes weighted by mean token probability; ties count one half."""

    type: Literal["majority"] = "majority"


class Continuation(_SamplingProver):
    """No forced text: mu goes on from the prefix as it likes. The value of a step, as the backtracking data want it."""

    type: Literal["continuation"] = "continuation"
    forced_text: Literal[""] = ""
    branches: Count = 20
    """G, rollouts from each boundary."""


class GoldLikelihood(_Prover):
    r"""No sampling: the probability of the gold answer's tokens after the forced ``\boxed{``."""

    type: Literal["gold_likelihood"] = "gold_likelihood"
    box: str = BOX
    """Written after forced_text, unless that ends with it."""
    max_tokens: Positive = 64
    """Tokens of the gold answer, at most; the value of prefixes counts as 0 where it is longer."""


class RaoBlackwell(_BoxedProver):
    """Exact probabilities for answers known beforehand, branches for the rest of the mass only."""

    type: Literal["rao_blackwell"] = "rao_blackwell"
    known_answers: Positive = 8
    """Answers a problem, at most: the gold answer, and those seen most often in traces and branches before."""


AnyProver = ForcedAnswer | BoxedAnswer | LookAhead | GoldLikelihood | RaoBlackwell | Majority | Continuation
Prover = Annotated[AnyProver, Field(discriminator="type")] | None
