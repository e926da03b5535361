"""What an algorithm is: a section of the recipe that says where rollouts start, what is asked of the prover, and which
sequences an update learns.

Add an algorithm: one module with a subclass of ``RolloutAlgorithm`` or ``SupervisedAlgorithm``, and its name in
:data:`mrt_hpc.recipe.registry.ALGORITHMS`; or a class of your own anywhere, named in the recipe as
``algorithm: {type: my_module:MyAlgorithm}``.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from mrt_hpc.algorithms.starts import whole_traces
from mrt_hpc.plan.token_counts import boundaries_per_trace, sequence_tokens, tokens_per_value, trace_tokens
from mrt_hpc.provers.base import every_boundary
from mrt_hpc.recipe.algorithm import AlgorithmSettings
from mrt_hpc.recipe.base import Count, Positive, misfit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mrt_hpc.algorithms.batch import Batch, Learnt
    from mrt_hpc.algorithms.samples import SampleSource
    from mrt_hpc.algorithms.starts import StartContext, Starts
    from mrt_hpc.inference.traces import SampledTrace
    from mrt_hpc.mrt.sft import MaskedTokens
    from mrt_hpc.recipe.schema import Recipe


class Algorithm(AlgorithmSettings):
    """What every algorithm says of the traces that it has sampled."""

    def starts(self, context: StartContext) -> Starts:
        """Where the rollouts of an iteration, or of a collection, start: at the prompt, as a rule."""
        return whole_traces(context, self.group_size(context.recipe, context.iteration))

    def boundaries(self, iteration: int) -> Callable[[SampledTrace], Sequence[int]] | None:  # noqa: ARG002 - some differ
        """Which boundaries of a trace the prover is asked about in an iteration; None asks about none."""
        return every_boundary if self.needs_prover else None

    def sampled_tokens(self, recipe: Recipe, iteration: int) -> float:
        """Expected tokens of one problem: its rollouts and their branches."""
        values = boundaries_per_trace(recipe) * tokens_per_value(recipe.prover, recipe)
        return recipe.sampling.rollouts_per_problem * (trace_tokens(recipe, iteration) + values)


class RolloutAlgorithm(Algorithm):
    """Learns from rollouts of the policy under training."""

    samples_rollouts: ClassVar[bool] = True

    @abstractmethod
    def learnt(self, batch: Batch) -> Learnt:
        """The sequences of an iteration, with the advantage of each token.

        Args:
            batch: all rollouts of the iteration, with their branches and values.

        Raises:
            UserError: the batch cannot be learnt from.
        """

    def trained_tokens(self, recipe: Recipe, iteration: int) -> float:
        """Expected tokens that an update computes: every rollout with its prompt."""
        rollouts = (recipe.sampling.problems_per_iteration or 0) * recipe.sampling.rollouts_per_problem
        return rollouts * sequence_tokens(recipe, iteration)

    def summary(self, recipe: Recipe) -> dict[str, str]:
        """What the report tells of an iteration's size."""
        return {
            "problems an iteration": str(recipe.sampling.problems_per_iteration),
            "staleness limit": str(recipe.schedule.max_staleness),
        }


class SupervisedAlgorithm(Algorithm):
    """Maximises the likelihood of given or selected samples."""

    samples_rollouts: ClassVar[bool] = False
    sequences_per_iteration: Count
    """Samples of an iteration, drawn without repetition until all have been used."""
    max_tokens: Positive = 16384
    """The maximum number of tokens of a sample, prompt included; longer ones are left out, and counted in the log."""

    @abstractmethod
    def samples(self, source: SampleSource) -> Iterator[MaskedTokens]:
        """All samples of the run, in an order that follows from the run directory alone.

        Raises:
            UserError: what they are selected from is missing, or cannot be turned into tokens.
        """

    def trained_tokens(self, recipe: Recipe, iteration: int) -> float:
        """Expected tokens that an update computes: as long as a trace with its prompt."""
        return self.sequences_per_iteration * min(self.max_tokens, self.turns * sequence_tokens(recipe, iteration))

    turns: ClassVar[int] = 1
    """Traces that one sample consists of, for the estimate of its length."""

    def summary(self, recipe: Recipe) -> dict[str, str]:  # noqa: ARG002 - others tell of the recipe
        """What the report tells of an iteration's size."""
        return {"sequences an iteration": str(self.sequences_per_iteration)}


def algorithm_of(recipe: Recipe) -> Algorithm:
    """The recipe's algorithm, as one that says what is sampled for it.

    Raises:
        TypeError: its class does not.
    """
    if not isinstance(recipe.algorithm, Algorithm):
        raise TypeError(f"{type(recipe.algorithm).__name__} is no mrt_hpc.algorithms.base.Algorithm")
    return recipe.algorithm


def rollout_algorithm(recipe: Recipe) -> RolloutAlgorithm:
    """The recipe's algorithm, as one that learns from rollouts.

    Raises:
        TypeError: its class is none, though it says that it samples rollouts.
    """
    if not isinstance(recipe.algorithm, RolloutAlgorithm):
        raise TypeError(f"{type(recipe.algorithm).__name__} is no mrt_hpc.algorithms.base.RolloutAlgorithm")
    return recipe.algorithm


def supervised_algorithm(recipe: Recipe) -> SupervisedAlgorithm:
    """The recipe's algorithm, as one that learns samples.

    Raises:
        TypeError: its class is none, though it says that it samples no rollouts.
    """
    if not isinstance(recipe.algorithm, SupervisedAlgorithm):
        raise TypeError(f"{type(recipe.algorithm).__name__} is no mrt_hpc.algorithms.base.SupervisedAlgorithm")
    return recipe.algorithm


def check_keep(keep: int | None, recipe: Recipe) -> None:
    """Refuse to keep more traces of a problem than are sampled."""
    if (keep or 0) > recipe.sampling.rollouts_per_problem:
        raise misfit("algorithm.keep", "no more than sampling.rollouts_per_problem, of which they are chosen")


def check_one_temperature(recipe: Recipe, option: str) -> None:
    """Refuse a prover of another temperature where its answers are trained on."""
    if recipe.prover is not None and recipe.prover.temperature != recipe.sampling.temperature:
        raise misfit(
            "prover.temperature",
            f"{recipe.sampling.temperature:g}, as sampling.temperature is: with {option} the forced answers are "
            "trained on as well, and the trainer knows one temperature",
        )
