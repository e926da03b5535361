"""Writes drafts through one server: samples thoughts and answers, and inserts texts.

Every request continues from the tokens of the one before it, so the server finds them in its prefix cache.
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
    """The tokens that the trace begins after."""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """[T] of the tokens; 0 for an inserted one."""
    inserted: tuple[tuple[int, int], ...] = ()
    """The first index and the number of tokens of each stretch that was not sampled."""
    completions: "tuple[Completion, ...]" = ()
    """The answers of the server, in order; dropped tokens are still in them."""
    family: str = ""
    """The problem of the trace, see :class:`mrt_hpc.inference.protocol.Request`."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def all_ids(self) -> list[int]:
        """The tokens that the model continues from."""
        return [*self.context_ids, *self.token_ids]

    def sampled(self, completion: "Completion") -> "Draft":
        """Add the tokens of a completion."""
        return replace(
            self,
            token_ids=(*self.token_ids, *completion.token_ids),
            logprobs=(*self.logprobs, *completion.logprobs),
            completions=(*self.completions, completion),
        )

    def with_inserted(self, ids: Sequence[int]) -> "Draft":
        """Add tokens that the model did not choose. Their probability is 1, so their log-probability is 0."""
        if not ids:
            return self
        return replace(
            self,
            token_ids=(*self.token_ids, *ids),
            logprobs=(*self.logprobs, *[0.0] * len(ids)),
            inserted=(*self.inserted, (len(self), len(ids))),
        )

    def kept(self, count: int) -> "Draft":
        """Drop all tokens after the first ``count``."""
        spans = [(start, min(length, count - start)) for start, length in self.inserted if start < count]
        return replace(self, token_ids=self.token_ids[:count], logprobs=self.logprobs[:count], inserted=tuple(spans))

    def completion(self) -> "Completion":
        """Return the whole as one completion: its seed is that of the first request, its end that of the last one.

        The prompt tokens, the cached ones and the seconds are the sums over the requests.
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


def as_stage(trace: SampledTrace, draft: Draft, stage: int, stages: int) -> SampledTrace:
    """Return a trace with its place among those of its sample, and with the tokens that were inserted into it."""
    inserted = [list(span) for span in draft.inserted]
    return replace(trace, sample=trace.sample * stages + stage, stage=stage, stages=stages, inserted=inserted)


# Where a thought may be cut or continued: after a whole paragraph.


BLANK_LINE = b"\n\n"


def whole_paragraphs(pieces: Sequence[bytes]) -> int:
    """Return the number of tokens up to the end of the last blank line: what follows is an unfinished paragraph.

    A token that reaches beyond the blank line belongs to the unfinished paragraph. A text without a blank line is kept
    whole.

    Args:
        pieces: [T] the bytes of each token of a thought that a limit has cut.
    """
    text = b"".join(pieces)
    last = text.rfind(BLANK_LINE)
    return len(pieces) if last < 0 else tokens_within(pieces, last + len(BLANK_LINE))


def paragraph_break(text: bytes) -> str:
    """Return the newlines that a text lacks for another paragraph to begin."""
    if not text or text.endswith(BLANK_LINE):
        return ""
    return "\n" if text.endswith(b"\n") else "\n\n"


@dataclass(frozen=True)
class Thought:
    """A thought that has ended, or that a limit has cut."""

    draft: Draft
    """The thought without the closing tag."""
    closed: Draft | None
    """The thought with the closing tag that the model wrote; None where it wrote none."""
    ended: bool
    """Whether the model ended it; False where the limit cut it."""


@dataclass(frozen=True)
class Writer:
    """Samples and inserts the parts of traces."""

    generator: Generator
    """The client of the server that serves the policy."""
    prompter: Prompter
    cutter: TraceCutter
    settings: SamplingSettings
    """How completions are sampled; ``max_tokens`` is the limit of one that is sampled in one request."""

    @property
    def plan(self) -> RolloutPlan:
        """How requests are seeded."""
        return self.cutter.plan

    def pieces(self, draft: Draft) -> list[bytes]:
        """Return [T] the bytes of each token."""
        return self.cutter.tokens.pieces(draft.token_ids)

    async def complete(self, draft: Draft, seed: int, max_tokens: int) -> Draft:
        """Sample to the end of the completion."""
        return await self._sampled(draft, seed, msgspec.structs.replace(self.settings, max_tokens=max_tokens))

    async def think(self, draft: Draft, seed: int, max_tokens: int) -> Thought:
        """Sample to the closing tag, to the end of the completion, or to the limit."""
        stops = {*self.settings.stop_token_ids, *self._closing_token}
        settings = msgspec.structs.replace(self.settings, max_tokens=max_tokens, stop_token_ids=tuple(sorted(stops)))
        return self._thought(len(draft), await self._sampled(draft, seed, settings))

    @property
    def _closing_token(self) -> list[int]:
        """The closing tag where it is one token. A longer one is looked for in the text, whose rest is dropped."""
        ids = self.prompter.ids(self.plan.thought_end.decode())
        return ids if len(ids) == 1 else []

    def _thought(self, before: int, draft: Draft) -> Thought:
        """The thought in a draft whose tokens after the first ``before`` were sampled just now."""
        tag, pieces = self.plan.thought_end, self.pieces(draft)[before:]
        at = b"".join(pieces).find(tag)
        if at >= 0:
            closed = before + tokens_reaching(pieces, at + len(tag))
            return Thought(draft.kept(before + tokens_within(pieces, at)), draft.kept(closed), ended=True)
        if draft.completions[-1].finish_reason is FinishReason.STOP:
            return Thought(draft.kept(len(draft) - 1), None, ended=True)
        return Thought(draft, None, ended=False)

    def settled(self, thought: Thought) -> Draft:
        """Return a thought without the paragraph that the limit has cut."""
        return thought.draft if thought.ended else thought.draft.kept(whole_paragraphs(self.pieces(thought.draft)))

    def paragraph(self, draft: Draft, word: str) -> Draft:
        """Begin another paragraph of the thought with a word."""
        gap = paragraph_break(b"".join(self.pieces(draft)))
        return draft.with_inserted([*(self.prompter.ids(gap) if gap else []), *self.prompter.ids(word)])

    def insert(self, draft: Draft, text: str) -> Draft:
        """Add a text that the model did not choose."""
        return draft.with_inserted(self.prompter.ids(text))

    async def _sampled(self, draft: Draft, seed: int, settings: SamplingSettings) -> Draft:
        request = Request(draft.all_ids, [seed], settings, family=draft.family)
        async for completion in self.generator.stream([request]):
            draft = draft.sampled(completion)
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
        """Return a draft as a trace.

        Args:
            group: of its problem.
            sample: the number of its sample within the group.
            draft: finished.
            boundaries: [k + 1] where values are asked for; None cuts the thought into episodes.
            stage: its number among the traces of the sample.
            stages: how many these are.
        """
        start = Start(draft.context_ids, 1, self.settings)
        trace = self.cutter.cut(group, start, sample, draft.completion())
        placed = as_stage(trace, draft, stage, stages)
        return placed if boundaries is None else replace(placed, boundaries=list(boundaries))
