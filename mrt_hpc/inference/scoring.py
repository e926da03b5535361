"""The exact probabilities of answers that are known beforehand, without a branch."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mrt_hpc.inference.traces import ScoredAnswer, ScoringCost, Valuation
from mrt_hpc.inference.wire import MOST_LOGPROBS, Request, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mrt_hpc.inference.branches import Fork
    from mrt_hpc.inference.closing import Writing
    from mrt_hpc.inference.traces import SampledTrace


@dataclass(frozen=True)
class Scorer:
    """Looks up the exact probabilities of answers, by one-token requests that find their prefix in the cache."""

    fork: Fork

    async def score(self, trace: SampledTrace, boundaries: Sequence[int], writings: Sequence[Writing]) -> Valuation:
        """Every answer's probability at every boundary, closing brace included, at mu's temperature."""
        looks = _looks(writings)
        settings = Settings(max_tokens=1, temperature=self.fork.settings.temperature)
        asked = [(j, prefix, ids) for j in boundaries for prefix in looks for ids in _parts(looks[prefix])]
        prompts = {j: self.fork.prompt(trace, j) for j in boundaries}
        requests = [Request([*prompts[j], *prefix], [0], settings, score_ids=ids) for j, prefix, ids in asked]
        logprobs: dict[tuple[int, tuple[int, ...]], dict[int, float]] = defaultdict(dict)
        prompt_tokens = cached_tokens = 0
        async for c in self.fork.generator.stream(requests):
            j, prefix, ids = asked[c.request]
            logprobs[j, prefix].update(zip(ids, c.scores, strict=True))
            prompt_tokens += c.prompt_tokens
            cached_tokens += c.cached_tokens or 0
        answers = [
            ScoredAnswer(j, w.answer, probability(w, {p: logprobs[j, p] for p in looks}))
            for j in boundaries
            for w in writings
        ]
        return Valuation(answers=answers, scoring=ScoringCost(len(requests), prompt_tokens, cached_tokens))


def _looks(writings: Sequence[Writing]) -> dict[tuple[int, ...], list[int]]:
    """For each distinct beginning of the answers, the tokens whose probability is asked for after it."""
    looks: dict[tuple[int, ...], set[int]] = {}
    for writing in writings:
        for i, closings in enumerate(writing.closings):
            if any(writing.closings[i:]):  # nothing is asked beyond the last place where the box can close
                following = writing.token_ids[i : i + 1] if any(writing.closings[i + 1 :]) else ()
                looks.setdefault(writing.token_ids[:i], set()).update(closings, following)
    return {prefix: sorted(ids) for prefix, ids in looks.items()}


def _parts(ids: list[int]) -> list[list[int]]:
    """No more tokens at once than a server tells the probabilities of."""
    return [ids[at : at + MOST_LOGPROBS] for at in range(0, len(ids), MOST_LOGPROBS)]


def probability(writing: Writing, logprobs: Mapping[tuple[int, ...], Mapping[int, float]]) -> float:
    """p(a): of all counted ways of writing an answer.

    Args:
        writing: the ways.
        logprobs: after each of its beginnings, the log-probability of each token that may follow.
    """
    total, reached = 0.0, 0.0
    for i, closings in enumerate(writing.closings):
        after = logprobs.get(writing.token_ids[:i])
        if after is None:
            break
        total += sum(np.exp(reached + after[token]) for token in closings)
        if i < len(writing.token_ids) and writing.token_ids[i] in after:
            reached += after[writing.token_ids[i]]
    return float(total)
