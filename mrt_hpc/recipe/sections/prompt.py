"""How a problem becomes a prompt, and where its thought ends."""

from __future__ import annotations

from datetime import date as Date
from typing import Annotated

from pydantic import Field

from mrt_hpc.recipe.base import VARIABLE, PathText, Section
from mrt_hpc.recipe.prompts import DEFAULT_INSTRUCTION

Whole = Annotated[int, Field(ge=-(10**12), le=10**12)]
Number = Annotated[float, Field(ge=-1e12, le=1e12)]
"""Numbers that a template writes: it reads none that is not finite, or larger."""


class Prompt(Section):
    """How a problem becomes a prompt, and where its thought ends."""

    instruction: str = DEFAULT_INSTRUCTION
    """This text is appended to the problem before the model's chat template is applied."""
    thought_start: str = "<think>\n"
    """This text opens the thought. It is added after the chat template, unless the template has written it. It is empty
    for a model that opens the thought itself, or writes no tags.
    """
    thought_end: str = "</think>"
    """This text closes the thought; the answer follows it. It is empty, with an empty thought_start, for a model that
    writes no tags: then the completion is the thought up to where its last box opens, which holds the answer.
    """
    stop_tokens: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Texts of further tokens that end a completion, besides those that the model's own files name. Each must be one
    token of the model's tokenizer, as ``<|im_end|>`` or ``</s>`` is.
    """
    chat_template: PathText | None = None
    """The path of a file with a chat template that replaces the model's own. A relative path starts at the recipe's
    folder.
    """
    template_variables: dict[Annotated[str, Field(pattern=VARIABLE)], bool | Whole | Number | str | None] = Field(
        default_factory=dict
    )
    """Variables that the chat template reads, with their values, as ``{enable_thinking: true}``. One that the model's
    template does not read is refused.
    """
    date: Date | None = None
    """The day that the chat template writes where it asks for today's, as 2025-06-30. Null is 2025-01-01: a prompt is
    the same on each day, and results of different days can be compared.
    """
    examples: PathText | None = None
    """The path of a file of JSON lines with solved problems for few-shot prompts, each with "id", "problem" and
    "solution". A solution is shown as it stands there. A relative path starts at the recipe's folder.
    """
    shots: Annotated[int, Field(ge=0, le=64)] = 0
    """The number of examples before each problem, as earlier turns: the first ones of the file. An example with the
    problem that is asked is passed over.
    """
