"""Worlds of a few decisions, in which every value and the gradient of the expected reward are known.

The policy has one number for each decision, the logit of action 1. A decision is an episode and a token; the closing
tag and the answer follow.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.algorithms.batch import Batch
from mrt_hpc.run.records import FinishReason, Rollout
from mrt_hpc.training.settings import TrainingSequence

Array = NDArray[np.float64]
Prefix = tuple[int, ...]
CHANCE = 0.1
"""The value of an answer without any work."""
GUESS = 0.6
END, RIGHT, WRONG = 2, 3, 4
"""Tokens after the decisions, which are 0 or 1."""


@dataclass(frozen=True)
class World:
    name: str
    shows: str
    starts: tuple[float, ...]
    """[K] the probability of action 1 of the policy in the beginning."""
    value: Callable[[Prefix, int], float]
    """V of a prefix in a problem; of a whole thought, its expected reward."""
    problems: int = 1
    ending: Prefix | None = None
    """Over before the last decision."""

    def ends(self, prefix: Prefix) -> bool:
        return len(prefix) == len(self.starts) or prefix == self.ending

    @property
    def logits(self) -> Array:
        """[K] of the policy in the beginning."""
        starts = np.array(self.starts)
        return np.log(starts / (1 - starts))

    def thoughts(self, prefix: Prefix = ()) -> Iterator[Prefix]:
        """All whole thoughts that begin with a prefix."""
        if self.ends(prefix):
            yield prefix
        else:
            yield from itertools.chain(self.thoughts((*prefix, 0)), self.thoughts((*prefix, 1)))

    def expected_reward(self, logits: Array) -> float:
        """By enumeration, the mean over the problems."""
        chances = probabilities(logits)
        return sum(_probability(thought, chances) * self._mean_value(thought) for thought in self.thoughts())

    def exact_gradient(self, logits: Array) -> Array:
        """[K] of the expected reward, by enumeration."""
        chances = probabilities(logits)
        total = np.zeros(len(logits))
        for thought in self.thoughts():
            weight = _probability(thought, chances) * self._mean_value(thought)
            total[: len(thought)] += weight * (np.array(thought) - chances[: len(thought)])
        return total

    def _mean_value(self, thought: Prefix) -> float:
        return sum(self.value(thought, problem) for problem in range(self.problems)) / self.problems

    def batch(self, logits: Array, groups: int, rollouts: int, seed: int) -> Batch:
        """Groups of sampled thoughts with their exact values, the problems in turn."""
        rng = np.random.default_rng(seed)
        chances = probabilities(logits)
        sampled: list[Rollout] = []
        values: list[dict[int, float]] = []
        for group, sample in itertools.product(range(groups), range(rollouts)):
            thought = self._sampled_thought(chances, rng)
            of_prefixes = [self.value(thought[:length], group % self.problems) for length in range(len(thought) + 1)]
            sampled.append(rollout_of(thought, chances, group, sample, right=rng.random() < of_prefixes[-1]))
            values.append(dict(enumerate(of_prefixes)))
        return Batch(sampled, values, [], f"{self.name} {seed}", np.zeros(0), [])

    def _sampled_thought(self, chances: Array, rng: np.random.Generator) -> Prefix:
        thought: Prefix = ()
        while not self.ends(thought):
            thought = (*thought, int(rng.random() < chances[len(thought)]))
        return thought


def probabilities(logits: Array) -> Array:
    return 1 / (1 + np.exp(-logits))


def group_gradients(sequences: Sequence[TrainingSequence], logits: Array, groups: int) -> Array:
    """[M, K] each group's mean gradient of what a class makes of a batch of ``World.batch``."""
    chances = probabilities(logits)
    total, counts = np.zeros((groups, len(logits))), np.zeros((groups, 1))
    for sequence in sequences:
        actions = np.array([token for token in sequence.token_ids if token < END])
        size = len(actions)
        weights = np.where(sequence.mask, sequence.advantages, 0.0)[:size]
        total[int(sequence.group), :size] += weights * (actions - chances[:size])
        counts[int(sequence.group)] += 1
    return total / counts.clip(min=1)


def _probability(thought: Prefix, chances: Array) -> float:
    return float(np.prod([p if action else 1 - p for action, p in zip(thought, chances, strict=False)]))


def rollout_of(thought: Prefix, chances: Array, group: int, sample: int, *, right: bool) -> Rollout:
    size = len(thought)
    logprobs = [float(np.log(p if action else 1 - p)) for action, p in zip(thought, chances, strict=False)]
    return Rollout(
        iteration=0,
        problem_id=str(group),
        sample=sample,
        seed=sample,
        weights_version=0,
        prompt_ids=[END],
        forced=0,
        token_ids=[*thought, END, RIGHT if right else WRONG],
        logprobs=[*logprobs, 0.0, 0.0],
        finish_reason=FinishReason.STOP,
        text="",
        answer=str(int(right)),
        reward=float(right),
        boundaries=[*range(size + 1)],
        started=0.0,
        seconds=0.0,
        credit_bounds=[*range(size), size + 1],  # the last decision is credited with the tag that closes the thought
    )


# -- the worlds --------------------------------------------------------------------------------------------------------


def asked(decisions: int, name: str) -> World:
    """The problem asks for the result of one step."""

    def value(prefix: Prefix, problem: int) -> float:
        return float(prefix[problem]) if problem < len(prefix) else CHANCE

    shows = "one step decides, and which one is known before it"
    return World(name, shows, (0.25,) * decisions, value, problems=decisions)


def ladder(decisions: int) -> World:
    shows = "each right step makes a right answer twice as likely"
    return World("ladder", shows, (0.25,) * decisions, lambda prefix, _: 0.5 ** (decisions - sum(prefix)))


def product(decisions: int) -> World:
    def value(prefix: Prefix, _: int) -> float:
        return float(all(prefix)) if len(prefix) == decisions else CHANCE

    return World("product", "the value moves at the last step alone", (0.75,) * decisions, value)


def trap(decisions: int) -> World:
    """The first decision is whether to guess."""

    def value(prefix: Prefix, _: int) -> float:
        if prefix[:1] == (1,):
            return GUESS
        return float(all(prefix[1:])) if len(prefix) == decisions else CHANCE

    shows = "a guess is worth more at once, and work is worth more at its end"
    return World("trap", shows, (0.5, *(0.98,) * (decisions - 1)), value, ending=(1,))


WORLDS = (asked(12, "asked, 12 steps"), asked(3, "asked, 3 steps"), ladder(8), product(5), trap(5))
