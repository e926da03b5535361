"""Writes drafts through one server: samples thoughts and answers, and inserts texts. Every request continues from the
tokens of the one before it, which are in the server's prefix cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.protocol import Request, SamplingSettings
from mrt_hpc.inference.sampler import Generator, RolloutPlan, TraceCutter, tokens_reaching, tokens_within
from mrt_hpc.inference.traces import PromptedGroup, SampledTrace, Start
from mrt_hpc.run.records import FinishReason

if TYPE_CHECKING:
    from mrt_hpc.inference.client import Completion


@dataclass(frozen=True)
class Draft:
    """The tokens of a trace so far. Every method returns another draft."""

    context_ids: list[int]
    """The tokens before the trace."""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """[T] of the tokens; 0 for an inserted one."""
    inserted: tuple[tuple[int, int], ...] = ()
    """The first index and the number of tokens of each stretch that was not sampled."""
    completions: "tuple[Completion, ...]" = ()
    """The answers of the server, in order, with dropped tokens."""
    family: str = ""
    """The problem of the trace, see :class:`mrt_hpc.inference.protocol.Request`."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def all_ids(self) -> list[int]:
        return [*self.context_ids, *self.token_ids]

    def add_completion(self, completion: "Completion") -> "Draft":
        return replace(
            self,
            token_ids=(*self.token_ids, *completion.token_ids),
            logprobs=(*self.logprobs, *completion.logprobs),
            completions=(*self.completions, completion),
        )

    def insert_tokens(self, ids: Sequence[int]) -> "Draft":
        """Tokens that the model did not choose have probability 1, so their log-probability is 0."""
        if not ids:
            return self
        return replace(
            self,
            token_ids=(*self.token_ids, *ids),
            logprobs=(*self.logprobs, *[0.0] * len(ids)),
            inserted=(*self.inserted, (len(self), len(ids))),
        )

    def keep_first(self, count: int) -> "Draft":
        spans = [(start, min(length, count - start)) for start, length in self.inserted if start < count]
        return replace(self, token_ids=self.token_ids[:count], logprobs=self.logprobs[:count], inserted=tuple(spans))

    def completion(self) -> "Completion":
        """The whole as one completion: the seed of the first request, the end of the last one, and the sums of prompt
        tokens, cached tokens and seconds.
        """
        first, last = self.completions[0], self.completions[-1]
        return replace(
            first,
            token_ids=list(self.token_ids),
            logprobs=list(self.logprobs),
            finish_reason=last.finish_reason,
            weights_version=last.weights_version,
            prompt_tokens=sum(c.prompt_tokens for c in self.completions),
            cached_tokens=sum(c.cached_tokens or 0 for c in self.completions),
            seconds=sum(c.seconds for c in self.completions),
        )


def place_stage(trace: SampledTrace, draft: Draft, stage: int, stages: int) -> SampledTrace:
    """With its place among the traces of its sample, and with the inserted tokens."""
    inserted = [list(span) for span in draft.inserted]
    return replace(trace, sample=trace.sample * stages + stage, stage=stage, stages=stages, inserted=inserted)


# Where a thought may be cut or continued: after a whole paragraph.


BLANK_LINE = b"\n\n"


def whole_paragraphs(pieces: Sequence[bytes]) -> int:
    """The number of tokens up to the end of the last blank line: the rest is an unfinished paragraph, with a token that
    reaches beyond the blank line. A text without a blank line is kept whole. ``pieces``: [T] bytes of each token.
    """
    text = b"".join(pieces)
    last = text.rfind(BLANK_LINE)
    return len(pieces) if last < 0 else tokens_within(pieces, last + len(BLANK_LINE))


def paragraph_break(text: bytes) -> str:
    """Newlines that a text lacks for another paragraph to begin."""
    if not text or text.endswith(BLANK_LINE):
        return ""
    return "\n" if text.endswith(b"\n") else "\n\n"


@dataclass(frozen=True)
class Thought:
    """One that has ended, or that a limit has cut."""

    draft: Draft
    """Without the closing tag."""
    closed: Draft | None
    """With the closing tag that the model wrote; None where it wrote none."""
    ended: bool
    """Whether the model ended it; False where the limit cut it."""


@dataclass(frozen=True)
class Writer:
    generator: Generator
    """Of the server with the policy."""
    prompter: Prompter
    cutter: TraceCutter
    settings: SamplingSettings
    """``max_tokens`` is the limit of a completion that is sampled in one request."""

    @property
    def plan(self) -> RolloutPlan:
        """How requests are seeded."""
        return self.cutter.plan

    def pieces(self, draft: Draft) -> list[bytes]:
        """[T] the bytes of each token."""
        return self.cutter.tokens.pieces(draft.token_ids)

    async def complete(self, draft: Draft, seed: int, max_tokens: int) -> Draft:
        return await self._sample_draft(draft, seed, msgspec.structs.replace(self.settings, max_tokens=max_tokens))

    async def think(self, draft: Draft, seed: int, max_tokens: int) -> Thought:
        """Sample to the closing tag, to the end of the completion, or to the limit."""
        stops = {*self.settings.stop_token_ids, *self._closing_token}
        settings = msgspec.structs.replace(self.settings, max_tokens=max_tokens, stop_token_ids=tuple(sorted(stops)))
        return self._thought(len(draft), await self._sample_draft(draft, seed, settings))

    @property
    def _closing_token(self) -> list[int]:
        """The closing tag where it is one token. A longer one is looked for in the text, whose rest is dropped."""
        ids = self.prompter.ids(self.plan.thought_end.decode())
        return ids if len(ids) == 1 else []

    def _thought(self, before: int, draft: Draft) -> Thought:
        """The tokens after the first ``before`` were sampled just now."""
        tag, pieces = self.plan.thought_end, self.pieces(draft)[before:]
        at = b"".join(pieces).find(tag)
        if at >= 0:
            closed = before + tokens_reaching(pieces, at + len(tag))
            return Thought(draft.keep_first(before + tokens_within(pieces, at)), draft.keep_first(closed), ended=True)
        if draft.completions[-1].finish_reason is FinishReason.STOP:
            return Thought(draft.keep_first(len(draft) - 1), None, ended=True)
        return Thought(draft, None, ended=False)

    def settled(self, thought: Thought) -> Draft:
        """Without the paragraph that the limit has cut."""
        return (
            thought.draft if thought.ended else thought.draft.keep_first(whole_paragraphs(self.pieces(thought.draft)))
        )

    def paragraph(self, draft: Draft, word: str) -> Draft:
        """Begin another paragraph of the thought with a word."""
        gap = paragraph_break(b"".join(self.pieces(draft)))
        return draft.insert_tokens([*(self.prompter.ids(gap) if gap else []), *self.prompter.ids(word)])

    def insert(self, draft: Draft, text: str) -> Draft:
        return draft.insert_tokens(self.prompter.ids(text))

    async def _sample_draft(self, draft: Draft, seed: int, settings: SamplingSettings) -> Draft:
        request = Request(draft.all_ids, [seed], settings, family=draft.family)
        async for completion in self.generator.stream([request]):
            draft = draft.add_completion(completion)
        return draft

    def trace(
        self,
        group: PromptedGroup,
        sample: int,
        draft: Draft,
        *,
        boundaries: Sequence[int] | None = None,
        stage: int = 0,
        stages: int = 1,
    ) -> SampledTrace:
        """A finished draft as a trace.

        Args:
            sample: its number within the group.
            boundaries: [k + 1] where values are asked for; None cuts the thought into episodes.
            stage: its number among the traces of the sample.
            stages: how many these are.
        """
        start = Start(draft.context_ids, 1, self.settings)
        trace = self.cutter.cut(group, start, sample, draft.completion())
        placed = place_stage(trace, draft, stage, stages)
        return placed if boundaries is None else replace(placed, boundaries=list(boundaries), credit_bounds=[])
