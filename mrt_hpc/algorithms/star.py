"""STaR: the starting policy's right traces, learnt by likelihood."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from mrt_hpc.algorithms.base import SupervisedAlgorithm, check_keep
from mrt_hpc.algorithms.samples import SampleSource, is_whole
from mrt_hpc.mrt.sft import MaskedTokens
from mrt_hpc.mrt.star import select_correct
from mrt_hpc.recipe.base import Count
from mrt_hpc.recipe.kinds import Refreshed
from mrt_hpc.recipe.schema import Recipe

if TYPE_CHECKING:
    from mrt_hpc.run.groups import Group


class Star(SupervisedAlgorithm, Refreshed):
    """Learn the right ones of ``sampling.rollouts_per_problem`` traces that the starting policy sampled.

    Source: Zelikman et al. (2022); paper, Section 7.
    """

    type: Literal["star"] = "star"
    keep: Count | None = None
    """The maximum number of traces per problem; null keeps all right ones."""

    def samples(self, source: SampleSource) -> Iterator[MaskedTokens]:
        """Return the right traces of every problem."""
        return (source.trace(group.rollouts[i]) for group in source.collected() for i in self._kept(group))

    def _kept(self, group: "Group") -> list[int]:
        return select_correct([float(is_whole(r)) for r in group.rollouts], keep=self.keep)

    def check(self, recipe: Recipe) -> None:
        """Refuse a ``keep`` above the number of sampled traces."""
        check_keep(self.keep, recipe)
