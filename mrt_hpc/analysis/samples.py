"""What is known of one model on one benchmark: its samples of every problem, from whatever place they were read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mrt_hpc.mrt.regret import TraceCurve


@dataclass(frozen=True)
class SampleRecord:
    """One graded completion."""

    reward: float
    """1 when the answer is right, else 0."""
    tokens: int
    """The sampled tokens."""
    answer: str | None
    """None where no answer was found."""


@dataclass(frozen=True)
class ModelSamples:
    """The samples of one model on one benchmark."""

    name: str
    """Of the model, as tables show it."""
    benchmark: str
    problems: Mapping[str, tuple[SampleRecord, ...]]
    """By problem id, in the order of sampling; at least one of each."""
    curves: Mapping[str, tuple[TraceCurve, ...]] = field(default_factory=dict)
    """The values of the prefixes by problem id; of the problems that have valued traces."""
    settings: str | None = None
    """The digest of what decides the samples beside the weights; None where it is not known."""

    @property
    def fewest(self) -> int:
        """The smallest number of samples that a problem has."""
        return min(map(len, self.problems.values()))
