"""Published results of MRT, for ``mrt-hpc compare --published`` to put beside one's own: pass@1 in per cent, with at
most 16,384 tokens.

Sources: Table 1 of the paper, and the authors' repository and model cards (CMU-AIRe/MRT) for their later rerun.
"""

from dataclasses import dataclass

BENCHMARKS = ("aime24", "aime25", "amc23", "minerva", "math500")
"""Named as in the recipes and suites."""


@dataclass(frozen=True)
class PublishedResult:
    """pass@1 of one model on each of ``BENCHMARKS``, per cent."""

    model: str
    accuracy: tuple[float, float, float, float, float]
    mean: float
    """As published; its last digit may differ from the mean of the rounded numbers."""


@dataclass(frozen=True)
class PublishedTable:
    """Results measured under the same conditions."""

    conditions: str
    digits: int
    """After the point."""
    results: tuple[PublishedResult, ...]


PAPER_DISTILL = PublishedTable(
    "paper, Table 1, R1-Distill-Qwen-1.5B, 4,000 NuminaMath problems, pass@1 of 20 samples, 16,384 tokens",
    1,
    (
        PublishedResult("base", (28.7, 26.0, 69.9, 19.8, 80.1), 44.9),
        PublishedResult("GRPO", (29.8, 27.3, 70.5, 22.1, 80.3), 46.0),
        PublishedResult("MRT", (30.3, 29.3, 72.9, 22.5, 80.4), 47.1),
    ),
)

PAPER_DEEPSCALER = PublishedTable(
    "paper, Table 1, DeepScaleR-1.5B-Preview, 919 AIME problems, pass@1 of 20 samples, 16,384 tokens",
    1,
    (
        PublishedResult("base", (42.8, 36.7, 83.0, 24.6, 85.2), 54.5),
        PublishedResult("GRPO", (44.5, 39.3, 81.5, 24.7, 84.9), 55.0),
        PublishedResult("length penalty", (40.3, 30.3, 77.3, 23.0, 83.2), 50.8),
        PublishedResult("MRT", (47.2, 39.7, 83.1, 24.2, 85.1), 55.9),
    ),
)

RERUN = PublishedTable(
    "authors' rerun, R1-Distill-Qwen-1.5B, 248 steps, alpha 1.0, at most six episodes, four branches, pass@1 of 64 "
    "samples, 16,384 tokens",
    2,
    (
        PublishedResult("base", (27.34, 22.86, 67.89, 24.94, 81.71), 44.95),
        PublishedResult("GRPO", (28.12, 22.97, 67.77, 26.45, 81.85), 45.43),
        PublishedResult("MRT-online", (28.59, 22.24, 68.79, 25.87, 82.37), 45.57),
        PublishedResult("MRT from stale traces", (28.75, 23.59, 70.86, 24.96, 82.61), 46.16),
    ),
)

TABLES = (PAPER_DISTILL, PAPER_DEEPSCALER, RERUN)
