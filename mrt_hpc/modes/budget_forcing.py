"""Thoughts of given lengths: cut at a budget, or continued up to it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.traces import PromptedGroup, SampledTrace
from mrt_hpc.modes.base import Mode, check_texts, needs_tags
from mrt_hpc.modes.writer import Draft, Thought, Writer
from mrt_hpc.recipe.base import Tokens, misfit
from mrt_hpc.recipe.choices import Boundaries
from mrt_hpc.recipe.kinds import DEFAULT_FORCED_TEXT
from mrt_hpc.recipe.sections import BenchmarkSampling

ANSWER_TOKENS = 64
"""Expected, of a forced answer."""


class BudgetForcing(Mode):
    """The thought is cut at each of the budgets and an answer is forced there. A thought that ends earlier answers by
    itself, unless ``extend`` makes it go on. All budgets of a sample cut one thought; each gives a rollout with a
    reward, and that of the largest budget is the result. Values are asked for at the start and at the cuts.

    Source: budget forcing (Muennighoff et al., 2025), by which the paper extends thoughts (Section 8.5.1).
    """

    boundaries: ClassVar[Boundaries] = Boundaries.CUTS
    type: Literal["budget_forcing"] = "budget_forcing"
    budgets: Annotated[tuple[Tokens, ...], Field(min_length=1)]
    """The numbers of tokens at which the thought is cut, in ascending order. They may exceed evaluation.max_tokens."""
    extend: bool = False
    """Whether a thought that ends before the largest budget goes on: a word is inserted in place of the closing tag."""
    words: Annotated[tuple[str, ...], Field(min_length=1)] = ("Wait",)
    """The words that continue a thought with ``extend``, in rotation."""
    forced_text: str = DEFAULT_FORCED_TEXT
    """The text that ends a thought at a budget and starts the answer."""
    answer_tokens: Tokens = 1024
    """The maximum number of tokens of an answer."""

    @property
    def stages(self) -> tuple[str, ...]:
        return tuple(f"{budget} tokens" for budget in self.budgets)

    def sampler(self, writer: Writer) -> "BudgetSampler":
        return BudgetSampler(self, writer)

    def longest(self, prompter: Prompter, sampling: BenchmarkSampling) -> int:  # noqa: ARG002 - the budgets set the limit
        """The largest budget, the text that ends it, and the answer."""
        return self.budgets[-1] + len(prompter.ids(self.forced_text)) + self.answer_tokens

    def tokens_held(self, sampling: BenchmarkSampling) -> int:  # noqa: ARG002 - the budgets set the limit
        """The largest budget and the answer."""
        return self.budgets[-1] + self.answer_tokens

    def expected_tokens(self, trace: float) -> float:
        return (self.budgets[-1] if self.extend else min(trace, self.budgets[-1])) + ANSWER_TOKENS * len(self.budgets)

    def check(self, sampling: BenchmarkSampling) -> None:
        """Refuse budgets in another order, and texts that end no thought."""
        needs_tags(sampling, self)
        check_texts(sampling, self, self.words, self.forced_text)
        if sorted(set(self.budgets)) != list(self.budgets):
            raise misfit("evaluation.benchmarks", f"budgets in ascending order, each once; they are {self.budgets}")


@dataclass(frozen=True)
class BudgetSampler:
    mode: BudgetForcing
    writer: Writer

    async def traces(self, group: PromptedGroup, sample: int) -> AsyncIterator[SampledTrace]:
        """A trace for each budget. Budgets beyond the end of the thought share one answer."""
        thought = await self._thought(group, sample)
        answered: dict[int, Draft] = {}
        for stage, budget in enumerate(self.mode.budgets):
            cut = min(budget, len(thought.draft))
            if cut not in answered:
                seed = self.writer.plan.seed("budget", group.problem.id, sample, stage)
                answered[cut] = await self._answer_thought(thought, cut, seed)
            yield self.writer.trace(
                group,
                sample,
                answered[cut],
                boundaries=sorted({0, *answered}),
                stage=stage,
                stages=len(self.mode.budgets),
            )

    async def _thought(self, group: PromptedGroup, sample: int) -> Thought:
        """Up to the largest budget; its first request has the seed of a direct evaluation."""
        writer, most = self.writer, self.mode.budgets[-1]
        seed = writer.plan.rollout_seed(group.problem.id, sample)
        thought, count = await writer.think(Draft(group.prompt_ids, family=group.problem.id), seed, most), 0
        while self.mode.extend and thought.ended:
            longer = writer.paragraph(thought.draft, self.mode.words[count % len(self.mode.words)])
            if len(longer) >= most:
                break
            count += 1
            seed = writer.plan.seed("extension", group.problem.id, sample, count)
            thought = await writer.think(longer, seed, most - len(longer))
        return thought

    async def _answer_thought(self, thought: Thought, cut: int, seed: int) -> Draft:
        """The thought up to a cut with its answer: the model's own where it has ended the thought there."""
        if cut == len(thought.draft) and thought.closed is not None:
            closed = thought.closed
        else:
            closed = self.writer.insert(thought.draft.keep_first(cut), self.mode.forced_text)
        return await self.writer.complete(closed, seed, self.mode.answer_tokens)
