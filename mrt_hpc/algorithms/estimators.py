"""The gradient estimators that stored groups allow: the run's own, GRPO, and the own with each other choice."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from pydantic_core import PydanticCustomError

from mrt_hpc.algorithms.base import RolloutAlgorithm
from mrt_hpc.algorithms.grpo import Grpo
from mrt_hpc.algorithms.mrt import Mrt
from mrt_hpc.algorithms.mrt_online import MrtOnline
from mrt_hpc.recipe.schema import Recipe


@dataclass(frozen=True)
class GradientEstimator:
    name: str
    algorithm: RolloutAlgorithm

    @property
    def pays_for_branches(self) -> bool:
        return self.algorithm.needs_prover


def estimators_of(own: RolloutAlgorithm, recipe: Recipe) -> tuple[list[GradientEstimator], list[str]]:
    """The run's own first; and a sentence on each that the recipe refuses."""
    found, refused = [GradientEstimator(f"{own.type}, the run's own", own)], list[str]()
    known = built_in_form(own)
    for estimator in [GradientEstimator(known.type, known), *_outcome_alone(own), *_other_choices(known)]:
        if any(estimator.algorithm == one.algorithm for one in found):
            continue
        try:
            estimator.algorithm.check(recipe.model_copy(update={"algorithm": estimator.algorithm}))
        except PydanticCustomError as error:
            refused.append(
                f"{estimator.name} is left out: {(error.context or {}).get('field')} would have to be {error}"
            )
        else:
            found.append(estimator)
    return found, refused


def built_in_form(own: RolloutAlgorithm) -> RolloutAlgorithm:
    """The package's class that a user's own continues, with its fields."""
    for kind in (MrtOnline, Mrt, Grpo):
        if isinstance(own, kind):
            return kind(**{name: getattr(own, name) for name in kind.model_fields if name != "type"})
    return own


def _outcome_alone(own: RolloutAlgorithm) -> list[GradientEstimator]:
    """Not of stale prefixes: their forced half is no sample of the policy."""
    if own.collects:
        return []
    divided = Grpo(normalise="group_std")
    return [GradientEstimator("grpo", Grpo()), GradientEstimator("grpo, normalise: group_std", divided)]


def _other_choices(known: RolloutAlgorithm) -> Iterator[GradientEstimator]:
    for name, field in type(known).model_fields.items():
        for value in get_args(field.annotation):
            if name == "type" or not isinstance(value, str) or value == getattr(known, name):
                continue
            changes = {name: value, **({"budget_tokens": None} if name == "credit" and value != "area" else {})}
            yield GradientEstimator(f"{name}: {value}", known.model_copy(update=changes))
