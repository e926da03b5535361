"""STaR: the starting policy's right traces, learnt by likelihood; and those of them whose episodes make progress."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from mrt_hpc.algorithms.base import SupervisedAlgorithm, check_keep
from mrt_hpc.algorithms.samples import SampleSource, is_whole, trace_name, values_of
from mrt_hpc.mrt.sft import MaskedTokens, mask_suffix
from mrt_hpc.mrt.star import select_correct, select_progressing
from mrt_hpc.recipe.base import Count, misfit
from mrt_hpc.recipe.kinds import Refreshed
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.run.records import Rollout

if TYPE_CHECKING:
    from mrt_hpc.run.groups import Group


class Star(SupervisedAlgorithm, Refreshed):
    """Learn the right ones of ``sampling.rollouts_per_problem`` traces of the starting policy.

    Source: Zelikman et al. (2022); paper, Section 7.
    """

    type: Literal["star"] = "star"
    keep: Count | None = None
    """The maximum number of traces per problem; null keeps all right ones."""

    def samples(self, source: SampleSource) -> Iterator[MaskedTokens]:
        return (source.trace(group.rollouts[i]) for group in source.collected() for i in self._kept_indices(group))

    def _kept_indices(self, group: "Group") -> list[int]:
        return select_correct([float(is_whole(r)) for r in group.rollouts], keep=self.keep)

    def check(self, recipe: Recipe) -> None:
        check_keep(self.keep, recipe)


class MrtStar(SupervisedAlgorithm, Refreshed):
    """As star, but only traces whose episodes make progress, cut after the episode that first reaches the highest
    value.

    Source: paper, Section 6 (MRT with STaR).
    """

    needs_prover: ClassVar[bool] = True
    type: Literal["mrt_star"] = "mrt_star"
    keep: Count | None = None
    """The maximum number of traces per problem, those of greatest total positive progress; null keeps all."""
    threshold: Annotated[float, Field(ge=-1, le=1)] = -0.25
    """The minimum progress of an episode before the cut; a trace with an episode there below it is dropped."""

    def samples(self, source: SampleSource) -> Iterator[MaskedTokens]:
        return (masked for group in source.collected() for masked in self._selected_samples(group, source))

    def _selected_samples(self, group: "Group", source: SampleSource) -> list[MaskedTokens]:
        values = [values_of(group, r) for r in group.rollouts]
        rewards = [float(is_whole(r)) for r in group.rollouts]
        ranked = select_progressing(rewards, values, threshold=self.threshold)
        samples = (_cut(group, group.rollouts[s.index], s.boundary, source) for s in ranked)
        # A trace that no branch can close is replaced by the next.
        return list(islice((masked for masked in samples if masked is not None), self.keep))

    def check(self, recipe: Recipe) -> None:
        """Refuse a prover that samples no answers, and a ``keep`` above the sampled traces."""
        prover = recipe.prover
        if prover is not None and (prover.thinks_on or not prover.samples_answers):
            raise misfit(
                "prover.type",
                f"one that samples answers, not {prover.type}: a trace that is cut ends with a right answer sampled "
                "there",
            )
        check_keep(self.keep, recipe)


def _cut(group: "Group", rollout: Rollout, boundary: int, source: SampleSource) -> MaskedTokens | None:
    """The first episodes of a trace with the closing and answer of a right branch; the whole trace where nothing is cut
    off; None without a right branch.
    """
    if boundary == len(rollout.boundaries) - 1:
        return source.trace(rollout)
    here = [b for b in group.branches if (b.sample, b.boundary) == (rollout.sample, boundary)]
    branch = next(filter(is_whole, here), None)
    if branch is None:
        return None
    # The text before the closing tag is the prover's, and mu may be a model with another tokenizer.
    closing = source.prompter.ids(source.recipe.prompt.thought_end + branch.text)
    prefix = rollout.prefix(boundary)
    return mask_suffix(trace_name(rollout), rollout.prompt_ids, [], [*prefix, *source.append_end_token(closing)])
