"""Rounds of revision with a bounded history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from mrt_hpc.modes.base import Mode
from mrt_hpc.modes.rounds import Rounds, longest_turn, said_again
from mrt_hpc.recipe.base import Count, Tokens
from mrt_hpc.recipe.prompts import DEFAULT_SEND_BACK

if TYPE_CHECKING:
    from mrt_hpc.inference.prompting import Prompter
    from mrt_hpc.modes.writer import Writer
    from mrt_hpc.recipe.benchmark_sampling import BenchmarkSampling


class Linearised(Mode):
    """The model revises its answer in rounds. The prompt of each round holds the problem and the last attempts, a
    sliding window. Every round is recorded and graded; the last one is the result.

    Source: paper, experiments with backtracking (linearised evaluation).
    """

    adds_stages: ClassVar[bool] = True
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
        """The rounds."""
        return tuple(f"round {number + 1}" for number in range(self.rounds))

    def sampler(self, writer: Writer) -> Rounds:
        """Return the rounds."""
        limit = self.round_tokens or writer.settings.max_tokens
        return Rounds(writer, [limit] * self.rounds, self.window, self.backtrack)

    def longest(self, prompter: Prompter, sampling: BenchmarkSampling) -> int:
        """Return the tokens of a full window, of what follows each attempt, and of the attempt after it."""
        limit = self.round_tokens or sampling.max_tokens
        shown = min(self.window, self.rounds - 1)
        return shown * (limit + longest_turn(prompter, self.backtrack, sampling)) + limit

    def tokens_held(self, sampling: BenchmarkSampling) -> int:
        """Return the tokens of a full window, of the problem where it is said again, and of the attempt after it."""
        limit = self.round_tokens or sampling.max_tokens
        return min(self.window, self.rounds - 1) * (limit + said_again(self.backtrack, sampling)) + limit

    def expected_tokens(self, trace: float) -> float:
        """Return the expected tokens of all rounds."""
        return self.rounds * min(trace, self.round_tokens or trace)
