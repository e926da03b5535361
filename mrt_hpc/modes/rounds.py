"""Rounds of revision: attempts of the model stand in the prompt of the next one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrt_hpc.modes.draft import Draft
from mrt_hpc.run.records import FinishReason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from mrt_hpc.inference.prompting import Prompter
    from mrt_hpc.inference.traces import PromptedGroup, SampledTrace
    from mrt_hpc.modes.writer import Writer
    from mrt_hpc.recipe.benchmark_sampling import BenchmarkSampling
    from mrt_hpc.run.records import Problem


@dataclass(frozen=True)
class Rounds:
    """Samples one attempt after the other. Each prompt holds the problem and the last attempts."""

    writer: Writer
    limits: Sequence[int]
    """[rounds] the maximum number of tokens of each attempt."""
    window: int
    """The number of attempts that a prompt holds at most."""
    sentence: str | None
    """What the prompt says after an attempt; None says the problem again."""

    async def traces(self, group: PromptedGroup, sample: int) -> AsyncIterator[SampledTrace]:
        """Yield the attempts of one sample; the last one is its result."""
        attempts: list[Draft] = []
        for number, limit in enumerate(self.limits):
            shown = windowed(attempts, self.window)
            context = [*group.prompt_ids, *(i for attempt in shown for i in self._turn(attempt, group.problem))]
            seed = self._seed(group.problem.id, sample, number)
            draft = await self.writer.complete(Draft(context, family=group.problem.id), seed, limit)
            yield self.writer.trace(group, sample, draft, stage=number, stages=len(self.limits))
            attempts.append(draft)

    def _seed(self, problem_id: str, sample: int, number: int) -> int:
        """The seed of an attempt; the first one is that of a direct evaluation."""
        plan = self.writer.plan
        return plan.seed("round", problem_id, sample, number) if number else plan.rollout_seed(problem_id, sample)

    def _turn(self, attempt: Draft, problem: Problem) -> list[int]:
        """The tokens of an attempt, and of what leads to the next one. A thought that the limit cut is closed."""
        prompter = self.writer.prompter
        stopped = attempt.completions[-1].finish_reason is FinishReason.STOP
        ids = attempt.token_ids[:-1] if stopped else attempt.token_ids
        tag = self.writer.plan.thought_end
        is_open = not stopped and tag and tag not in b"".join(self.writer.pieces(attempt))
        between = prompter.next_turn(question(prompter, self.sentence, problem.problem))
        return [*ids, *(prompter.ids(tag.decode()) if is_open else []), *prompter.ids(between)]


def windowed(attempts: Sequence[Draft], window: int) -> Sequence[Draft]:
    """Return the last ``window`` attempts."""
    return attempts[-window:]


def question(prompter: Prompter, sentence: str | None, problem: str) -> str:
    """Return what the prompt says after an attempt."""
    return problem + prompter.prompt.instruction if sentence is None else sentence


def longest_turn(prompter: Prompter, sentence: str | None, sampling: BenchmarkSampling) -> int:
    """Return the maximum number of tokens between two attempts."""
    said = prompter.ids(prompter.next_turn(sentence or ""))
    again = said_again(sentence, sampling)
    return len(said) + again + len(prompter.ids(sampling.prompt.thought_end) if sampling.prompt.thought_end else [])


def said_again(sentence: str | None, sampling: BenchmarkSampling) -> int:
    """Return the maximum number of tokens of the problem between two attempts; 0 where a sentence stands there."""
    return sampling.max_prompt_tokens if sentence is None else 0
