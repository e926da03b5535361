"""What the method puts before or after a trace, or looks for in it; recipes may replace each of these texts."""

DEFAULT_INSTRUCTION = "\n\nReason step by step, and put your final answer within \\boxed{}."
"""Follows the problem in the prompt."""

DEFAULT_FORCED_TEXT = (
    "\n\nTime is up. I should stop thinking and give my best answer now.\n</think>\n\n"
    "**Final Answer**\n\nThe final answer is"
)
"""Closes the thought at a boundary and starts mu's answer."""

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
