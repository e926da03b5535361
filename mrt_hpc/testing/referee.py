"""``mrt-hpc check --referee``: whether the credit of a class leads to more reward, with more signal than its shuffled
self, in worlds where this is known.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mrt_hpc.algorithms.base import RolloutAlgorithm
from mrt_hpc.algorithms.batch import Batch
from mrt_hpc.algorithms.grpo import Grpo
from mrt_hpc.algorithms.mrt_online import MrtOnline
from mrt_hpc.errors import UserError
from mrt_hpc.mrt.gradient_signal import GradientSignal, Interval
from mrt_hpc.mrt.progress import permute, progress
from mrt_hpc.recipe.find import RECIPES, find
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.seeds import derive_seed
from mrt_hpc.testing.class_in_run import class_and_changes
from mrt_hpc.testing.worlds import WORLDS, Array, World, group_gradients

RECIPE = "quickstart"
"""A class is put into this recipe, whose checks it must pass."""
GROUPS, ROLLOUTS = 160, 8
BATCH_GROUPS = 8
"""The groups of one update."""
EPISODE_TOKENS, VALUE_TOKENS = 14, 2
"""By which values have a price: a decision as a short paragraph, and a value as the likelihood of a short answer."""
EXACT, GRPO, ONLINE, OWN, SHUFFLED = range(5)


@dataclass(frozen=True)
class WorldFinding:
    world: World
    names: tuple[str, ...]
    """Of the estimators in the order of the constants above; empty for the exact one."""
    signals: GradientSignal
    prices: tuple[float, ...]
    """Tokens of a trace with its values."""

    def snr(self, estimator: int) -> Interval:
        return self.signals.snr(estimator, BATCH_GROUPS)

    def cosine(self, estimator: int) -> Interval | None:
        """With the exact gradient of the expected reward."""
        return self.signals.cosine(estimator, EXACT)

    def ratio(self, estimator: int, other: int) -> Interval | None:
        """Of signal to noise, at equal rollouts."""
        return self.signals.snr_ratio(estimator, other)

    def ratio_for_tokens(self, estimator: int, other: int) -> Interval | None:
        return self.signals.snr_ratio(estimator, other, (self.prices[estimator], self.prices[other]))

    @property
    def verdict(self) -> str:
        return f"{self.world.name} ({self.world.shows}): {self._direction}, and {self._gain}"

    @property
    def _direction(self) -> str:
        cosine = self.cosine(OWN)
        if cosine is None or cosine.low <= 0 <= cosine.high:
            return "its direction is not resolved"
        return "it leads to more reward" if cosine.low > 0 else "it leads away from reward"

    @property
    def _gain(self) -> str:
        ratio = self.ratio(OWN, SHUFFLED)
        if ratio is None or ratio.low <= 1 <= ratio.high:
            return "its signal cannot be told from that of its shuffled self"
        return f"it has {'more' if ratio.low > 1 else 'less'} signal than its shuffled self"


def judged_class(name: str, overrides: Sequence[str]) -> RolloutAlgorithm:
    """A user's algorithm with the fields that ``overrides`` give it."""
    _, changes = class_and_changes(name, ("algorithm",))
    algorithm = load_recipe(find(RECIPES, RECIPE), (*changes, *overrides)).algorithm
    if isinstance(algorithm, RolloutAlgorithm):
        return algorithm
    raise UserError(
        "this algorithm gives no credit to rollouts",
        value=algorithm.type,
        expected="a subclass of RolloutAlgorithm",
        advice="name another class",
    )


def world_findings(
    algorithm: RolloutAlgorithm, name: str, worlds: Sequence[World] = WORLDS, seed: int = 0
) -> Iterator[WorldFinding]:
    own = (name, algorithm)
    for world in worlds:
        yield _finding(world, (("grpo", Grpo()), ("mrt_online", MrtOnline()), own), derive_seed(seed, world.name))


def _finding(world: World, compared: Sequence[tuple[str, RolloutAlgorithm]], seed: int) -> WorldFinding:
    batch = world.batch(world.logits, GROUPS, ROLLOUTS, seed)
    own_name, own = compared[-1]
    learnt = [algorithm.learnt(batch).sequences for _, algorithm in compared]
    learnt.append(own.learnt(with_shuffled_progress(batch, seed)).sequences)
    exact = np.tile(world.exact_gradient(world.logits), (GROUPS, 1))
    gradients = np.array([exact, *(group_gradients(sequences, world.logits, GROUPS) for sequences in learnt)])
    names = ("", *(name for name, _ in compared), f"{own_name}, shuffled")
    prices = (1.0, *(_price(batch, algorithm) for _, algorithm in [*compared, compared[-1]]))
    return WorldFinding(world, names, GradientSignal.of(_gram(gradients), seed), prices)


def with_shuffled_progress(batch: Batch, seed: int) -> Batch:
    """The values of other traces: the same progress values in another order over all episodes of the batch."""
    shuffled = permute([progress(values) for values in batch.value_arrays], seed)
    traces = zip(batch.value_arrays, shuffled, strict=True)
    values = [dict(enumerate(np.cumsum([of[0], *steps]).tolist())) for of, steps in traces]
    return replace(batch, values=values)


def _price(batch: Batch, algorithm: RolloutAlgorithm) -> float:
    boundaries = float(np.mean([len(values) for values in batch.values]))
    values = boundaries * VALUE_TOKENS if algorithm.needs_prover else 0.0
    return (boundaries - 1) * EPISODE_TOKENS + values


def _gram(gradients: Array) -> Array:
    """[E, M, E, M] from [E, M, K]."""
    rows = gradients.reshape(-1, gradients.shape[-1])
    return (rows @ rows.T).reshape(gradients.shape[:2] * 2)
