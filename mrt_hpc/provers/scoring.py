"""Exact probabilities of known answers, without a branch.

An answer's probability sums over its writings: ``12`` is one token or two, its box closed by ``}`` or ``}.``. They form
a tree of beginnings. The tokenizer's own are asked about at once, others where more than a small share may lie behind
them; the probability of the rest is a bound.
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
"""Tokens asked for, by boundary and beginning."""
SMALL_SHARE = 1e-3
"""Share of an answer's probability below which a beginning is left out."""
SMALL = 1e-5
"""Probability below which any beginning is left out: rewards are 0 or 1, and values their means."""
MOST_OPENED = 64
"""Beginnings of one answer at one boundary, beside the tokenizer's own."""


@dataclass
class Count:
    """The counted writings of one answer at one boundary."""

    writing: Writing
    most_tokens: int
    """Of a writing, closing token included: a branch is no longer."""
    probability: float = 0.0
    """Of the writings counted so far."""
    opened: set[Prefix] = field(default_factory=set)
    """Beginnings after which every closing is counted."""
    waiting: dict[Prefix, float] = field(default_factory=lambda: {(): 1.0})
    """Beginnings that nothing was asked after: their probabilities bound what is missing."""

    @property
    def own(self) -> list[Prefix]:
        """The tokenizer's own beginnings."""
        return [prefix for prefix in self.writing.beginnings if len(prefix) < self.most_tokens]

    @property
    def worthwhile(self) -> list[Prefix]:
        """Beginnings behind which more than a small share may lie, likeliest first."""
        least = max(SMALL, SMALL_SHARE * self.probability)
        likely = sorted((p for p, mass in self.waiting.items() if mass > least), key=lambda p: -self.waiting[p])
        return likely[: max(0, MOST_OPENED + len(self.own) - len(self.opened))]

    def asked_tokens(self, prefix: Prefix) -> set[int]:
        """Tokens whose probability after a beginning is needed."""
        return {*self._closing_tokens(prefix), *self._following_tokens(prefix)}

    def open(self, prefix: Prefix, logprobs: Mapping[int, float]) -> None:
        """Count writings that end right after a waiting beginning, and add its continuations."""
        mass = self.waiting.pop(prefix)
        self.opened.add(prefix)
        self.probability += mass * float(sum(np.exp(logprobs[token]) for token in self._closing_tokens(prefix)))
        for token in self._following_tokens(prefix):
            self.waiting[*prefix, token] = mass * float(np.exp(logprobs[token]))

    def holds(self, token_ids: Sequence[int]) -> bool:
        """Whether a branch of exactly these tokens is counted."""
        prefix = tuple(token_ids[:-1])
        return prefix in self.opened and bool(token_ids) and token_ids[-1] in self._closing_tokens(prefix)

    def _closing_tokens(self, prefix: Prefix) -> tuple[int, ...]:
        step = self.writing.step(prefix)
        return () if step is None else step.closing

    def _following_tokens(self, prefix: Prefix) -> Iterable[int]:
        """Tokens that continue a beginning within the length limit."""
        step = self.writing.step(prefix)
        return () if step is None or len(prefix) + 2 > self.most_tokens else step.following


@dataclass(frozen=True)
class Scored:
    """Probabilities of known answers, before any branch."""

    valuation: Valuation
    counts: dict[int, list[Count]]
    """By boundary, one for each answer."""


@dataclass(frozen=True)
class Scorer:
    """Looks up exact probabilities by one-token requests whose prefixes are cached."""

    fork: Fork

    async def score(self, trace: SampledTrace, boundaries: Sequence[int], writings: Sequence[Writing]) -> Scored:
        """Each answer's probability at each boundary, closing brace included, at mu's temperature."""
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
        """Ask after beginnings, each once for all answers that share it, and count."""
        wanted = _looks(todo)
        asked = [(j, prefix, ids) for (j, prefix), tokens in wanted.items() for ids in _parts(sorted(tokens))]
        requests = [_look_request(looks[j], prefix, ids) for j, prefix, ids in asked]
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


def _look_request(look: Request, prefix: Prefix, score_ids: list[int]) -> Request:
    """The request for some tokens after a beginning."""
    return msgspec.structs.replace(look, prompt_ids=[*look.prompt_ids, *prefix], score_ids=score_ids)


def _looks(todo: Sequence[tuple[int, Count, list[Prefix]]]) -> Looks:
    """Tokens to ask for; answers share requests at common beginnings."""
    looks: Looks = defaultdict(set)
    for j, count, prefixes in todo:
        for prefix in prefixes:
            looks[j, prefix] |= count.asked_tokens(prefix)
    return looks


def _parts(ids: list[int]) -> list[list[int]]:
    """Requests within the number of probabilities that a server gives at once."""
    return [ids[at : at + MOST_LOGPROBS] for at in range(0, len(ids), MOST_LOGPROBS)]
