"""Writes drafts through one server: samples thoughts and answers, and inserts texts.

Every request continues from the tokens of the one before it, so the server finds them in its prefix cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from mrt_hpc.inference.protocol import Request, SamplingSettings
from mrt_hpc.inference.sampler import tokens_reaching, tokens_within
from mrt_hpc.inference.traces import Start
from mrt_hpc.modes.draft import Draft, as_stage
from mrt_hpc.modes.paragraphs import paragraph_break, whole_paragraphs
from mrt_hpc.run.records import FinishReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mrt_hpc.inference.prompting import Prompter
    from mrt_hpc.inference.sampler import Generator, RolloutPlan, TraceCutter
    from mrt_hpc.inference.traces import PromptedGroup, SampledTrace


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
