"""The models that a user names on the command line: a run (``RUN``, ``RUN@VERSION``), or an evaluation on its own
(``EVALDIR``, ``EVALDIR@NAME``); and the arms of a comparison, which are made of them.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Self

import numpy as np

from mrt_hpc.analysis.evaluated_run import EvaluatedRun, WeightsOrigin
from mrt_hpc.analysis.intervals import FloatArray
from mrt_hpc.analysis.model_samples import GRADER, ModelSamples
from mrt_hpc.analysis.problem_measures import Measure
from mrt_hpc.errors import UserError, nearest
from mrt_hpc.plan.jobs import read_plan
from mrt_hpc.recipe.find import expanded
from mrt_hpc.recipe.lock import FREE_FIELDS, FREE_SECTIONS, RECORDED_SECTIONS, differences
from mrt_hpc.run.family import runs_of
from mrt_hpc.run.layout import AT, FIRST, LAST, RunLayout, split_at, version_named
from mrt_hpc.run.manifest import json_digest


@dataclass(frozen=True)
class NamedModel:
    """One weights version of a run, or one model of an evaluation on its own."""

    run: EvaluatedRun
    version: int | str | None = None
    """Its number, ``first`` or ``last``; None where a run was named without a version."""

    def number(self, benchmarks: Sequence[str]) -> int:
        """The number of the weights version. ``first`` and ``last`` are those of the versions that the recipe says are
        evaluated: an earlier one never stands for the last one whose evaluation is not complete.

        Raises:
            UserError: it is the first or the last one, and not completely evaluated on all of these benchmarks.
        """
        if isinstance(self.version, int):
            return self.version
        run, word = self.run, self.version or LAST
        place = 0 if word == FIRST else -1
        whole = sorted(set.intersection(*(set(run.versions(benchmark)) for benchmark in benchmarks)))
        if run.wanted and run.wanted[place] in whole:
            return run.wanted[place]
        which = f"weights version {run.wanted[place]}, the {word} one of this run," if run.wanted else "no version"
        named = f", or name a version that has one: {run.long_name(whole[place])}" if whole else ""
        raise UserError(
            f"{which} has {'no' if run.wanted else 'a'} complete evaluation on {', '.join(benchmarks)}",
            where=run.layout.root,
            expected=f"one of {', '.join(map(run.long_name, whole))}" if whole else None,
            advice=f"mrt-hpc status {run.typed}, which says what is left to do{named}",
        )


# -- what is typed


def named_models(texts: Sequence[str], *, trust: bool = False) -> list[NamedModel]:
    """The models that these arguments name, in their order.

    Args:
        texts: as the user typed them.
        trust: whether code of the runs is imported also where another user can change it.

    Raises:
        UserError: a directory is no run and no evaluation, or it has no such weights version or model.
    """
    return [model for text in texts for model in _models_of(text, trust=trust)]


def _models_of(text: str, *, trust: bool) -> list[NamedModel]:
    directory, name = split_at(text)
    run = EvaluatedRun.open(directory, trust=trust)
    if run.models:
        return [NamedModel(run, number) for number in _numbers(run, name)]
    if name is None:
        return [NamedModel(run)]
    last, root = read_plan(run.layout.plan).iterations, run.layout.root
    return [NamedModel(run, version_named(word, last, root)) for word in name.split(",")]


def _numbers(run: EvaluatedRun, name: str | None) -> Sequence[int]:
    """The numbers of the models of an evaluation on its own; without a name all of them.

    Raises:
        UserError: there is no model of this name.
    """
    names = run.model_names
    if name is None:
        return range(len(names))
    if name not in names:
        guess = nearest(name, names)
        raise UserError(
            "the evaluation has no model of this name",
            value=name,
            where=run.layout.root,
            expected=f"one of {', '.join(names)}",
            advice=None if guess is None else f"{run.typed}{AT}{guess}",
        )
    return [names.index(name)]


def models_to_evaluate(texts: Sequence[str]) -> list[str]:
    """The arguments as ``mrt-hpc eval`` takes them: an evaluation on its own stands for its models.

    Raises:
        UserError: an evaluation has no such model, or its recipe cannot be read.
    """
    return [model for text in texts for model in _to_evaluate(text)]


def _to_evaluate(text: str) -> list[str]:
    directory, name = split_at(text)
    if not RunLayout(expanded(directory)).plan.is_file():
        return [text]
    run = EvaluatedRun.looked_at(directory)
    return [run.evaluable(number) for number in _numbers(run, name)] if run.models else [text]


# -- what is read


def chosen_benchmarks(models: Sequence[NamedModel], wanted: Sequence[str]) -> list[str]:
    """The benchmarks that are wanted, or all that the models share, in the order of the first one.

    Raises:
        UserError: there is none, or one that is wanted is not there.
    """
    shared = [b for b in models[0].run.benchmarks if all(b in model.run.benchmarks for model in models[1:])]
    if not shared:
        raise UserError(
            "these models have no benchmark in common",
            value=list(dict.fromkeys(model.run.typed for model in models)),
            advice=f"mrt-hpc eval {_evaluable(models)} --suite SUITE",
        )
    for name in wanted:
        if name not in shared:
            guess = nearest(name, shared)
            raise UserError(
                "not all of these models have this benchmark",
                value=name,
                where="--benchmark",
                expected=f"one of {', '.join(shared)}",
                advice=f"--benchmark {guess or shared[0]}",
            )
    return list(dict.fromkeys(wanted)) or shared


def _evaluable(models: Sequence[NamedModel]) -> str:
    """The models as ``mrt-hpc eval`` takes them."""
    return " ".join(m.run.evaluable(m.version) if isinstance(m.version, int) else m.run.typed for m in models)


def read_models(
    models: Sequence[NamedModel], benchmarks: Sequence[str], *, graded: bool = True
) -> list[list[ModelSamples]]:
    """The samples of each model, one item a benchmark. The tokens of a boundary are counted as the recipe of the first
    model says, for all of them.

    Args:
        models: that were named.
        benchmarks: that all of them have.
        graded: whether their verdicts are compared, which one grader has to have given.

    Raises:
        DamagedError: samples are not what was written.
        UserError: an evaluation is not there, two of the models are the same, or several graders have judged them.
    """
    chosen = [(model.run, model.number(benchmarks)) for model in models]
    _require_different(chosen)
    counted = models[0].run.recipe.evaluation.regret_tokens
    read = [
        [replace(run.samples(version, benchmark, name), counted=counted) for benchmark in benchmarks]
        for (run, version), name in zip(chosen, _names(chosen), strict=True)
    ]
    if graded:
        _require_one_grader([run for run, _ in chosen], read)
    return read


def _require_one_grader(runs: Sequence[EvaluatedRun], read: Sequence[Sequence[ModelSamples]]) -> None:
    """Refuse samples that several graders have judged: a difference might be one of the graders.

    Raises:
        UserError: on a benchmark, there are several.
    """
    for of_benchmark in zip(*read, strict=True):
        graders = {grader for samples in of_benchmark for grader in samples.settings[GRADER].split()}
        if len(graders) < 2:
            continue
        benchmark = of_benchmark[0].benchmark
        typed = " ".join(dict.fromkeys(run.typed for run in runs))
        alike = len({json_digest(_judging(run, benchmark)) for run in runs}) == 1
        evaluated = " ".join(dict.fromkeys(samples.source for samples in of_benchmark))
        raise UserError(
            f"{len(graders)} graders have judged the samples on {benchmark}: verdicts of different graders are not "
            "compared",
            value=[samples.name for samples in of_benchmark],
            expected="verdicts of one grader" if alike else "evaluations with one verifier",
            advice=f"mrt-hpc regrade {typed}" if alike else f"mrt-hpc eval {evaluated} --suite SUITE",
        )


def _judging(run: EvaluatedRun, benchmark: str) -> list[object]:
    """What the recipe says of how answers are found and judged."""
    problems = run.recipe.benchmark(benchmark).problems
    verifier = None if problems.verifier is None else problems.verifier.model_dump(mode="json")
    return [verifier, problems.extraction, run.recipe.grading.model_dump(mode="json", exclude={"processes"})]


def _require_different(chosen: Sequence[tuple[EvaluatedRun, int]]) -> None:
    """Refuse a model that is named twice.

    Raises:
        UserError: there is one.
    """
    places = [(run.layout.root.resolve(), version) for run, version in chosen]
    for (run, version), place in zip(chosen, places, strict=True):
        if places.count(place) > 1:
            raise UserError(
                "a model is named twice",
                value=run.long_name(version),
                expected="different models",
                advice=f"name {run.typed} once"
                if run.models
                else f"name it once, or mrt-hpc compare {run.typed}{AT}{FIRST} {run.typed}{AT}{LAST}",
            )


def _names(chosen: Sequence[tuple[EvaluatedRun, int]]) -> list[str]:
    """What tables call the models: as short as it may be, where no two directories share the name before the ``@``."""
    places: dict[str, set[Path]] = defaultdict(set)
    for run, version in chosen:
        places[run.short_name(version).partition(AT)[0]].add(run.layout.root.resolve())
    return [
        run.short_name(version)
        if len(places[run.short_name(version).partition(AT)[0]]) == 1
        else run.long_name(version)
        for run, version in chosen
    ]


def require_same_problems(models: Sequence[ModelSamples]) -> None:
    """Refuse models that were evaluated on different problems of a benchmark.

    Raises:
        UserError: the problems of a model differ from those of the first.
    """
    first = models[0]
    for model in models[1:]:
        if different := first.problems.keys() ^ model.problems.keys():
            raise UserError(
                f"{first.name} and {model.name} were evaluated on different problems of {first.benchmark}",
                value=sorted(different)[:5],
                advice=f"mrt-hpc eval {first.source} {model.source} --suite SUITE",
            )


# -- arms --------------------------------------------------------------------------------------------------------------
# Arms of a comparison: the runs of one recipe, each with a training seed of its own (``NAME=RUN,RUN``). A model that is
# named alone is an arm of one run.


@dataclass(frozen=True)
class Arm:
    """What the runs of an arm wrote for the problems of one benchmark."""

    name: str
    """What tables call it."""
    runs: tuple[ModelSamples, ...]
    """[S] one for each training seed; one for a model that was named alone."""

    @classmethod
    def of(cls, model: ModelSamples) -> Self:
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

    def on(self, problems: Sequence[str]) -> "Arm":
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


def read_arms(arms: Sequence[NamedArm], benchmarks: Sequence[str], *, graded: bool) -> list[list[Arm]]:
    """The samples of each arm, one item a benchmark; see ``read_models``.

    Raises:
        DamagedError: samples are not what was written.
        UserError: an evaluation is not there, or two of the models are the same or have the same training seed within
            an arm, or ``read_models`` refuses them.
    """
    require_independent(arms, benchmarks)
    samples = iter(read_models([model for arm in arms for model in arm.models], benchmarks, graded=graded))
    runs = [[next(samples) for _ in arm.models] for arm in arms]
    return [
        [Arm(arm.name or mine[0][0].name, of_benchmark) for of_benchmark in zip(*mine, strict=True)]
        for arm, mine in zip(arms, runs, strict=True)
    ]


# -- are the runs of an arm those of one recipe?


BESIDE_THE_RECIPE = ("name", "seed", *FREE_SECTIONS, *FREE_FIELDS, *RECORDED_SECTIONS)
"""Fields in which the runs of an arm may differ: they decide nothing of what was trained, or are what an arm varies."""


def require_independent(arms: Sequence[NamedArm], benchmarks: Sequence[str]) -> None:
    """Refuse a model that is named twice, and an arm of which two runs have the same training seed.

    Args:
        arms: that are compared.
        benchmarks: on which; of models that have a number they do not matter.

    Raises:
        UserError: there is one, or ``NamedModel.number`` refuses.
    """
    for arm in arms:
        if len(arm.models) > 1:
            _require_seeds(arm, benchmarks)
    _require_different([(model.run, model.number(benchmarks)) for arm in arms for model in arm.models])


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
