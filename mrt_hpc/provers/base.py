"""Defines a prover: a section of the recipe that says what is asked of the server, and how the answers give a value.

Add a prover: one module with a subclass of ``Prover``, and its name in :data:`mrt_hpc.recipe.kinds.PROVERS`; or a
class of your own anywhere, named in the recipe as ``prover: {type: my_module:MyProver}``.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

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
    """What was asked at one boundary, graded."""

    plan: BoundaryPlan
    branches: Sequence[Branch]
    answers: Sequence[AnswerProbability]
    same: Mapping[str, str] = field(default_factory=dict)
    """Another answer that, in a vote, says the same as an answer, and stands for it."""


class Estimator(Protocol):
    """Asks one server about prefixes, and estimates their values."""

    @property
    def votes(self) -> bool:
        """Whether branches vote, so that answers that say the same must be found."""

    async def value(self, trace: SampledTrace) -> Valuation:
        """Ask about the boundaries of a trace.

        Raises:
            UserError: the server refused a request, or stayed unreachable.
        """

    def estimate(self, graded: GradedBoundary) -> Estimate:
        """V of one boundary, by the pure functions of :mod:`mrt_hpc.mrt.values`."""


@dataclass(frozen=True)
class ProverTools:
    """What an estimator is built from, for one server and one set of boundaries."""

    fork: Fork
    """Asks the server about the boundaries."""
    closing: Closing
    """The tokens that may close a box."""
    history: AnswerHistory
    """The answers that the run has seen so far; the history is kept longer than the estimator."""
    writings: Callable[[SampledTrace], list[Writing]]
    """The ways of writing the answers that are known for a trace's problem, the gold answer first."""


class Prover(ProverSettings):
    """One way of valuing the prefixes of a trace."""

    @property
    def known_answer_limit(self) -> int:
        """How many answers a problem the prover wants to know beforehand, the gold answer among them."""
        return 1

    @abstractmethod
    def estimator(self, tools: ProverTools) -> Estimator:
        """Return the estimator: it asks the server, and computes values from the answers."""


class SamplingProver(Prover):
    """A prover that samples branches at each boundary."""

    branches: Count = 4
    """G, the number of branches at each boundary."""
    max_tokens: Tokens = 512
    """The maximum number of tokens of a branch."""
    seeds: Literal["common", "independent"] = "independent"
    """Whether the branches of all boundaries of a trace share their random numbers. Shared ones make the noise of two
    values alike, so that it cancels in their difference; each value by itself keeps its distribution.
    """

    @property
    def shares_seeds(self) -> bool:
        """Whether the branches of all boundaries of a trace share their random numbers."""
        return self.seeds == "common"

    @property
    def branches_per_boundary(self) -> int:
        """G"""
        return self.branches


class OpensBox(Prover):
    r"""A prover whose answers begin inside ``\boxed{``."""

    opens_box: ClassVar[bool] = True
    box: str = BOX
    """The text that is written after forced_text, unless forced_text ends with it."""

    @property
    def question(self) -> str:
        """The whole text that is written after a prefix."""
        return self.forced_text if self.forced_text.endswith(self.box) else f"{self.forced_text} {self.box}"


class BoxedProver(OpensBox, SamplingProver):
    r"""A prover whose branches begin inside ``\boxed{``."""

    max_tokens: Tokens = 64
    """The maximum number of tokens of a branch."""
