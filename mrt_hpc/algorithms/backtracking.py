"""Learning to backtrack, see :mod:`mrt_hpc.mrt.backtracking`."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from mrt_hpc.algorithms.base import SupervisedAlgorithm
from mrt_hpc.algorithms.samples import SampleSource, is_whole
from mrt_hpc.mrt.backtracking import (
    Attempt,
    Revision,
    StepContinuation,
    Variant,
    revise,
    revision_conversation,
    revision_suffix,
)
from mrt_hpc.mrt.sft import Conversation, MaskedTokens, Suffix
from mrt_hpc.recipe.base import misfit
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.run.problems import read_problems

if TYPE_CHECKING:
    from mrt_hpc.run.groups import Group

DEFAULT_BACKTRACK = (
    "Part of this is wrong. Go back to what holds after step {step}, and go on from there to the answer."
)
"""{step} is the number of steps kept."""


class Backtracking(SupervisedAlgorithm):
    """An attempt of the starting policy, the step of highest value, a right continuation from there.

    Source: paper, Appendix (backtracking).
    """

    collects: ClassVar[bool] = True
    needs_prover: ClassVar[bool] = True
    usual_prover: ClassVar[str] = "continuation"
    turns: ClassVar[int] = 2
    type: Literal["backtracking"] = "backtracking"
    variant: Literal["resample", "shared_prefix", "no_shared_prefix", "no_full_rollout"] = "shared_prefix"
    """The parts of attempt and revision that are shown: start again; repeat the shared steps; continue without
    repeating them; stop the attempt where it first lost value.
    """
    min_loss_sigmas: Annotated[float, Field(ge=0, le=100)] = 3.0
    """The number of standard errors of the difference between two values that a step's loss of value must exceed for
    variant no_full_rollout to stop the attempt there; 0 takes any loss. With fewer than 5 rollouts from a step no loss
    is as large as 3.
    """
    emit: Literal["conversations", "suffixes"] = "suffixes"
    """Whether attempt and revision are learnt as turns of a conversation, or the revision alone as a suffix."""
    backtrack_text: str = DEFAULT_BACKTRACK
    """The text between attempt and revision; {step} is the number of steps kept."""

    def samples(self, source: SampleSource) -> Iterator[MaskedTokens]:
        """The revisions of all attempts; the selected samples also go to a file."""
        statements = {p.id: p.problem for p in read_problems(source.train_data)}
        judged = (group for group in source.collected() if group.rollouts[0].judged)
        attempts = (_attempt(group, statements, source) for group in judged)
        variant = Variant(self.variant)
        revisions = (revise(attempt, variant, min_loss_sigmas=self.min_loss_sigmas) for attempt in attempts)
        samples = [self._sample(revision, source.recipe) for revision in revisions if revision is not None]
        source.keep(samples)
        yield from (source.conversation(s) if isinstance(s, Conversation) else source.suffix(s) for s in samples)

    def _sample(self, revision: Revision, recipe: Recipe) -> Conversation | Suffix:
        if self.emit == "suffixes":
            return revision_suffix(revision, self.backtrack_text)
        prompt = recipe.prompt
        return revision_conversation(
            revision, self.backtrack_text, instruction=prompt.instruction, opening=prompt.thought_start
        )

    def check(self, recipe: Recipe) -> None:
        """Refuse a prover whose branches are not rollouts, and texts and numbers that do not suit an attempt."""
        if recipe.prover is not None and not recipe.prover.thinks_on:
            raise misfit(
                "prover.type",
                f"continuation, not {recipe.prover.type}: a revision continues from a step with a rollout that "
                "gave the step its value",
            )
        try:
            self.backtrack_text.format(step=1)
        except (KeyError, IndexError, ValueError) as error:
            raise misfit(
                "algorithm.backtrack_text",
                f"a text with no braces except {{step}}; the given text cannot be formatted: {error!r}",
            ) from error
        if recipe.sampling.rollouts_per_problem != 1:
            raise misfit(
                "sampling.rollouts_per_problem", "1 with algorithm backtracking: one first attempt per problem"
            )


def _attempt(group: "Group", statements: dict[str, str], source: SampleSource) -> Attempt:
    """A collected trace as steps of text and the text after its thought."""
    (rollout,) = group.rollouts
    cuts = rollout.boundaries
    ids = [i for i in rollout.token_ids if i not in source.prompter.stop_token_ids]
    continuations: dict[int, list[StepContinuation]] = defaultdict(list)
    for branch in (b for b in group.branches if b.judged):
        continuations[branch.boundary].append(StepContinuation(branch.text, branch.reward, is_whole(branch)))
    return Attempt(
        problem_id=rollout.problem_id,
        problem=statements[rollout.problem_id],
        steps=[source.tokens.text(ids[a:b]) for a, b in pairwise(cuts)],
        ending=source.tokens.text(ids[cuts[-1] :]),
        reward=rollout.reward,
        continuations=[continuations[j] for j in range(len(cuts))],
    )
