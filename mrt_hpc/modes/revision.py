"""Revision: the model sees its own attempts and answers again, once or in rounds with a bounded history."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.traces import PromptedGroup, SampledTrace
from mrt_hpc.modes.base import Mode
from mrt_hpc.modes.writer import Draft, Writer
from mrt_hpc.recipe.base import Count, Tokens
from mrt_hpc.recipe.choices import Boundaries
from mrt_hpc.recipe.sections import BenchmarkSampling
from mrt_hpc.run.records import FinishReason, Problem

DEFAULT_SEND_BACK = (
    "Part of this may be wrong. Go back to the last step that holds, and go on from there to the answer."
)
"""Sends the model back to its own attempt in an evaluation, where no value shows which step holds."""


@dataclass(frozen=True)
class RevisionRounds:
    """Samples one attempt after the other. Each prompt holds the problem and the last attempts."""

    writer: Writer
    limits: Sequence[int]
    """[rounds] the most tokens of each attempt."""
    window: int
    """The most attempts in a prompt."""
    sentence: str | None
    """Follows an attempt in the prompt; None says the problem again."""

    async def traces(self, group: PromptedGroup, sample: int) -> AsyncIterator[SampledTrace]:
        """The last attempt of a sample is its result."""
        attempts: list[Draft] = []
        for number, limit in enumerate(self.limits):
            shown = attempts[-self.window :]
            context = [*group.prompt_ids, *(i for attempt in shown for i in self._turn(attempt, group.problem))]
            seed = self._seed(group.problem.id, sample, number)
            draft = await self.writer.complete(Draft(context, family=group.problem.id), seed, limit)
            yield self.writer.trace(group, sample, draft, stage=number, stages=len(self.limits))
            attempts.append(draft)

    def _seed(self, problem_id: str, sample: int, number: int) -> int:
        """The first seed is that of a direct evaluation."""
        plan = self.writer.plan
        return plan.seed("round", problem_id, sample, number) if number else plan.rollout_seed(problem_id, sample)

    def _turn(self, attempt: Draft, problem: Problem) -> list[int]:
        """An attempt, and the tokens that lead to the next one. A thought that the limit cut is closed."""
        prompter = self.writer.prompter
        stopped = attempt.completions[-1].finish_reason is FinishReason.STOP
        ids = attempt.token_ids[:-1] if stopped else attempt.token_ids
        tag = self.writer.plan.thought_end
        is_open = not stopped and tag and tag not in b"".join(self.writer.pieces(attempt))
        between = prompter.next_turn(question(prompter, self.sentence, problem.problem))
        return [*ids, *(prompter.ids(tag.decode()) if is_open else []), *prompter.ids(between)]


def question(prompter: Prompter, sentence: str | None, problem: str) -> str:
    return problem + prompter.prompt.instruction if sentence is None else sentence


def longest_turn(prompter: Prompter, sentence: str | None, sampling: BenchmarkSampling) -> int:
    """Between two attempts."""
    said = prompter.ids(prompter.next_turn(sentence or ""))
    again = repeated_problem_tokens(sentence, sampling)
    return len(said) + again + len(prompter.ids(sampling.prompt.thought_end) if sampling.prompt.thought_end else [])


def repeated_problem_tokens(sentence: str | None, sampling: BenchmarkSampling) -> int:
    """The most tokens of the problem between two attempts; 0 where a sentence stands there."""
    return sampling.max_prompt_tokens if sentence is None else 0


class HistoryConditioned(Mode):
    """The model's own first attempt stands in the prompt, as an earlier turn, and the model answers again. The first
    attempt has the seed of a direct evaluation. Both are recorded; the second one is the result.

    Source: paper, experiments with backtracking.
    """

    boundaries: ClassVar[Boundaries] = Boundaries.LAST_ATTEMPT
    type: Literal["history_conditioned"] = "history_conditioned"
    backtrack: str | None = DEFAULT_SEND_BACK
    """The sentence after the attempt that sends the model back; null says the problem again in its place."""
    attempt_tokens: Tokens | None = None
    """The maximum number of tokens of the first attempt; null takes evaluation.max_tokens."""

    @property
    def stages(self) -> tuple[str, ...]:
        return ("first attempt", "second attempt")

    def sampler(self, writer: Writer) -> RevisionRounds:
        limit = writer.settings.max_tokens
        return RevisionRounds(writer, (self.attempt_tokens or limit, limit), 1, self.backtrack)

    def longest(self, prompter: Prompter, sampling: BenchmarkSampling) -> int:
        """Both attempts, and what stands between them."""
        limit = sampling.max_tokens
        return (self.attempt_tokens or limit) + longest_turn(prompter, self.backtrack, sampling) + limit

    def tokens_held(self, sampling: BenchmarkSampling) -> int:
        """Both attempts, and the problem where it is said again."""
        limit = sampling.max_tokens
        return (self.attempt_tokens or limit) + repeated_problem_tokens(self.backtrack, sampling) + limit

    def expected_tokens(self, trace: float) -> float:
        return min(trace, self.attempt_tokens or trace) + trace


class Linearised(Mode):
    """The model revises its answer in rounds. Each prompt holds the problem and the last attempts, a sliding window.
    Every round is recorded and graded; the last one is the result.

    Source: paper, experiments with backtracking (linearised evaluation).
    """

    boundaries: ClassVar[Boundaries] = Boundaries.LAST_ATTEMPT
    type: Literal["linearised"] = "linearised"
    rounds: Annotated[int, Field(ge=2, le=1000)] = 4
    """The number of attempts of a sample, the first one included."""
    window: Count = 1
    """The maximum number of attempts that a prompt holds."""
    round_tokens: Tokens | None = None
    """The maximum number of tokens of one attempt; null takes evaluation.max_tokens."""
    backtrack: str | None = DEFAULT_SEND_BACK
    """The sentence after an attempt that sends the model back; null says the problem again in its place."""

    @property
    def stages(self) -> tuple[str, ...]:
        return tuple(f"round {number + 1}" for number in range(self.rounds))

    def sampler(self, writer: Writer) -> RevisionRounds:
        limit = self.round_tokens or writer.settings.max_tokens
        return RevisionRounds(writer, [limit] * self.rounds, self.window, self.backtrack)

    def longest(self, prompter: Prompter, sampling: BenchmarkSampling) -> int:
        """A full window, what follows each attempt, and the attempt after it."""
        limit = self.round_tokens or sampling.max_tokens
        shown = min(self.window, self.rounds - 1)
        return shown * (limit + longest_turn(prompter, self.backtrack, sampling)) + limit

    def tokens_held(self, sampling: BenchmarkSampling) -> int:
        """A full window, the problem where it is said again, and the attempt after it."""
        limit = self.round_tokens or sampling.max_tokens
        return min(self.window, self.rounds - 1) * (limit + repeated_problem_tokens(self.backtrack, sampling)) + limit

    def expected_tokens(self, trace: float) -> float:
        return self.rounds * min(trace, self.round_tokens or trace)
