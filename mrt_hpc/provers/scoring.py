"""The exact probabilities of answers that are known beforehand, without a branch.

A model may write one answer in several ways: ``12`` as one token or as two, its box closed by ``}`` or by ``}.``. The
probability of the answer is the sum over these ways. They form a tree of beginnings. The beginnings that the tokenizer
itself would write are asked about at once; another one is asked about where more than a small share of the sum may lie
behind it. What is left out is bounded: it is less than the probability of all beginnings that nothing was asked after.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from mrt_hpc.inference.protocol import MOST_LOGPROBS, Request, SamplingSettings
from mrt_hpc.inference.traces import SampledTrace, ScoredAnswer, ScoringCost, Valuation
from mrt_hpc.provers.box_tokens import Writing
from mrt_hpc.provers.branches import Fork

Prefix = tuple[int, ...]
Looks = dict[tuple[int, Prefix], set[int]]
"""The tokens whose probability is asked for, by boundary and beginning."""
SMALL_SHARE = 1e-3
"""The share of an answer's probability below which a beginning is left out."""
SMALL = 1e-5
"""The probability below which a beginning is left out whatever the answer's own is: rewards are 0 or 1, and values are
their means.
"""
MOST_OPENED = 64
"""The maximum number of beginnings of one answer at one boundary, beside the tokenizer's own."""


@dataclass
class Count:
    """The ways of writing one answer at one boundary that have been counted so far."""

    writing: Writing
    most_tokens: int
    """The maximum number of tokens of a way, closing token included: a branch is no longer."""
    probability: float = 0.0
    """The probability of the ways counted so far."""
    opened: set[Prefix] = field(default_factory=set)
    """The beginnings after which every way of closing the box is counted."""
    waiting: dict[Prefix, float] = field(default_factory=lambda: {(): 1.0})
    """The probability of each beginning that nothing was asked after: no more than this can be missing behind it."""

    @property
    def own(self) -> list[Prefix]:
        """The tokenizer's own beginnings."""
        return [prefix for prefix in self.writing.beginnings if len(prefix) < self.most_tokens]

    @property
    def worthwhile(self) -> list[Prefix]:
        """The beginnings behind which more than a small share may lie, the likeliest first."""
        least = max(SMALL, SMALL_SHARE * self.probability)
        likely = sorted((p for p, mass in self.waiting.items() if mass > least), key=lambda p: -self.waiting[p])
        return likely[: max(0, MOST_OPENED + len(self.own) - len(self.opened))]

    @property
    def missing(self) -> float:
        """The largest probability that the ways which are not counted can have together."""
        return sum(self.waiting.values())

    def asked(self, prefix: Prefix) -> set[int]:
        """The tokens whose probability after a beginning is needed."""
        return {*self._closing(prefix), *self._following(prefix)}

    def open(self, prefix: Prefix, logprobs: Mapping[int, float]) -> None:
        """Count the ways that end right after a beginning, and add the beginnings that continue it.

        Args:
            prefix: one of those waiting.
            logprobs: of the tokens asked for after it.
        """
        mass = self.waiting.pop(prefix)
        self.opened.add(prefix)
        self.probability += mass * float(sum(np.exp(logprobs[token]) for token in self._closing(prefix)))
        for token in self._following(prefix):
            self.waiting[*prefix, token] = mass * float(np.exp(logprobs[token]))

    def holds(self, token_ids: Sequence[int]) -> bool:
        """Whether a branch of exactly these tokens is one of the counted ways."""
        prefix = tuple(token_ids[:-1])
        return prefix in self.opened and bool(token_ids) and token_ids[-1] in self._closing(prefix)

    def _closing(self, prefix: Prefix) -> tuple[int, ...]:
        step = self.writing.step(prefix)
        return () if step is None else step.closing

    def _following(self, prefix: Prefix) -> Iterable[int]:
        """The tokens that continue a beginning, where a way behind them is still short enough."""
        step = self.writing.step(prefix)
        return () if step is None or len(prefix) + 2 > self.most_tokens else step.following


@dataclass(frozen=True)
class Scored:
    """The probabilities of the known answers, before a branch is drawn."""

    valuation: Valuation
    counts: dict[int, list[Count]]
    """The counts by boundary, one for each answer."""


@dataclass(frozen=True)
class Scorer:
    """Looks up the exact probabilities of answers, by one-token requests that find their prefix in the cache."""

    fork: Fork

    async def score(self, trace: SampledTrace, boundaries: Sequence[int], writings: Sequence[Writing]) -> Scored:
        """Every answer's probability at every boundary, closing brace included, at mu's temperature."""
        longest = self.fork.settings.max_tokens
        counts = {j: [Count(writing, longest) for writing in writings] for j in boundaries}
        looks = {j: self._look(trace, j) for j in boundaries}
        cost = await self._open(looks, [(j, count, count.own) for j in boundaries for count in counts[j]])
        while todo := [(j, c, likely) for j in boundaries for c in counts[j] if (likely := c.worthwhile)]:
            cost += await self._open(looks, todo)
        answers = [ScoredAnswer(j, c.writing.answer, c.probability) for j in boundaries for c in counts[j]]
        return Scored(Valuation(answers=answers, scoring=cost), counts)

    def _look(self, trace: SampledTrace, boundary: int) -> Request:
        """The request for the first token after a boundary."""
        settings = SamplingSettings(max_tokens=1, temperature=self.fork.settings.temperature)
        return Request(self.fork.prompt(trace, boundary), [0], settings, family=trace.group.problem.id)

    async def _open(self, looks: Mapping[int, Request], todo: Sequence[tuple[int, Count, list[Prefix]]]) -> ScoringCost:
        """Ask what follows some beginnings, each once for all answers that begin so, and count it."""
        wanted = _looks(todo)
        asked = [(j, prefix, ids) for (j, prefix), tokens in wanted.items() for ids in _parts(sorted(tokens))]
        requests = [_after(looks[j], prefix, ids) for j, prefix, ids in asked]
        logprobs: dict[tuple[int, Prefix], dict[int, float]] = defaultdict(dict)
        prompt_tokens = cached_tokens = 0
        async for c in self.fork.generator.stream(requests):
            j, prefix, ids = asked[c.request]
            logprobs[j, prefix].update(zip(ids, c.scores, strict=True))
            prompt_tokens += c.prompt_tokens
            cached_tokens += c.cached_tokens or 0
        for j, count, prefixes in todo:
            for prefix in sorted(prefixes, key=len):  # a beginning waits until the one before it is counted
                count.open(prefix, logprobs[j, prefix])
        return ScoringCost(len(requests), prompt_tokens, cached_tokens)


def _after(look: Request, prefix: Prefix, score_ids: list[int]) -> Request:
    """The request that looks at some tokens after a beginning of an answer."""
    return msgspec.structs.replace(look, prompt_ids=[*look.prompt_ids, *prefix], score_ids=score_ids)


def _looks(todo: Sequence[tuple[int, Count, list[Prefix]]]) -> Looks:
    """The tokens to ask for; answers share the requests at their common beginnings."""
    looks: Looks = defaultdict(set)
    for j, count, prefixes in todo:
        for prefix in prefixes:
            looks[j, prefix] |= count.asked(prefix)
    return looks


def _parts(ids: list[int]) -> list[list[int]]:
    """Requests of no more tokens at once than a server gives probabilities of."""
    return [ids[at : at + MOST_LOGPROBS] for at in range(0, len(ids), MOST_LOGPROBS)]
