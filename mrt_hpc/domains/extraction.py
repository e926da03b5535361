r"""The rules by which an answer is found in a completion, by the names that ``extraction`` of a recipe takes.

Trainers differ where a box stands in the thought only, where the thought does not end, and where there is no box. Each
rule takes linear time, whatever the text, since it runs in the task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mrt_hpc.domains.boxed import THOUGHT_END, after_thought, extract_answer, last_box
from mrt_hpc.domains.running_text import last_mathematics_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mrt_hpc.recipe.extraction import Extraction


class ExtractionRule(Protocol):
    """Finds the answer in a completion, None where it has none; the arguments are those of ``Verifier.extract``."""

    def __call__(
        self, text: str, *, thinking: bool = False, thought_end: str = THOUGHT_END, cut: bool = False
    ) -> str | None: ...


def any_box(
    text: str,
    *,
    thinking: bool = False,  # noqa: ARG001 - a box counts wherever it stands
    thought_end: str = THOUGHT_END,  # noqa: ARG001
    cut: bool = False,  # noqa: ARG001 - a box that was closed counts, whatever was to come
) -> str | None:
    """The content of the last closed box anywhere, in the thought or after it, whether or not the text was cut."""
    return last_box(text) or None


def last_mathematics(
    text: str, *, thinking: bool = False, thought_end: str = THOUGHT_END, cut: bool = False
) -> str | None:
    """The last closed box after the thought; without a box the last formula or number there, or the one that the last
    word "answer" announces.

    A text that was cut has only its boxes: its last number may lack digits, or be a step on the way.
    """
    searched = after_thought(text, thinking=thinking, thought_end=thought_end)
    if searched is None:
        return None
    boxed = last_box(searched, cut=cut)
    if boxed is not None or cut:
        return boxed or None
    return last_mathematics_in(searched)


RULES: Mapping[Extraction, ExtractionRule] = {
    "after_thought": extract_answer,
    "any_box": any_box,
    "last_mathematics": last_mathematics,
}
