"""Published results of MRT, to be put beside one's own.

Source: the authors' repository and model cards (CMU-AIRe/MRT): their rerun with DeepSeek-R1-Distill-Qwen-1.5B, pass@1
over 64 samples, 16,384 tokens, 248 steps, alpha 1.0, at most six episodes, four branches.
"""

from __future__ import annotations

from dataclasses import dataclass

BENCHMARKS = ("aime24", "aime25", "amc23", "minerva_math", "math500")
"""Named as in the recipes."""
CONDITIONS = "authors' rerun, R1-Distill-Qwen-1.5B, pass@1 of 64 samples, 16,384 tokens"


@dataclass(frozen=True)
class PublishedResult:
    """pass@1 of one model on each of ``BENCHMARKS``, per cent."""

    model: str
    accuracy: tuple[float, float, float, float, float]
    mean: float
    """As published; it may differ from the mean of the rounded numbers in the last digit."""


RESULTS = (
    PublishedResult("base", (27.34, 22.86, 67.89, 24.94, 81.71), 44.95),
    PublishedResult("GRPO", (28.12, 22.97, 67.77, 26.45, 81.85), 45.43),
    PublishedResult("MRT-online", (28.59, 22.24, 68.79, 25.87, 82.37), 45.57),
    PublishedResult("MRT (offline)", (28.75, 23.59, 70.86, 24.96, 82.61), 46.16),
)
