"""The part of an algorithm that the lower layers need: what it samples, which decides the jobs of a run, and what it
costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mrt_hpc.recipe.base import Count, Section, misfit

if TYPE_CHECKING:
    from mrt_hpc.recipe.schema import Recipe


class AlgorithmSettings(Section):
    """The fields of an algorithm. Subclasses add a ``type``, their own fields, and what they learn from."""

    samples_rollouts: ClassVar[bool]
    """Whether each iteration samples rollouts. False for algorithms that learn given or selected sequences."""
    collects: ClassVar[bool] = False
    """Whether training starts from traces that a weights version sampled before."""
    data_form: ClassVar[str] = "problems"
    """The content of the recipe's ``data``: problems, conversations or suffixes."""
    needs_prover: ClassVar[bool] = False
    """Whether the algorithm asks for values of prefixes."""
    usual_prover: ClassVar[str] = "forced_answer"
    """The type of prover that the error for a recipe without one proposes."""

    if TYPE_CHECKING:
        type: str

    @property
    def refresh_period(self) -> int | None:
        """Iterations after which the traces that training starts from are sampled again; None where they never are."""
        return None

    def traces_version(self, iteration: int) -> int:
        """The weights version whose traces an iteration starts from, where it starts from any."""
        return 0 if self.refresh_period is None else iteration - iteration % self.refresh_period

    def traces_versions(self, iterations: int) -> range:
        """The weights versions that sample traces for a run of so many iterations to start from."""
        return range(0, iterations, self.refresh_period or iterations) if self.collects else range(0)

    def group_size(self, recipe: Recipe, iteration: int) -> int:  # noqa: ARG002 - some differ
        """n, the rollouts of a problem in an iteration, or in a collection."""
        return recipe.sampling.rollouts_per_problem

    def check(self, recipe: Recipe) -> None:
        """Refuse fields that contradict each other or the rest of the recipe.

        Raises:
            PydanticCustomError: see :func:`mrt_hpc.recipe.base.misfit`; it names the field to change first.
        """

    def sampled_tokens(self, recipe: Recipe, iteration: int) -> float:
        """Expected tokens that are sampled for one problem of an iteration, or of a collection."""
        raise NotImplementedError

    def sampled_branch_tokens(self, recipe: Recipe, iteration: int) -> float:
        """Those of ``sampled_tokens`` that are tokens of the prover's branches."""
        raise NotImplementedError

    def trained_tokens(self, recipe: Recipe, iteration: int) -> float:
        """Expected tokens that an update computes, prompts and prefixes included."""
        raise NotImplementedError

    def longest_trained(self, recipe: Recipe) -> int:
        """Tokens of the longest sequence that an update computes."""
        return recipe.sampling.max_prompt_tokens + recipe.sampling.max_tokens

    def summary(self, recipe: Recipe) -> dict[str, str]:
        """The size of an iteration in words, for the report."""
        raise NotImplementedError


class Refreshed(AlgorithmSettings):
    """Starts from traces that may be sampled again by later weights."""

    collects: ClassVar[bool] = True
    refresh_every: Count | None = None
    """Iterations after which all traces that training starts from are sampled again, by the weights of that iteration;
    null samples them once, by weights version 0. It is a multiple of
    schedule.iterations_per_job. Training continues from the weights and the optimiser state that it has, and the
    reference of training.kl_coefficient stays weights version 0.
    """

    @property
    def refresh_period(self) -> int | None:
        """``refresh_every``"""
        return self.refresh_every


def check_refresh(recipe: Recipe) -> None:
    """Refuse to sample the traces again in the middle of a job."""
    every = recipe.algorithm.refresh_period
    if every is not None and every % (per_job := recipe.schedule.iterations_per_job):
        raise misfit(
            "algorithm.refresh_every",
            f"a multiple of schedule.iterations_per_job ({per_job}): the traces are sampled again between two jobs of "
            "the trainer",
        )
