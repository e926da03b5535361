"""When does progress pay? Predictions for tables in place of networks, by exact values.

    python benchmarks/predict_worlds.py

A policy with one number for each decision learns each world of ``mrt_hpc/testing/worlds.py`` with Adam, from batches of
problems with their rollouts; the values of prefixes are exact. All arms of a seed draw the same random numbers. An arm
has the learning rate, of those in ``LEARNING_RATES``, with which it learns most itself. The table has the accuracy, as
the expected reward by enumeration, less that of GRPO at as many updates, as the mean over the evaluations, with two
standard errors over the seeds. The measured study of networks is to be compared with it; nothing here is tuned to that.
All seeds are fixed: the same table comes out again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from benchmarking import RESULTS, csv_text, options, table, written

from mrt_hpc.testing.worlds import WORLDS, Array, World, probabilities

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

LEARNING_RATES = (0.05, 0.1, 0.2, 0.4, 0.8)
PROBLEMS, ROLLOUTS = 8, 8
UPDATES, EVERY = 40, 5
BETAS, EPSILON = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class Arm:
    name: str
    credit: str = "none"
    alpha: float = 1.0


ARMS = (
    Arm("grpo"),
    Arm("grpo + constant", "constant", 0.2),
    Arm("permuted progress", "permuted"),
    Arm("r - V_j", "prefix"),
    *(Arm(f"mrt_online, alpha {alpha:g}", "episode", alpha) for alpha in (0.5, 1.0, 2.0, 4.0)),
    Arm("progress to go", "to_go"),
    Arm("area to go", "area"),
)


@dataclass(frozen=True)
class Sampled:
    """Of S seeds, with G problems of N rollouts of K decisions each."""

    actions: Array  # [S, G, N, K]
    decided: NDArray[np.bool_]  # [S, G, N, K]
    values: Array  # [S, G, N, K + 1]; after the end the last one
    rewards: Array  # [S, G, N]
    order: Array  # [S, G, N, K] a random number of each decision


@dataclass(frozen=True)
class WorldTables:
    """The values of all prefixes of a world as arrays, by the number whose binary digits are the actions."""

    world: World

    @cached_property
    def values(self) -> list[Array]:
        """[K + 1] of arrays [problems, 2^length]."""
        return [
            np.array([[self._value(code, length, q) for code in range(2**length)] for q in range(self.world.problems)])
            for length in range(len(self.world.starts) + 1)
        ]

    def _value(self, code: int, length: int, problem: int) -> float:
        return self.world.value(self._played(code, length), problem)

    def _played(self, code: int, length: int) -> tuple[int, ...]:
        """The actions up to the end of the thought."""
        prefix = tuple(int(digit) for digit in f"{code:0{length}b}"[:length])
        return next((prefix[:n] for n in range(length) if self.world.ends(prefix[:n])), prefix)

    @cached_property
    def thoughts(self) -> tuple[Array, NDArray[np.bool_], Array]:
        """[T, K] actions, [T, K] whether these are decided, [T] mean values of all whole thoughts."""
        size = len(self.world.starts)
        found = list(self.world.thoughts())
        actions = np.array([thought + (0,) * (size - len(thought)) for thought in found], dtype=np.float64)
        decided = np.array([[n < len(thought) for n in range(size)] for thought in found])
        values = [sum(self.world.value(t, q) for q in range(self.world.problems)) for t in found]
        return actions, decided, np.array(values) / self.world.problems

    def accuracies(self, logits: Array) -> Array:
        """[S] the expected reward of policies [S, K]."""
        actions, decided, values = self.thoughts
        right, wrong = -np.logaddexp(0, -logits), -np.logaddexp(0, logits)
        logs = right @ (actions * decided).T + wrong @ ((1 - actions) * decided).T
        return np.exp(logs) @ values

    def sample(self, logits: Array, draws: np.random.Generator, update: int) -> Sampled:
        seeds, size = logits.shape
        shape = (seeds, PROBLEMS, ROLLOUTS)
        taken = draws.random((*shape, size)) < probabilities(logits)[:, None, None]
        problem = ((update * PROBLEMS + np.arange(PROBLEMS)) % self.world.problems)[None, :, None]
        codes = np.zeros(shape, dtype=np.int64)
        values = [np.broadcast_to(self.values[0][problem, codes], shape)]
        for length in range(1, size + 1):
            codes = 2 * codes + taken[..., length - 1]
            values.append(self.values[length][problem, codes])
        decided = np.ones(taken.shape, dtype=bool)
        if self.world.ending is not None:
            own = len(self.world.ending)
            decided[..., own:] = ~(taken[..., :own] == np.array(self.world.ending)).all(axis=-1)[..., None]
        stacked = np.stack(values, axis=-1)
        rewards = (draws.random(shape) < stacked[..., -1]).astype(np.float64)
        return Sampled(taken.astype(np.float64), decided, stacked, rewards, draws.random(taken.shape))


def credits(arm: Arm, sampled: Sampled) -> Array:
    """[S, G, N, K] what is added to the outcome."""
    values, size = sampled.values, sampled.actions.shape[-1]
    steps = np.diff(values)
    if arm.credit == "constant":
        return np.full_like(steps, arm.alpha)
    if arm.credit == "episode":
        return arm.alpha * steps
    if arm.credit == "permuted":
        return arm.alpha * shuffled(steps, sampled)
    if arm.credit == "to_go":
        return arm.alpha * (values[..., -1:] - values[..., :-1])
    if arm.credit == "prefix":
        return -values[..., :-1]
    if arm.credit == "area":
        areas = (values[..., 1:] + values[..., :-1]) / 2
        left = np.arange(size, 0, -1)
        return arm.alpha * (np.cumsum(areas[..., ::-1], axis=-1)[..., ::-1] - left * values[..., :-1]) / size
    return np.zeros_like(steps)


def shuffled(steps: Array, sampled: Sampled) -> Array:
    """The same numbers in another order over all decisions of a batch."""
    flat, decided, order = (part.reshape(len(steps), -1) for part in (steps, sampled.decided, sampled.order))
    places = np.argsort(~decided, axis=1, kind="stable")  # the decisions, in their order, before all else
    numbers = np.argsort(np.where(decided, order, 2.0), axis=1)
    found = np.empty_like(flat)
    np.put_along_axis(found, places, np.take_along_axis(flat, numbers, axis=1), axis=1)
    return found.reshape(steps.shape)


def gradients(arm: Arm, sampled: Sampled, logits: Array) -> Array:
    """[S, K] of the mean over a batch, each reward less the mean of the others unless a value is subtracted."""
    rewards = sampled.rewards
    count = rewards.shape[-1]
    others = (rewards.sum(-1, keepdims=True) - rewards) / (count - 1)
    outcome = rewards if arm.credit == "prefix" else rewards - others
    weights = (outcome[..., None] + credits(arm, sampled)) * sampled.decided
    return (weights * (sampled.actions - probabilities(logits)[:, None, None])).mean(axis=(1, 2))


def learnt_accuracies(tables: WorldTables, arm: Arm, learning_rate: float, seeds: int) -> Array:
    """[S, E] at the evaluations."""
    logits = np.tile(tables.world.logits, (seeds, 1))
    draws = np.random.default_rng(0)
    first, second = np.zeros_like(logits), np.zeros_like(logits)
    found = []
    for update in range(1, UPDATES + 1):
        gradient = gradients(arm, tables.sample(logits, draws, update), logits)
        first += (1 - BETAS[0]) * (gradient - first)
        second += (1 - BETAS[1]) * (gradient**2 - second)
        scale = np.sqrt(second / (1 - BETAS[1] ** update)) + EPSILON
        logits = logits + learning_rate * first / (1 - BETAS[0] ** update) / scale
        if update % EVERY == 0:
            found.append(tables.accuracies(logits))
    return np.array(found).T


def best(tables: WorldTables, arm: Arm, seeds: int) -> tuple[float, Array]:
    """The learning rate of most accuracy, and the accuracy of each seed, [S], in points."""
    tried = {rate: 100 * learnt_accuracies(tables, arm, rate, seeds).mean(axis=1) for rate in LEARNING_RATES}
    rate = max(tried, key=lambda one: float(tried[one].mean()))
    return rate, tried[rate]


def main(seeds: int, into: Path) -> None:
    rows: list[tuple[object, ...]] = []
    for world in WORLDS:
        tables = WorldTables(world)
        found = {arm.name: best(tables, arm, seeds) for arm in ARMS}
        reference = found["grpo"][1]
        for name, (rate, accuracies) in found.items():
            gain = accuracies - reference
            error = 2 * gain.std(ddof=1) / np.sqrt(seeds)
            rows.append((world.name, name, rate, *(f"{x:.2f}" for x in (accuracies.mean(), gain.mean(), error))))
    columns = ("world", "arm", "learning rate", "accuracy", "gain over grpo", "two standard errors")
    written(csv_text(columns, rows), into, "predictions.csv")
    gains = {(world, arm): f"{gain} ±{error}" for world, arm, _, _, gain, error in rows}
    lines = [(arm.name, *(gains[world.name, arm.name] for world in WORLDS)) for arm in ARMS[1:]]
    written("\n".join(table(("arm", *(world.name for world in WORLDS)), lines)), into, "predictions.md")


if __name__ == "__main__":
    given = options(__doc__, seeds=100, into=RESULTS / "worlds")
    main(given.seeds, given.into)
