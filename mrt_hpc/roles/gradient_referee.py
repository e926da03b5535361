"""Measures estimators of the gradient on the stored groups of one iteration."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from mrt_hpc.algorithms.base import RolloutAlgorithm, algorithm_of
from mrt_hpc.algorithms.batch import LEAST_ADVANTAGE, Batch
from mrt_hpc.algorithms.estimators import GradientEstimator, estimators_of
from mrt_hpc.algorithms.learnt_batch import learnt_batch
from mrt_hpc.analysis.estimator_signals import MeasuredEstimators
from mrt_hpc.analysis.intervals import FloatArray
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.recipe.schema import Experiment, Recipe
from mrt_hpc.roles.trainer import trainer_settings
from mrt_hpc.run.archive import read_iteration, sampled_iterations
from mrt_hpc.run.layout import AT, FIRST, LAST, RunLayout
from mrt_hpc.run.manifest import verify
from mrt_hpc.run.records import GroupStatistics
from mrt_hpc.run.seeds import derive_seed
from mrt_hpc.run.weights import published_versions
from mrt_hpc.training.accelerator import seed_generators
from mrt_hpc.training.checkpoint import second_moments
from mrt_hpc.training.engine import TrainerEngine
from mrt_hpc.training.group_gradients import (
    KEPT,
    WHOLE,
    adam_scales,
    gradient_trainer,
    group_gradients,
    kept_numbers,
    trained_parameters,
)
from mrt_hpc.training.settings import TrainingSequence

FEWEST = 4
COLUMNS = 1 << 16
TIMED = 8  # gradients, after which the cost of all is told

Tell = Callable[[str], object]


def measure_estimators(
    layout: RunLayout, recipe: Experiment, version: int | str, seed: int, tell: Tell, beside: Collection[str] = ()
) -> MeasuredEstimators:
    """``tell`` gets the cost once the first gradients have shown it; ``beside`` names the estimators that are measured
    with the run's own, where these are not all.
    """
    own, recipe = _rollout_algorithm(layout, recipe)
    number = _chosen_version(layout, version)
    groups = read_iteration(layout, number)
    batch = learnt_batch(groups, recipe, lambda: _question_ids(layout, recipe, number))
    if (problems := len(set(batch.problem_ids))) < FEWEST:
        raise UserError(
            "too few problems for an interval over problems",
            value=problems,
            where=layout.iteration(number),
            expected=f"at least {FEWEST}",
            advice="name a version whose iteration has more problems",
        )
    estimators, remarks = estimators_of(own, recipe)
    estimators = [one for one in estimators if not beside or one.algorithm == own or one.name in beside]
    verify(layout.weights_version(number))
    trainer = gradient_trainer(trainer_settings(recipe), layout.weights_version(number))
    learnt, equal = distinct(estimators, batch, derive_seed(recipe.seed, "trainer", number))
    scales, remark = _scales(layout, trainer, number)
    rows = GradientRows(trainer, scales, seed, tell, len(learnt) * problems)
    gradients = [rows.of(sequences) for _, sequences in learnt]
    grams = [_gram([of[way] for of in gradients], sorted(set(batch.problem_ids))) for way in range(len(gradients[0]))]
    return MeasuredEstimators(
        tuple(estimator.name for estimator, _ in learnt),
        _prices([estimator for estimator, _ in learnt], batch.costs),
        grams[0],
        grams[1] if scales else None,
        f"{layout.root.name}{AT}{number}",
        (*remarks, *equal, remark, rows.remark),
        seed,
    )


@dataclass
class GradientRows:
    trainer: TrainerEngine
    scales: Sequence[torch.Tensor]
    seed: int
    tell: Tell
    wanted: int
    started: float = field(default_factory=time.monotonic)
    done: int = 0

    def of(self, sequences: Sequence[TrainingSequence]) -> list[dict[str, NDArray[np.float32]]]:
        """Plain, then scaled."""
        plain: dict[str, NDArray[np.float32]] = {}
        scaled: dict[str, NDArray[np.float32]] = {}
        for name, gradient in group_gradients(self.trainer, sequences):
            plain[name] = kept_numbers(gradient, self.seed)
            if self.scales:
                scaled[name] = kept_numbers([g * s for g, s in zip(gradient, self.scales, strict=True)], self.seed)
            self._tell_cost()
        return [plain, scaled]

    def _tell_cost(self) -> None:
        self.done += 1
        if self.done == 1:  # which also takes what is done once
            self.started = time.monotonic()
        elif self.done == TIMED:
            each = (time.monotonic() - self.started) / (TIMED - 1)
            self.tell(f"{self.wanted} gradients, about {each:.2g} s each: {each * self.wanted / 60:.1f} minutes")

    @property
    def remark(self) -> str:
        size = sum(p.numel() for p in trained_parameters(self.trainer).values())
        how = "whole" if size <= WHOLE else f"as random projections to {KEPT:,} numbers"
        return f"{self.done} gradients of {size:,} numbers, kept {how}, took {time.monotonic() - self.started:.0f} s"


def _rollout_algorithm(layout: RunLayout, recipe: Experiment) -> tuple[RolloutAlgorithm, Recipe]:
    if isinstance(recipe, Recipe) and isinstance(own := algorithm_of(recipe), RolloutAlgorithm):
        return own, recipe
    raise UserError(
        "this run learns no rollouts, so its gradient has one estimator",
        where=layout.root,
        expected="a run whose algorithm learns rollouts of the policy, as grpo or mrt_online",
        advice="name a run of such a recipe",
    )


def _chosen_version(layout: RunLayout, version: int | str) -> int:
    """A version whose weights and groups are both there."""
    sampled, published = set(sampled_iterations(layout)), set(published_versions(layout))
    there = sorted(sampled & published)
    if there and (number := {FIRST: there[0], LAST: there[-1]}.get(str(version), version)) in there:
        return int(number)
    gone = "its weights were removed" if version in sampled else "no groups of rollouts were sampled with it"
    raise UserError(
        f"the gradients of this weights version cannot be computed: {gone}",
        value=version,
        where=layout.root,
        expected=f"one of {', '.join(map(str, there))}" if there else "a run that has sampled",
        advice=Advice("mrt-hpc status {run}", run=layout.root),
    )


def _question_ids(layout: RunLayout, recipe: Recipe, version: int) -> Sequence[int]:
    if recipe.prover is None:
        return []
    return Prompter.of(layout.weights_version(version), recipe.prompt).ids(recipe.prover.question)


def _scales(layout: RunLayout, trainer: TrainerEngine, version: int) -> tuple[list[torch.Tensor], str]:
    if not (path := layout.checkpoint(version + 1)).is_dir():
        return [], f"not through Adam's scaling, as there is no checkpoint after {version + 1} iterations"
    scales = adam_scales(trainer, *second_moments(path))
    return scales, f"Adam's scaling is that of the step of iteration {version}, from the checkpoint after it"


def distinct(
    estimators: Sequence[GradientEstimator], batch: Batch, seed: int
) -> tuple[list[tuple[GradientEstimator, list[TrainingSequence]]], list[str]]:
    """With what they learn; and a sentence on each that learns what an earlier one of its price does."""
    found, equal = list[tuple[GradientEstimator, list[TrainingSequence]]](), list[str]()
    for estimator in estimators:
        seed_generators(seed)
        learnt = estimator.algorithm.learnt(batch)
        mine, pays = [*learnt.sequences, *learnt.branches], estimator.pays_for_branches
        for other, its in found:
            if other.pays_for_branches == pays and len(its) == len(mine) and all(map(_is_same, its, mine)):
                equal.append(f"{estimator.name} is left out: of these groups it learns what {other.name} does")
                break
        else:
            found.append((estimator, mine))
    return found, equal


def _is_same(one: TrainingSequence, other: TrainingSequence) -> bool:
    tokens = (one.prompt_ids, one.token_ids) == (other.prompt_ids, other.token_ids)
    if not tokens or not np.array_equal(one.mask, other.mask):
        return False
    return np.allclose(one.advantages[one.mask], other.advantages[one.mask], rtol=0, atol=LEAST_ADVANTAGE)


def _prices(estimators: Sequence[GradientEstimator], costs: Sequence[GroupStatistics]) -> FloatArray:
    """[3, E] of a mean group, as ``COUNTINGS`` counts."""
    rollouts, traces, branches, prefilled, of_branches = np.mean(
        [
            (c.rollouts, c.rollout_tokens, c.branch_tokens, c.prefilled_tokens, c.prompt_tokens - c.cached_tokens)
            for c in costs
        ],
        axis=0,
    )
    of_each = [
        (rollouts, traces + branches, traces + branches + prefilled)
        if estimator.pays_for_branches
        else (rollouts, traces, traces + prefilled - of_branches)
        for estimator in estimators
    ]
    return np.array(of_each, dtype=np.float64).T


def _gram(gradients: Sequence[dict[str, NDArray[np.float32]]], names: Sequence[str]) -> FloatArray:
    """[E, M, E, M]; 0 of a group that is not learnt."""
    if not gradients[0]:
        return np.zeros((0, 0, 0, 0))
    zero = np.zeros_like(next(iter(gradients[0].values())))
    rows = np.array([[of.get(name, zero) for name in names] for of in gradients]).reshape(-1, len(zero))
    parts = (rows[:, start : start + COLUMNS] for start in range(0, rows.shape[1], COLUMNS))
    total = sum((np.asarray(part @ part.T, dtype=np.float64) for part in parts), np.zeros((len(rows), len(rows))))
    shape = (len(gradients), len(names))
    return total.reshape(*shape, *shape)
