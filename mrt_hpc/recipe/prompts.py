"""The texts that the method puts before or after a trace, or searches in it; a recipe may replace each of them."""

from __future__ import annotations

from typing import Any

DEFAULT_INSTRUCTION = "\n\nReason step by step, and put your final answer within \\boxed{}."
"""Follows the problem in the prompt."""

DEFAULT_FORCED_TEXT = (
    "Time is up. I should stop thinking and give my best answer now.\n</think>\n\n"
    "**Final Answer**\n\nThe final answer is"
)
"""Closes the thought at a boundary and starts mu's answer. It begins without a newline: an inner prefix ends with the
blank line before the next marker, the prompt with the newline after ``<think>``, and a whole thought with the newline
before ``</think>``. A text that began with a blank line would put two of them behind every inner prefix.
"""

OPEN_FORCED_TEXT = (
    "\nTime is up. I should stop here and give my best answer now.\n\n**Final Answer**\n\nThe final answer is"
)
"""The same for a model that writes no thinking tags. It begins with one newline: the whole thought ends inside the
sentence that opens the box, whose words must not run into the prover's; behind an inner prefix it is a third newline.
"""

REFERENCE_MARKERS = (
    "Wait",
    "But wait",
    "Alternatively",
    "Is there another way",
    "But let me double-check",
    "But hold on",
)
"""The authors' markers of reconsideration: a paragraph that begins with one may open an episode."""

BOX = "\\boxed{"
"""Opens a boxed answer."""

DEFAULT_BACKTRACK = (
    "Part of this is wrong. Go back to what holds after step {step}, and go on from there to the answer."
)
"""Stands between an attempt and its revision; {step} is the number of steps kept."""


DEFAULT_SEND_BACK = (
    "Part of this may be wrong. Go back to the last step that holds, and go on from there to the answer."
)
"""Sends the model back to its own attempt in an evaluation, where no value tells which step holds."""

CONTINUATION_WORDS = ("Wait", "Alternatively", "But wait", "But hold on")
"""Words that take the place of the closing tag, so that the thought goes on."""


def with_open_forced_texts(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe as it was read, whose provers get ``OPEN_FORCED_TEXT`` where the prompt names an empty closing tag and
    they have no text of their own. Wrong values are left for the schema to refuse.
    """
    if _part(recipe, "prompt").get("thought_end") != "":
        return recipe
    changed = _with_open_prover(recipe)
    if evaluation := _part(recipe, "evaluation"):
        changed["evaluation"] = _with_open_prover(evaluation)
    return changed


def _part(recipe: dict[str, Any], name: str) -> dict[str, Any]:
    part = recipe.get(name)
    return part if isinstance(part, dict) else {}


def _with_open_prover(section: dict[str, Any]) -> dict[str, Any]:
    prover = _part(section, "prover")
    if not prover or prover.get("type") == "continuation":
        return dict(section)
    return {**section, "prover": {"forced_text": OPEN_FORCED_TEXT, **prover}}
