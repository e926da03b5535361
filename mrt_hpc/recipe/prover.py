"""The part of a prover that the lower layers need: its fields in a recipe, its uses, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from mrt_hpc.recipe.base import PathText, Section, Temperature, Tokens
from mrt_hpc.recipe.prompts import DEFAULT_FORCED_TEXT

if TYPE_CHECKING:
    from mrt_hpc.recipe.schema import Recipe


class ProverSettings(Section):
    """The fields of every prover. Subclasses add a ``type``, fields of their own, and what they ask and estimate."""

    samples_answers: ClassVar[bool] = True
    """Whether the prover samples answers (branches), so that a right one can be learnt or shown."""
    thinks_on: ClassVar[bool] = False
    """Whether branches continue the thought, so that they answer only after it has ended."""
    answers_freely: ClassVar[bool] = False
    """Whether a branch is a rollout that was forced to answer and continues freely from there."""
    rewards_each_branch: ClassVar[bool] = False
    """Whether each branch is an answer of its own whose reward can be learnt."""
    values_stopping: ClassVar[bool] = True
    """Whether V is the probability that stopping at the boundary answers right, which regret is made of."""

    opens_box: ClassVar[bool] = False
    """Whether the answer is made to begin inside a box."""

    if TYPE_CHECKING:
        type: str
        max_tokens: int

    forced_text: str = DEFAULT_FORCED_TEXT
    """The text that is written after the prefix: it closes the thought and starts the answer. Where prompt.thought_end
    is empty, the default is a text of the same meaning without a tag.
    """
    temperature: Temperature = 0.9
    """The temperature of mu, for sampled branches and for exact probabilities alike."""
    model: PathText | None = None
    """The Hugging Face directory of another model that serves as mu, on a server of its own, or its name
    ``hub:OWNER/NAME@REVISION``; null takes the policy itself.
    """
    memory_share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """The share of the memory for serving, and of the cores without a GPU, that the server of another model takes."""
    model_max_tokens: Tokens | None = None
    """Tokens of the longest sequence that the server of another model holds; null takes what the policy's server holds.
    A tokenizer that cuts the same text into more tokens needs more.
    """

    @property
    def question(self) -> str:
        """The whole text that is written after a prefix."""
        return self.forced_text

    @property
    def shares_seeds(self) -> bool:
        """Whether the branches of all boundaries of a trace share their random numbers."""
        return False

    @property
    def branches_per_boundary(self) -> int:
        """G; 1 where the prover samples no branch, as one request a boundary costs about as much."""
        return 1

    def check(self, recipe: Recipe) -> None:
        """Refuse fields of the prover that contradict each other or the recipe.

        Raises:
            PydanticCustomError: see :func:`mrt_hpc.recipe.base.misfit`.
        """
