"""Arms of a comparison: the runs of one recipe, each with a training seed of its own (``NAME=RUN,RUN``). A model that
is named alone is an arm of one run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from mrt_hpc.analysis.evaluated_run import WeightsOrigin
from mrt_hpc.analysis.intervals import FloatArray
from mrt_hpc.analysis.model_samples import ModelSamples
from mrt_hpc.analysis.named_models import NamedModel, named_models, read_models
from mrt_hpc.analysis.problem_measures import Measure
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.find import expanded
from mrt_hpc.recipe.lock import FREE_FIELDS, FREE_SECTIONS, RECORDED_SECTIONS, differences
from mrt_hpc.run.family import runs_of


@dataclass(frozen=True)
class Arm:
    """What the runs of an arm wrote for the problems of one benchmark."""

    name: str
    """What tables call it."""
    runs: tuple[ModelSamples, ...]
    """[S] one for each training seed; one for a model that was named alone."""

    @classmethod
    def of(cls, model: ModelSamples) -> Arm:
        """The arm of one run."""
        return cls(model.name, (model,))

    @property
    def benchmark(self) -> str:
        """The benchmark of all runs."""
        return self.runs[0].benchmark

    @property
    def fewest(self) -> int:
        """The least number of traces that a problem has in any run."""
        return min(run.fewest for run in self.runs)

    def on(self, problems: Sequence[str]) -> Arm:
        """The arm with these problems alone, in this order; all runs have them."""
        runs = (replace(run, problems={problem: run.problems[problem] for problem in problems}) for run in self.runs)
        return replace(self, runs=tuple(runs))

    def values(self, measure: Measure) -> FloatArray:
        """[S, P] the measure of each run and problem, in the order of the problems of the first run.

        Raises:
            UserError: the samples are too few, or lack what is measured.
        """
        by_run = [measure.values(run) for run in self.runs]
        return np.array([[values[problem] for problem in self.runs[0].problems] for values in by_run])


@dataclass(frozen=True)
class NamedArm:
    """An arm as it was typed."""

    models: tuple[NamedModel, ...]
    name: str | None = None
    """None for a model that was named alone: it has the name of the model."""


SYNTAX = "NAME=RUN,RUN,..., as in grpo=runs/grpo-0,runs/grpo-1@20"
"""How an arm is typed."""


def named_arms(texts: Sequence[str], *, trust: bool = False) -> list[NamedArm]:
    """The arms that these texts name, in their order.

    Args:
        texts: each ``NAME=RUN,RUN,...``; a RUN is what ``named_models`` takes.
        trust: whether code of the runs is imported also where another user can change it.

    Raises:
        UserError: a text has another form, two have the same name, or a run is not there.
    """
    return [NamedArm(tuple(named_models(words, trust=trust)), name) for name, words in split_arms(texts).items()]


def split_arms(texts: Sequence[str]) -> dict[str, list[str]]:
    """The runs of each arm as they were typed, by the name of the arm.

    Args:
        texts: each ``NAME=RUN,RUN,...``; a family stands for its runs.

    Raises:
        UserError: a text has another form, or two have the same name.
    """
    arms: dict[str, list[str]] = {}
    for text in texts:
        name, sign, runs = text.partition("=")
        typed = [word.strip() for word in runs.split(",")]
        if not (name.strip() and sign and all(typed)):
            raise UserError("this is no arm", value=text, where="--arm", expected=SYNTAX, advice="--arm NAME=RUN,RUN")
        words = [str(run) for word in typed for run in runs_of(expanded(word))]
        if arms.setdefault(name.strip(), words) is not words:
            advice = f"--arm {name.strip()}-2={runs}"
            raise UserError("two arms have the same name", value=name.strip(), where="--arm", advice=advice)
    return arms


def read_arms(arms: Sequence[NamedArm], benchmarks: Sequence[str], *, graded: bool = True) -> list[list[Arm]]:
    """The samples of each arm, one item a benchmark; see ``read_models``.

    Raises:
        DamagedError: samples are not what was written.
        UserError: an evaluation is not there, or two of the models are the same or have the same training seed within
            an arm, or ``read_models`` refuses them.
    """
    for arm in arms:
        if len(arm.models) > 1:
            _require_seeds(arm, benchmarks)
    samples = iter(read_models([model for arm in arms for model in arm.models], benchmarks, graded=graded))
    runs = [[next(samples) for _ in arm.models] for arm in arms]
    return [
        [Arm(arm.name or mine[0][0].name, of_benchmark) for of_benchmark in zip(*mine, strict=True)]
        for arm, mine in zip(arms, runs, strict=True)
    ]


# -- are the runs of an arm those of one recipe?


BESIDE_THE_RECIPE = ("name", "seed", *FREE_SECTIONS, *FREE_FIELDS, *RECORDED_SECTIONS)
"""Fields in which the runs of an arm may differ: they decide nothing of what was trained, or are what an arm varies."""


def _require_seeds(arm: NamedArm, benchmarks: Sequence[str]) -> None:
    """Refuse an arm of which two runs have the same training seed: they are no independent draws.

    Raises:
        UserError: two have.
    """
    for one, other in combinations(_origins(arm, benchmarks), 2):
        if one.recipe is not None and other.recipe is not None and one.recipe.seed == other.recipe.seed:
            raise UserError(
                f"two runs of the arm {arm.name} have the same training seed",
                value=f"seed {one.recipe.seed} in {one.name} and {other.name}",
                where="--arm",
                expected="runs of one recipe, each with a seed of its own",
                advice=f"leave {other.name} out of the arm",
            )


def remarks_on(arms: Sequence[NamedArm], benchmarks: Sequence[str]) -> list[str]:
    """What a reader has to know of the runs of the arms, a sentence each."""
    return [sentence for arm in arms if len(arm.models) > 1 for sentence in _remarks(arm, benchmarks)]


def _remarks(arm: NamedArm, benchmarks: Sequence[str]) -> Iterator[str]:
    origins = _origins(arm, benchmarks)
    if unknown := [origin.name for origin in origins if origin.recipe is None]:
        yield f"{arm.name}: how {', '.join(unknown)} was trained is not known, nor whether with a seed of its own"
    recipes = [origin.recipe.model_dump(mode="json") for origin in origins if origin.recipe is not None]
    changed = (field for other in recipes[1:] for field, _, _ in differences(recipes[0], other))
    if fields := [field for field in dict.fromkeys(changed) if not _is_beside(field)]:
        yield f"the runs of {arm.name} differ in more than their seed: {', '.join(fields)}"
    if len({origin.version for origin in origins}) > 1:
        told = ", ".join(str(origin.version) for origin in origins)
        yield f"the runs of {arm.name} are at different weights versions: {told}"


def _is_beside(field: str) -> bool:
    return any(field == name or field.startswith(f"{name}.") for name in BESIDE_THE_RECIPE)


def _origins(arm: NamedArm, benchmarks: Sequence[str]) -> list[WeightsOrigin]:
    """How each run of an arm was trained."""
    return [model.run.origin(model.number(benchmarks)) for model in arm.models]
