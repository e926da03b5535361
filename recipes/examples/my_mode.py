"""A way of evaluating of a user's own, as it lies beside a recipe: a thought that has ended goes on once.

docs/extending.md explains it; tests/unit/test_modes.py runs it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from mrt_hpc import BenchmarkSampling, Draft, Mode, PromptedGroup, Prompter, SampledTrace, Writer, needs_tags


class OneMoreLook(Mode):
    """A word is inserted once in place of the closing tag; the model then thinks on, and answers."""

    type: str
    word: str = "Wait"
    """The word."""

    def sampler(self, writer: Writer) -> OneMoreLookSampler:
        """Return what samples the traces."""
        return OneMoreLookSampler(writer, self.word)

    def longest(self, prompter: Prompter, sampling: BenchmarkSampling) -> int:
        """Return the tokens of the thought, of a blank line and the word, and of what follows."""
        return 2 * sampling.max_tokens + len(prompter.ids(f"\n\n{self.word}"))

    def tokens_held(self, sampling: BenchmarkSampling) -> int:
        """Return the same without the blank line and the word, for which no tokenizer is needed."""
        return 2 * sampling.max_tokens

    def check(self, sampling: BenchmarkSampling) -> None:
        """Refuse a prompt without a closing tag."""
        needs_tags(sampling, self)


@dataclass(frozen=True)
class OneMoreLookSampler:
    """Samples a thought, inserts the word, and samples to the end."""

    writer: Writer
    word: str

    async def traces(self, group: PromptedGroup, sample: int) -> AsyncIterator[SampledTrace]:
        """Yield the one trace of a sample; its boundaries are those of its episodes."""
        writer, problem = self.writer, group.problem.id
        limit = writer.settings.max_tokens
        seed = writer.plan.rollout_seed(problem, sample)
        thought = await writer.think(Draft(group.prompt_ids), seed, limit)
        longer = writer.paragraph(writer.settled(thought), self.word)
        whole = await writer.complete(longer, writer.plan.seed("second look", problem, sample), limit)
        yield writer.trace(group, sample, whole)
