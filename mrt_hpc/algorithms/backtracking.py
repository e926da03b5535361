"""Learning to go back: an attempt, the step of highest value, and a right continuation from there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from mrt_hpc.algorithms.base import SupervisedAlgorithm
from mrt_hpc.algorithms.samples import is_whole
from mrt_hpc.mrt.backtracking import (
    Attempt,
    Revision,
    StepContinuation,
    Variant,
    as_conversation,
    as_suffix,
    revise,
)
from mrt_hpc.mrt.sft import Conversation, MaskedTokens, Suffix
from mrt_hpc.recipe.base import misfit
from mrt_hpc.recipe.prompts import DEFAULT_BACKTRACK
from mrt_hpc.run.data import read_problems

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.algorithms.samples import SampleSource
    from mrt_hpc.recipe.schema import Recipe
    from mrt_hpc.run.groups import Group


class Backtracking(SupervisedAlgorithm):
    """Learn to go back: an attempt of the starting policy, the step of highest value, a right continuation from
    there.

    Source: paper, Appendix (backtracking).
    """

    collects: ClassVar[bool] = True
    needs_prover: ClassVar[bool] = True
    usual_prover: ClassVar[str] = "continuation"
    before_fields: ClassVar[Mapping[str, Any]] = {"min_loss_sigmas": 0.0}
    turns: ClassVar[int] = 2
    type: Literal["backtracking"] = "backtracking"
    variant: Literal["resample", "shared_prefix", "no_shared_prefix", "no_full_rollout"] = "shared_prefix"
    """What is shown of attempt and revision: start again; repeat the shared steps; go on without repeating them; stop
    the attempt where it first lost value.
    """
    min_loss_sigmas: Annotated[float, Field(ge=0)] = 3.0
    """How many standard errors of the difference between two values a step's loss of value is larger than, for variant
    no_full_rollout to stop the attempt there; 0 takes any loss. With fewer than 5 rollouts from a step no loss is as
    large as 3.
    """
    emit: Literal["conversations", "suffixes"] = "suffixes"
    """Learn attempt and revision as turns of a conversation, or the revision alone."""
    backtrack_text: str = DEFAULT_BACKTRACK
    """The text between attempt and revision; {step} is the number of steps kept."""

    def samples(self, source: SampleSource) -> Iterator[MaskedTokens]:
        """The revisions of all attempts; the selected samples are also written down."""
        statements = {p.id: p.problem for p in read_problems(source.train_data)}
        attempts = (_attempt(group, statements, source) for group in source.collected())
        variant = Variant(self.variant)
        found = (revise(attempt, variant, min_loss_sigmas=self.min_loss_sigmas) for attempt in attempts)
        samples = [self._sample(revision, source.recipe) for revision in found if revision is not None]
        source.keep(samples)
        yield from (source.conversation(s) if isinstance(s, Conversation) else source.suffix(s) for s in samples)

    def _sample(self, revision: Revision, recipe: Recipe) -> Conversation | Suffix:
        if self.emit == "suffixes":
            return as_suffix(revision, self.backtrack_text)
        prompt = recipe.prompt
        return as_conversation(
            revision, self.backtrack_text, instruction=prompt.instruction, opening=prompt.thought_start
        )

    def check(self, recipe: Recipe) -> None:
        """Refuse a prover whose branches are no rollouts, and texts and numbers that fit no attempt."""
        if recipe.prover is not None and not recipe.prover.thinks_on:
            raise misfit(
                "prover.type",
                f"continuation, not {recipe.prover.type}: a revision goes on from a step with one of the rollouts that "
                "gave the step its value",
            )
        try:
            self.backtrack_text.format(step=1)
        except (KeyError, IndexError, ValueError) as error:
            raise misfit(
                "algorithm.backtrack_text", f"no braces but {{step}} in it; it cannot be filled in: {error!r}"
            ) from error
        if recipe.sampling.rollouts_per_problem != 1:
            raise misfit("sampling.rollouts_per_problem", "1 with algorithm backtracking: one first attempt a problem")


def _attempt(group: Group, statements: dict[str, str], source: SampleSource) -> Attempt:
    """A collected trace as steps of text, and what follows its thought."""
    (rollout,) = group.rollouts
    cuts = rollout.boundaries
    ids = [i for i in rollout.token_ids if i not in source.prompter.stop_token_ids]
    continuations: dict[int, list[StepContinuation]] = defaultdict(list)
    for branch in group.branches:
        continuations[branch.boundary].append(StepContinuation(branch.text, branch.reward))
    return Attempt(
        problem_id=rollout.problem_id,
        problem=statements[rollout.problem_id],
        steps=[source.tokens.text(ids[a:b]) for a, b in pairwise(cuts)],
        ending=source.tokens.text(ids[cuts[-1] :]),
        reward=float(is_whole(rollout)),
        continuations=[continuations[j] for j in range(len(cuts))],
    )
