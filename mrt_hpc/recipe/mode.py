"""The part of a way of evaluating that the lower layers need: its fields in a recipe, and its rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mrt_hpc.recipe.base import Section

if TYPE_CHECKING:
    from mrt_hpc.recipe.benchmark_sampling import BenchmarkSampling


class ModeSettings(Section):
    """The fields of every way of evaluating. Subclasses add a ``type``, fields of their own, and how they sample."""

    if TYPE_CHECKING:
        type: str

    cuts_episodes: ClassVar[bool] = True
    """Whether the boundaries of a trace are the ends of its episodes; otherwise they are at budgets of tokens."""
    adds_stages: ClassVar[bool] = False
    """Whether each rollout of a sample is an attempt of its own, so that the sample takes the tokens of all of them.
    Otherwise a rollout goes on from the one before, and the last one holds all tokens that led to it.
    """

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of the rollouts that one sample gives, in their order; the last one is the sample's result."""
        return ("answer",)

    def expected_tokens(self, trace: float) -> float:
        """Return the expected number of tokens of one sample.

        Args:
            trace: the expected number of tokens of a trace that is sampled in one request.
        """
        return trace

    def tokens_held(self, sampling: BenchmarkSampling) -> int:
        """Return the number of tokens that a server must hold for one trace after the prompt of its problem, as far as
        no tokenizer is needed for it: without the texts that are inserted.
        """
        return sampling.max_tokens

    def boundary_budgets(self, base: int) -> tuple[int, ...]:  # noqa: ARG002 - some count from there
        """Return the number of tokens that each boundary after the first one stands for; empty where boundaries are the
        ends of episodes.

        Args:
            base: the maximum number of tokens of a completion.
        """
        return ()

    def check(self, sampling: BenchmarkSampling) -> None:
        """Refuse fields that contradict each other, or the prompt and limits of the benchmark.

        Raises:
            PydanticCustomError: see :func:`mrt_hpc.recipe.base.misfit`.
        """
