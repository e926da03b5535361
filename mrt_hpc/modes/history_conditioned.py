"""The model sees its own first attempt, and answers again."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from mrt_hpc.modes.base import Mode
from mrt_hpc.modes.rounds import Rounds, longest_turn, said_again
from mrt_hpc.recipe.base import Tokens
from mrt_hpc.recipe.prompts import DEFAULT_SEND_BACK

if TYPE_CHECKING:
    from mrt_hpc.inference.prompting import Prompter
    from mrt_hpc.modes.writer import Writer
    from mrt_hpc.recipe.benchmark_sampling import BenchmarkSampling


class HistoryConditioned(Mode):
    """The model's own first attempt stands in the prompt, as an earlier turn, and the model answers again. The first
    attempt of a sample has the seed of a direct evaluation. Both are recorded; the second one is the result.

    Source: paper, experiments with backtracking.
    """

    adds_stages: ClassVar[bool] = True
    type: Literal["history_conditioned"] = "history_conditioned"
    backtrack: str | None = DEFAULT_SEND_BACK
    """The sentence after the attempt that sends the model back; null says the problem again in its place."""
    attempt_tokens: Tokens | None = None
    """The maximum number of tokens of the first attempt; null takes evaluation.max_tokens."""

    @property
    def stages(self) -> tuple[str, ...]:
        """The first attempt and the second one."""
        return ("first attempt", "second attempt")

    def sampler(self, writer: Writer) -> Rounds:
        """Two rounds, of which the second sees the first."""
        limit = writer.settings.max_tokens
        return Rounds(writer, (self.attempt_tokens or limit, limit), 1, self.backtrack)

    def longest(self, prompter: Prompter, sampling: BenchmarkSampling) -> int:
        """Return the tokens of both attempts, and of what stands between them."""
        limit = sampling.max_tokens
        return (self.attempt_tokens or limit) + longest_turn(prompter, self.backtrack, sampling) + limit

    def tokens_held(self, sampling: BenchmarkSampling) -> int:
        """Return the tokens of both attempts, and of the problem where it is said again."""
        limit = sampling.max_tokens
        return (self.attempt_tokens or limit) + said_again(self.backtrack, sampling) + limit

    def expected_tokens(self, trace: float) -> float:
        """Return the expected tokens of both attempts."""
        return min(trace, self.attempt_tokens or trace) + trace
