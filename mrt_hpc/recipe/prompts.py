"""The texts that the method puts in front of or behind a trace; recipes may replace each of them."""

DEFAULT_INSTRUCTION = "\n\nReason step by step, and put your final answer within \\boxed{}."
"""Follows the problem in the prompt."""

DEFAULT_FORCED_TEXT = (
    "\n\nTime is up. I should stop thinking and give my best answer now.\n</think>\n\n"
    "**Final Answer**\n\nThe final answer is"
)
"""Closes the thought at a boundary and starts mu's answer."""
