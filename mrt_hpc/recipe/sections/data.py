"""The training problems, or the given samples of supervised training."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from mrt_hpc.recipe.base import Count, Items, PathText, Section
from mrt_hpc.recipe.extraction import Extraction
from mrt_hpc.recipe.registry import VERIFIERS
from mrt_hpc.recipe.verifier import VerifierSettings


class ProblemSource(Section):
    """Problems with gold answers."""

    form: ClassVar[str] = "problems"
    verifier: Annotated[VerifierSettings, VERIFIERS] | None = None
    """The verifier decides whether an answer is right; null is ``{type: math}``. A name alone is a verifier without
    further settings, as in ``verifier: choice``. ``module:function`` is a function of your own, of answer and gold
    answer, that returns true or false.
    """
    extraction: Extraction | None = None
    """The rule that finds the answer in a completion. ``after_thought`` takes the last box after the thought.
    ``any_box`` takes the last closed box anywhere, in the thought too. ``last_mathematics`` takes the last box after
    the thought, and where there is none the last formula or number. Null is after_thought. By any rule a completion
    without thinking tags has no answer if the token limit cut it.
    """


class JsonlProblems(ProblemSource):
    """Problems from a file of JSON lines, each with "id", "problem" and "answer"."""

    type: Literal["jsonl"] = "jsonl"
    path: PathText
    """The path of the file. A relative path starts at the recipe's folder."""
    limit: Items | None = None
    """The number of problems to use, from the beginning of the file; null uses all."""


class SmallWorldProblems(ProblemSource):
    """Problems of the embedded small world."""

    type: Literal["small_world"] = "small_world"
    split: Literal["train", "held_out"] = "train"
    """The split that the problems are from. The two splits share no problem."""
    problems: Items | None = None
    """The number of problems to use; null uses all problems of the split."""


Problems = Annotated[JsonlProblems | SmallWorldProblems, Field(discriminator="type")]


class Conversations(Section):
    """Conversations for supervised training, from a file of JSON lines, each with "id" and "messages", a list of
    objects with "role" and "content".
    """

    form: ClassVar[str] = "conversations"
    type: Literal["conversations"] = "conversations"
    path: PathText
    """The path of the file. A relative path starts at the recipe's folder."""
    limit: Items | None = None
    """The number of conversations to use, from the beginning of the file; null uses all."""


class Suffixes(Section):
    """Suffixes for supervised training, from a file of JSON lines, each with "id", "problem", "prefix" and "suffix"."""

    form: ClassVar[str] = "suffixes"
    type: Literal["suffixes"] = "suffixes"
    path: PathText
    """The path of the file. A relative path starts at the recipe's folder."""
    limit: Items | None = None
    """The number of suffixes to use, from the beginning of the file; null uses all."""


class SmallWorldSamples(Section):
    """Supervised samples of the embedded small world."""

    type: Literal["small_world_samples"] = "small_world_samples"
    form: Literal["conversations", "suffixes"]
    """The form of the samples: conversations are whole solutions, suffixes are a careless beginning with a patient
    rest.
    """
    samples: Count
    """The number of samples."""


TrainingData = Annotated[
    JsonlProblems | SmallWorldProblems | Conversations | Suffixes | SmallWorldSamples, Field(discriminator="type")
]
