"""Extrapolation past the budget of the training, by words in place of the closing tag."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.traces import PromptedGroup, SampledTrace
from mrt_hpc.modes.base import Mode, check_texts, needs_tags
from mrt_hpc.modes.writer import Draft, Writer
from mrt_hpc.recipe.base import Count, Tokens, misfit
from mrt_hpc.recipe.choices import Boundaries
from mrt_hpc.recipe.kinds import DEFAULT_FORCED_TEXT
from mrt_hpc.recipe.sections import BenchmarkSampling

CONTINUATION_WORDS = ("Wait", "Alternatively", "But wait", "But hold on")
"""In place of the closing tag, so that the thought goes on."""


class Extrapolation(Mode):
    """A thought of at most evaluation.max_tokens goes on past its end: a word is inserted in place of the closing tag,
    and up to ``tokens`` more are sampled, ``extensions`` times. A paragraph that a limit has cut is dropped. Values are
    asked for at the start, where the thought would have ended, and after every ``value_every`` extensions: boundary 1
    belongs to evaluation.max_tokens, boundary j + 1 to j * value_every * tokens more. The reward is that of the answer
    after the last extension.

    Source: paper, Appendix F (extrapolation), and the authors' code (pass_at_k_extrapolate.py), which lets the thought
    go on from each such point instead of forcing an answer.
    """

    boundaries: ClassVar[Boundaries] = Boundaries.EXTENSIONS
    type: Literal["extrapolation"] = "extrapolation"
    words: Annotated[tuple[str, ...], Field(min_length=1)] = CONTINUATION_WORDS
    """The words that continue the thought, in rotation."""
    extensions: Count = 8
    """The number of extensions."""
    tokens: Tokens = 2048
    """The maximum number of tokens that one extension samples."""
    value_every: Count = 2
    """The number of extensions between two values."""
    forced_text: str = DEFAULT_FORCED_TEXT
    """The text that ends the thought after the last extension and starts the answer, unless the model ends it."""
    answer_tokens: Tokens = 1024
    """The maximum number of tokens of the answer."""

    def boundary_budgets(self, base: int) -> tuple[int, ...]:
        """The tokens that each boundary after the first stands for. ``base`` is evaluation.max_tokens."""
        return tuple(base + self.tokens * w for w in range(0, self.extensions + 1, self.value_every))

    def word(self, extension: int) -> str:
        """The word that begins an extension; these are numbered from 0."""
        return self.words[extension % len(self.words)]

    def sampler(self, writer: Writer) -> "Extender":
        return Extender(self, writer)

    def longest(self, prompter: Prompter, sampling: BenchmarkSampling) -> int:
        """The thought with all extensions and words, the text after it, and the answer."""
        words = max(len(prompter.ids("\n\n")) + len(prompter.ids(word)) for word in self.words)
        thought = sampling.max_tokens + self.extensions * (self.tokens + words)
        return thought + len(prompter.ids(self.forced_text)) + self.answer_tokens

    def tokens_held(self, sampling: BenchmarkSampling) -> int:
        """The thought with all extensions, and the answer."""
        return sampling.max_tokens + self.extensions * self.tokens + self.answer_tokens

    def expected_tokens(self, trace: float) -> float:
        return trace + self.extensions * self.tokens

    def check(self, sampling: BenchmarkSampling) -> None:
        """Refuse texts that end no thought, and extensions after the last value."""
        needs_tags(sampling, self)
        check_texts(sampling, self, self.words, self.forced_text)
        if self.extensions % self.value_every:
            raise misfit(
                "evaluation.benchmarks",
                f"extensions of mode extrapolation that are a multiple of value_every; {self.extensions} is none of "
                f"{self.value_every}",
            )


@dataclass(frozen=True)
class Extender:
    mode: Extrapolation
    writer: Writer

    async def traces(self, group: PromptedGroup, sample: int) -> AsyncIterator[SampledTrace]:
        """The one trace of a sample; its first request has the seed of a direct evaluation."""
        writer, mode, problem = self.writer, self.mode, group.problem.id
        seed = writer.plan.rollout_seed(problem, sample)
        thought = await writer.think(Draft(group.prompt_ids, family=group.problem.id), seed, writer.settings.max_tokens)
        points = [0, len(writer.settled(thought))]
        for extension in range(mode.extensions):
            longer = writer.paragraph(writer.settled(thought), mode.word(extension))
            seed = writer.plan.seed("extension", problem, sample, extension + 1)
            thought = await writer.think(longer, seed, mode.tokens)
            if (extension + 1) % mode.value_every == 0:
                points.append(len(writer.settled(thought)))
        closed = thought.closed or writer.insert(writer.settled(thought), mode.forced_text)
        whole = await writer.complete(closed, writer.plan.seed("budget", problem, sample, 0), mode.answer_tokens)
        yield writer.trace(group, sample, whole, boundaries=points)
