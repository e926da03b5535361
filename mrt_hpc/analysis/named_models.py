"""The models that a user names on the command line: a run (``RUN``, ``RUN@VERSION``), or an evaluation on its own
(``EVALDIR``, ``EVALDIR@NAME``); and the arms of a comparison, which are made of them.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Self

import numpy as np

from mrt_hpc.analysis.evaluated_run import EvaluatedRun, WeightsOrigin
from mrt_hpc.analysis.intervals import FloatArray
from mrt_hpc.analysis.model_samples import GRADER, ModelSamples
from mrt_hpc.analysis.problem_measures import Measure
from mrt_hpc.errors import Advice, UserError, nearest
from mrt_hpc.plan.jobs import read_plan
from mrt_hpc.recipe.find import expand_home
from mrt_hpc.recipe.lock import FREE_FIELDS, FREE_SECTIONS, RECORDED_SECTIONS, differences
from mrt_hpc.run.family import arms_of, runs_of
from mrt_hpc.run.layout import AT, FIRST, LAST, RunLayout, split_at, version_named
from mrt_hpc.run.manifest import json_digest


@dataclass(frozen=True)
class NamedModel:
    """A weights version of a run, or a model of an evaluation on its own."""

    run: EvaluatedRun
    version: int | str | None = None
    """A number, ``first`` or ``last``; None where a run was named without a version."""

    def number(self, benchmarks: Sequence[str]) -> int:
        """``first`` and ``last`` are of the versions that the recipe evaluates: an earlier one never stands for a last
        one whose evaluation is not complete, which is refused.
        """
        if isinstance(self.version, int):
            return self.version
        run, word = self.run, self.version or LAST
        place = 0 if word == FIRST else -1
        whole = self._whole(benchmarks)
        if run.wanted_versions and run.wanted_versions[place] in whole:
            return run.wanted_versions[place]
        which = "no version has a"
        if run.wanted_versions:
            which = f"weights version {run.wanted_versions[place]}, the {word} one of this run, has no"
        trained = [version for version in whole if version or word == FIRST]
        named = f", or name a version that has one: {run.long_name(trained[place])}" if trained else ""
        raise UserError(
            f"{which} complete evaluation on {', '.join(benchmarks)}",
            where=run.layout.root,
            expected=f"one of {', '.join(map(run.long_name, whole))}" if whole else None,
            advice=Advice(
                "mrt-hpc status {run}, which says what is left to do{named}", run=run.typed, named=Advice(named)
            ),
        )

    def is_late(self, benchmarks: Sequence[str]) -> bool:
        """Whether it is the last version, and not completely evaluated on these benchmarks yet."""
        is_last, wanted = self.version in (None, LAST), self.run.wanted_versions
        return is_last and bool(wanted) and wanted[-1] not in self._whole(benchmarks)

    def _whole(self, benchmarks: Sequence[str]) -> list[int]:
        """Versions completely evaluated on all of these benchmarks."""
        return sorted(set.intersection(*(set(self.run.versions(benchmark)) for benchmark in benchmarks)))


# -- what is typed


def named_models(texts: Sequence[str], *, trust: bool = False) -> list[NamedModel]:
    """``trust`` also imports code that another user can change."""
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
    """An evaluation on its own without a name stands for all its models."""
    names = run.recipe.model_names
    if name is None:
        return range(len(names))
    if name not in names:
        guess = nearest(name, names)
        raise UserError(
            "the evaluation has no model of this name",
            value=name,
            where=run.layout.root,
            expected=f"one of {', '.join(names)}",
            advice=None if guess is None else Advice("{typed}{at}{guess}", typed=run.typed, at=AT, guess=guess),
        )
    return [names.index(name)]


def models_to_evaluate(texts: Sequence[str]) -> list[str]:
    return [model for text in texts for model in _evaluable_models(text)]


def _evaluable_models(text: str) -> list[str]:
    directory, name = split_at(text)
    if not RunLayout(expand_home(directory)).plan.is_file():
        return [text]
    run = EvaluatedRun.look_at(directory)
    return [run.evaluable(number) for number in _numbers(run, name)] if run.models else [text]


# -- what is read


def chosen_benchmarks(models: Sequence[NamedModel], wanted: Sequence[str]) -> list[str]:
    """The wanted benchmarks, which have to be there, or all that the models share, in the first one's order."""
    shared = [b for b in models[0].run.benchmarks if all(b in model.run.benchmarks for model in models[1:])]
    if not shared:
        evaluable = [m.run.evaluable(m.version) if isinstance(m.version, int) else m.run.typed for m in models]
        raise UserError(
            "these models have no benchmark in common",
            value=list(dict.fromkeys(model.run.typed for model in models)),
            advice=Advice("mrt-hpc eval {evaluable} --suite SUITE", evaluable=evaluable),
        )
    for name in wanted:
        if name not in shared:
            guess = nearest(name, shared)
            raise UserError(
                "not all of these models have this benchmark",
                value=name,
                where="--benchmark",
                expected=f"one of {', '.join(shared)}",
                advice=Advice("--benchmark {guess}", guess=guess or shared[0]),
            )
    return list(dict.fromkeys(wanted)) or shared


def benchmarks_left_out(models: Sequence[NamedModel], chosen: Sequence[str]) -> Iterator[str]:
    """A sentence on each benchmark that only some models have."""
    names = dict.fromkeys(benchmark for model in models for benchmark in model.run.benchmarks)
    for benchmark in names:
        lacking = dict.fromkeys(model.run.typed for model in models if benchmark not in model.run.benchmarks)
        if lacking and benchmark not in chosen:
            command = Advice("mrt-hpc eval {lacking} --suite SUITE", lacking=list(lacking))
            yield f"{benchmark} is left out, which {', '.join(lacking)} has not: {command}, which adds it"


def read_models(
    models: Sequence[NamedModel], benchmarks: Sequence[str], *, graded: bool = True
) -> list[list[ModelSamples]]:
    """One item a benchmark for each model. Boundaries count the tokens that the first model's recipe says.

    Raises:
        DamagedError: samples are not what was written.
        UserError: an evaluation is missing, two models are the same, or ``graded`` samples have verdicts of several
            graders.
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
    """A difference might be one of the graders."""
    for of_benchmark in zip(*read, strict=True):
        graders = {grader for samples in of_benchmark for grader in samples.settings[GRADER].split()}
        if len(graders) < 2:
            continue
        benchmark = of_benchmark[0].benchmark
        typed = list(dict.fromkeys(run.typed for run in runs))
        alike = len({json_digest(_judging_settings(run, benchmark)) for run in runs}) == 1
        evaluated = list(dict.fromkeys(samples.source for samples in of_benchmark))
        raise UserError(
            f"{len(graders)} graders have judged the samples on {benchmark}: verdicts of different graders are not "
            "compared",
            value=[samples.name for samples in of_benchmark],
            expected="verdicts of one grader" if alike else "evaluations with one verifier",
            advice=Advice("mrt-hpc regrade {typed}", typed=typed)
            if alike
            else Advice("mrt-hpc eval {evaluated} --suite SUITE", evaluated=evaluated),
        )


def _judging_settings(run: EvaluatedRun, benchmark: str) -> list[object]:
    problems = run.recipe.benchmark(benchmark).problems
    verifier = None if problems.verifier is None else problems.verifier.model_dump(mode="json")
    return [verifier, problems.extraction, run.recipe.grading.model_dump(mode="json", exclude={"processes"})]


def _require_different(chosen: Sequence[tuple[EvaluatedRun, int]]) -> None:
    places = [(run.layout.root.resolve(), version) for run, version in chosen]
    for (run, version), place in zip(chosen, places, strict=True):
        if places.count(place) > 1:
            raise UserError(
                "a model is named twice",
                value=run.long_name(version),
                expected="different models",
                advice=Advice("name {typed} once", typed=run.typed)
                if run.models
                else Advice(
                    "name it once, or mrt-hpc compare {typed}{at}{first} {typed}{at}{last}",
                    typed=run.typed,
                    at=AT,
                    first=FIRST,
                    last=LAST,
                ),
            )


def _names(chosen: Sequence[tuple[EvaluatedRun, int]]) -> list[str]:
    """Names as short as they can be without two directories sharing one."""
    shorts = [run.short_name(version) for run, version in chosen]
    places: dict[str, set[Path]] = defaultdict(set)
    for (run, _), short in zip(chosen, shorts, strict=True):
        places[short.partition(AT)[0]].add(run.layout.root.resolve())
    return [
        short if len(places[short.partition(AT)[0]]) == 1 else run.long_name(version)
        for (run, version), short in zip(chosen, shorts, strict=True)
    ]


def require_same_problems(models: Sequence[ModelSamples]) -> None:
    first = models[0]
    for model in models[1:]:
        if different := first.problems.keys() ^ model.problems.keys():
            raise UserError(
                f"{first.name} and {model.name} were evaluated on different problems of {first.benchmark}",
                value=sorted(different)[:5],
                advice=Advice(
                    "mrt-hpc eval {source} {source2} --suite SUITE", source=first.source, source2=model.source
                ),
            )


# -- arms --------------------------------------------------------------------------------------------------------------
# Arms of a comparison: the runs of one recipe, each with a training seed of its own (``NAME=RUN,RUN``). A model that is
# named alone is an arm of one run.


@dataclass(frozen=True)
class Arm:
    """The runs of one arm on one benchmark."""

    name: str
    runs: tuple[ModelSamples, ...]
    """[S] one a training seed; one for a model that was named alone."""
    differing: tuple[str, ...] = ()
    """The fields besides the seed in which the runs' recipes differ."""

    @classmethod
    def of(cls, model: ModelSamples) -> Self:
        return cls(model.name, (model,))

    @property
    def benchmark(self) -> str:
        return self.runs[0].benchmark

    @property
    def fewest(self) -> int:
        return min(run.fewest for run in self.runs)

    def restrict(self, problems: Sequence[str]) -> "Arm":
        """The arm with these problems alone, in this order; all runs have them."""
        runs = (replace(run, problems={problem: run.problems[problem] for problem in problems}) for run in self.runs)
        return replace(self, runs=tuple(runs))

    def values(self, measure: Measure) -> FloatArray:
        """[S, P] in the order of the first run's problems."""
        by_run = [measure.values(run) for run in self.runs]
        return np.array([[values[problem] for problem in self.runs[0].problems] for values in by_run])


@dataclass(frozen=True)
class NamedArm:
    models: tuple[NamedModel, ...]
    name: str | None = None


SYNTAX = "NAME=RUN,RUN,..., as in grpo=runs/grpo-0,runs/grpo-1@20"


def named_arms(texts: Sequence[str], *, trust: bool = False) -> list[NamedArm]:
    return [NamedArm(tuple(named_models(words, trust=trust)), name) for name, words in split_arms(texts).items()]


def compared_arms(what: Sequence[str], arms: Sequence[str], *, trust: bool) -> list[NamedArm]:
    """The named models, each an arm of one run, and the arms, those of families too; a single run without a version
    stands for its first and its last.
    """
    alone, of_families = arms_of(what)
    models = named_models(alone, trust=trust)
    arms = (*of_families, *arms)
    named = [*(NamedArm((model,)) for model in models), *named_arms(arms, trust=trust)]
    if len(named) > 1:
        return named
    if len(models) == 1 and models[0].version is None:
        return [NamedArm((replace(models[0], version=version),)) for version in (FIRST, LAST)]
    if models:
        one, other = Advice("{what}", what=alone[0]), _another(models[0])
    elif what:
        one, other = Advice("{what}", what=what), "FAMILY"
    else:
        one, other = Advice("--arm {arm}", arm=arms[0]), "--arm NAME=RUN,RUN"
    raise UserError(
        "a comparison needs two models or arms",
        value=one,
        advice=Advice("mrt-hpc compare {one} {other}", one=one, other=Advice(other)),
    )


def _another(model: NamedModel) -> str:
    """A model that this one may be compared with, as the user types it."""
    if model.run.models:
        return "RUN"
    version = LAST if model.version in (FIRST, 0) else FIRST
    return Advice("{run}@{version}", run=model.run.typed, version=version)


def split_arms(texts: Sequence[str]) -> dict[str, list[str]]:
    """A family stands for its runs."""
    arms: dict[str, list[str]] = {}
    for text in texts:
        name, sign, runs = text.partition("=")
        typed = [word.strip() for word in runs.split(",")]
        if not (name.strip() and sign and all(typed)):
            raise UserError("this is no arm", value=text, where="--arm", expected=SYNTAX, advice="--arm NAME=RUN,RUN")
        words = [str(run) for word in typed for run in runs_of(expand_home(word))]
        if arms.setdefault(name.strip(), words) is not words:
            advice = Advice("--arm {name}-2={runs}", name=name.strip(), runs=runs)
            raise UserError("two arms have the same name", value=name.strip(), where="--arm", advice=advice)
    return arms


def evaluated_runs(arms: Sequence[NamedArm], benchmarks: Sequence[str]) -> tuple[list[NamedArm], list[str]]:
    """Arms without runs that are not evaluated yet, and a sentence on each arm that lacks some. All stay where fewer
    than two arms would be left; a model named alone stays always.
    """
    left, sentences = [], []
    for arm in arms:
        late = [model for model in arm.models if arm.name is not None and model.is_late(benchmarks)]
        if late:
            runs = ", ".join(model.run.typed for model in late)
            have = f"{len(arm.models) - len(late)} of {len(arm.models)} runs"
            why = f"the last weights version of {runs} is not evaluated yet on {', '.join(benchmarks)}"
            then = Advice("mrt-hpc status {run} says what is left to do", run=late[0].run.typed)
            sentences.append(f"{arm.name} has {have}: {why}; {then}")
        if rest := tuple(model for model in arm.models if model not in late):
            left.append(replace(arm, models=rest))
    return (left, sentences) if len(left) > 1 else (list(arms), [])


def read_arms(arms: Sequence[NamedArm], benchmarks: Sequence[str], *, graded: bool) -> list[list[Arm]]:
    """One item a benchmark; see ``read_models`` and ``require_independent``, which may refuse them."""
    require_independent(arms, benchmarks)
    samples = iter(read_models([model for arm in arms for model in arm.models], benchmarks, graded=graded))
    runs = [[next(samples) for _ in arm.models] for arm in arms]
    return [
        [
            Arm(arm.name or mine[0][0].name, each, _differing_fields(_origins(arm, benchmarks)))
            for each in zip(*mine, strict=True)
        ]
        for arm, mine in zip(arms, runs, strict=True)
    ]


# -- are the runs of an arm those of one recipe?


BESIDE_THE_RECIPE = ("name", "seed", *FREE_SECTIONS, *FREE_FIELDS, *RECORDED_SECTIONS)
"""Fields in which the runs of an arm may differ: they decide nothing of what was trained, or are what an arm varies."""


def require_independent(arms: Sequence[NamedArm], benchmarks: Sequence[str]) -> None:
    """Refuse a model that is named twice, and an arm of which two runs have the same training seed."""
    for arm in arms:
        if len(arm.models) > 1:
            _require_seeds(arm, benchmarks)
    _require_different([(model.run, model.number(benchmarks)) for arm in arms for model in arm.models])


def _require_seeds(arm: NamedArm, benchmarks: Sequence[str]) -> None:
    """Runs of the same training seed are no independent draws."""
    for one, other in combinations(_origins(arm, benchmarks), 2):
        if one.recipe is not None and other.recipe is not None and one.recipe.seed == other.recipe.seed:
            raise UserError(
                f"two runs of the arm {arm.name} have the same training seed",
                value=f"seed {one.recipe.seed} in {one.name} and {other.name}",
                where="--arm",
                expected="runs of one recipe, each with a seed of its own",
                advice=Advice("leave {name} out of the arm", name=other.name),
            )


def seed_by_seed(arms: Sequence[NamedArm], benchmarks: Sequence[str]) -> list[NamedArm]:
    """The arms with their runs in the order of their seeds. It refuses different seeds, and runs of one seed that began
    with other weights.
    """
    pairs = [sorted(_models_by_start(arm, benchmarks), key=lambda started: started[0]) for arm in arms]
    starts = [[start for start, _ in of_arm] for of_arm in pairs]
    if not _are_paired(starts):
        seeds = [[seed for seed, _ in of_arm] for of_arm in starts]
        raise UserError(
            "the runs of these arms are not paired by their seeds",
            value=seeds,
            where="--paired",
            expected="arms of the same two seeds or more, whose runs of one seed have the same weights version 0",
            advice="leave --paired out: the seeds of each arm are then its own",
        )
    return [replace(arm, models=tuple(model for _, model in mine)) for arm, mine in zip(arms, pairs, strict=True)]


def may_be_paired(arms: Sequence[NamedArm], benchmarks: Sequence[str]) -> bool:
    return _are_paired([sorted(start for start, _ in _models_by_start(arm, benchmarks)) for arm in arms])


def _models_by_start(arm: NamedArm, benchmarks: Sequence[str]) -> list[tuple[tuple[int, str], NamedModel]]:
    """The seed and the digest of version 0 of each run; -1 and nothing where they are not known."""
    origins = zip(_origins(arm, benchmarks), arm.models, strict=True)
    return [((-1 if one.recipe is None else one.recipe.seed, one.start or ""), model) for one, model in origins]


def _are_paired(starts: Sequence[Sequence[tuple[int, str]]]) -> bool:
    known = all(seed >= 0 and digest for of_arm in starts for seed, digest in of_arm)
    return known and len(starts[0]) > 1 and all(of_arm == starts[0] for of_arm in starts)


def remarks_on(arms: Sequence[NamedArm], benchmarks: Sequence[str]) -> list[str]:
    of_arms = [sentence for arm in arms if len(arm.models) > 1 for sentence in _remarks(arm, benchmarks)]
    return [*_copies([model for arm in arms for model in arm.models], benchmarks), *of_arms]


def _copies(models: Iterable[NamedModel], benchmarks: Sequence[str]) -> Iterator[str]:
    """The difference of two copies of one run, at one weights version, says nothing."""
    seen: dict[tuple[str, int], str] = {}
    for model in models:
        if model.run.layout.identity.is_file() and not model.run.models:
            key = model.run.layout.identity.read_text(), model.number(benchmarks)
            if (first := seen.setdefault(key, model.run.typed)) != model.run.typed:
                yield f"{first} and {model.run.typed} are copies of one run, at the same weights version"


def _remarks(arm: NamedArm, benchmarks: Sequence[str]) -> Iterator[str]:
    origins = _origins(arm, benchmarks)
    if unknown := [origin.name for origin in origins if origin.recipe is None]:
        yield f"{arm.name}: how {', '.join(unknown)} was trained is not known, nor whether with a seed of its own"
    if fields := _differing_fields(origins):
        yield f"the runs of {arm.name} differ in more than their seed: {', '.join(fields)}"
    if len({origin.version for origin in origins}) > 1:
        told = ", ".join(str(origin.version) for origin in origins)
        yield f"the runs of {arm.name} are at different weights versions: {told}"


def _differing_fields(origins: Sequence[WeightsOrigin]) -> tuple[str, ...]:
    recipes = [origin.recipe.model_dump(mode="json") for origin in origins if origin.recipe is not None]
    changed = (field for other in recipes[1:] for field, _, _ in differences(recipes[0], other))
    return tuple(field for field in dict.fromkeys(changed) if not _is_beside(field))


def _is_beside(field: str) -> bool:
    return any(field == name or field.startswith(f"{name}.") for name in BESIDE_THE_RECIPE)


def _origins(arm: NamedArm, benchmarks: Sequence[str]) -> list[WeightsOrigin]:
    return [model.run.origin(model.number(benchmarks)) for model in arm.models]
