"""A trace while several requests write it: what was sampled, what was inserted, and what is dropped again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mrt_hpc.inference.client import Completion
    from mrt_hpc.inference.traces import SampledTrace


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
    completions: tuple[Completion, ...] = ()
    """The answers of the server, in order; dropped tokens are still in them."""
    family: str = ""
    """The problem of the trace, see :class:`mrt_hpc.inference.protocol.Request`."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def all_ids(self) -> list[int]:
        """The tokens that the model continues from."""
        return [*self.context_ids, *self.token_ids]

    def sampled(self, completion: Completion) -> Draft:
        """Add the tokens of a completion."""
        return replace(
            self,
            token_ids=(*self.token_ids, *completion.token_ids),
            logprobs=(*self.logprobs, *completion.logprobs),
            completions=(*self.completions, completion),
        )

    def with_inserted(self, ids: Sequence[int]) -> Draft:
        """Add tokens that the model did not choose. Their probability is 1, so their log-probability is 0."""
        if not ids:
            return self
        return replace(
            self,
            token_ids=(*self.token_ids, *ids),
            logprobs=(*self.logprobs, *[0.0] * len(ids)),
            inserted=(*self.inserted, (len(self), len(ids))),
        )

    def kept(self, count: int) -> Draft:
        """Drop all tokens after the first ``count``."""
        spans = [(start, min(length, count - start)) for start, length in self.inserted if start < count]
        return replace(self, token_ids=self.token_ids[:count], logprobs=self.logprobs[:count], inserted=tuple(spans))

    def completion(self) -> Completion:
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
