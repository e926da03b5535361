"""A prover: a section of the recipe that says what to ask the server, and how answers give a value.

To add one, write a module with a subclass of ``Prover`` and its name in :data:`mrt_hpc.recipe.kinds.PROVERS`; or name
your own class in the recipe as ``prover: {type: my_module:MyProver}``.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from mrt_hpc.inference.traces import BoundaryPlan, SampledTrace, Valuation
from mrt_hpc.mrt.values import Estimate
from mrt_hpc.provers.box_tokens import Closing, Writing
from mrt_hpc.provers.branches import Fork
from mrt_hpc.provers.history import AnswerHistory
from mrt_hpc.recipe.base import Count, Tokens
from mrt_hpc.recipe.kinds import BOX, ProverSettings
from mrt_hpc.run.records import AnswerProbability, Branch


def every_boundary(trace: SampledTrace) -> Sequence[int]:
    """0 .. k"""
    return range(len(trace.boundaries))


@dataclass(frozen=True)
class GradedBoundary:
    """One boundary's answers, graded."""

    plan: BoundaryPlan
    branches: Sequence[Branch]
    answers: Sequence[AnswerProbability]
    same: Mapping[str, str] = field(default_factory=dict)
    """For a vote: the equivalent answer that stands for an answer."""


class Estimator(Protocol):
    """Asks one server about prefixes, and estimates values."""

    @property
    def votes(self) -> bool:
        """Whether branches vote, so that equivalent answers must be found."""

    async def value(self, trace: SampledTrace) -> Valuation:
        """Ask about a trace's boundaries."""

    def estimate(self, graded: GradedBoundary) -> Estimate:
        """V of one boundary, by the pure functions of :mod:`mrt_hpc.mrt.values`."""


@dataclass(frozen=True)
class ProverTools:
    """Parts of an estimator, for one server and one set of boundaries."""

    fork: Fork
    closing: Closing
    """Tokens that may close a box."""
    history: AnswerHistory
    """Answers that the run has seen; outlives the estimator."""
    writings: Callable[[SampledTrace], list[Writing]]
    """Writings of a problem's known answers, gold first."""


class Prover(ProverSettings):
    """One way of valuing the prefixes of a trace."""

    @property
    def known_answer_limit(self) -> int:
        """Answers a problem to know beforehand, gold included."""
        return 1

    @abstractmethod
    def estimator(self, tools: ProverTools) -> Estimator:
        """The estimator asks the server, and computes values from the answers."""


class SamplingProver(Prover):
    """A prover that samples branches at each boundary."""

    branches: Count = 4
    """G, the number of branches at each boundary."""
    max_tokens: Tokens = 512
    """The maximum number of tokens of a branch."""
    seeds: Literal["common", "independent"] = "independent"
    """Whether the branches of all boundaries of a problem's traces share their random numbers. Shared ones make the
    noise of two values alike, so that it cancels in their difference; each value by itself keeps its distribution.
    """

    @property
    def shares_seeds(self) -> bool:
        """See ``seeds``."""
        return self.seeds == "common"

    @property
    def branches_per_boundary(self) -> int:
        """G"""
        return self.branches


class OpensBox(Prover):
    r"""A prover whose answers begin inside ``\boxed{``."""

    former_fields: ClassVar[Mapping[str, Any]] = {"box": BOX}

    @property
    def question(self) -> str:
        """All text written after a prefix."""
        return self.forced_text if self.forced_text.endswith(BOX) else f"{self.forced_text} {BOX}"


class BoxedProver(OpensBox, SamplingProver):
    r"""A prover whose branches begin inside ``\boxed{``."""

    max_tokens: Tokens = 64
    """The maximum number of tokens of a branch."""
