"""An evaluation on its own: its recipe from models and a suite, and its submission."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mrt_hpc.backends.backend import Site
from mrt_hpc.errors import UserError
from mrt_hpc.evaluate.asked_models import ModelsAsked, pin_models, refuse_lost_models
from mrt_hpc.plan.compile import evaluation_plan
from mrt_hpc.recipe import load
from mrt_hpc.recipe.find import SUITES, find
from mrt_hpc.recipe.hub_models import hub_model_of
from mrt_hpc.recipe.lock import FREE_SECTIONS
from mrt_hpc.recipe.schema import EvaluationRecipe, Recipe
from mrt_hpc.recipe.sections import Benchmark, Prompt
from mrt_hpc.recipe.user_code import import_from, own_files
from mrt_hpc.recipe.validate import validate
from mrt_hpc.run.atomic import checksum
from mrt_hpc.run.prompt_files import prompt_files
from mrt_hpc.submit.submission import Listener, checked_run, start

TAKEN = ("prompt", "episodes", "serving", "grading", "resources", "resilience", "expected")
"""The sections that an evaluation takes over from the recipe of the run whose weights it evaluates."""
DECIDING = {
    **{f"prompt.{field}": f"prompt.{field}" for field in Prompt.model_fields},
    "episodes": "episodes",
    "grading.strict": "strict",
    "grading.time_limit_s": None,
    "grading.memory_limit_gib": None,
    "serving.dtype": "dtype",
    "sampling.max_prompt_tokens": "max_prompt_tokens",
    "sampling.long_prompts": "long_prompts",
}
"""The fields taken over that decide the numbers of an evaluation, which has one value of each for all models; and the
names by which a suite states them instead, where it can.
"""
RESULTS = Path("results")
"""The results folder, unless another one is given."""
DIGITS = 8
"""The number of digits that distinguish the run directories of evaluations."""


def evaluation_recipe(
    models: ModelsAsked,
    suite: str,
    overrides: Sequence[str] = (),
    results: Path | None = None,
    data: Path | None = None,
) -> EvaluationRecipe:
    """The recipe of an evaluation. What the suite does not say is taken from the recipe of the models' run.

    Args:
        models: those that are evaluated.
        suite: the name or the path of the suite.
        overrides: ``field=value`` each.
        results: the results folder; None takes ``RESULTS``.
        data: the folder of the files of problems, in place of that which the suite names.

    Raises:
        UserError: there is no such suite, a field is wrong, or the recipes of the models' runs differ in a field that
            decides numbers and that neither the suite nor an override states.
    """
    source = load.read_suite(find(SUITES, suite), advice=f"mrt-hpc eval MODEL --suite {suite}")
    section = dict(load.with_data_in(source.data, data)[load.SECTION])
    taken = _taken(models.recipes, stated=_stated(section, overrides))
    fields: dict[str, Any] = {**taken, **source.data, load.SECTION: section}
    section.setdefault("results", str((results or RESULTS).absolute()))
    fields["models"] = [model.model_dump(mode="json") for model in models.models]
    fields["name"] = "evaluation"
    source = replace(source, data=fields, overrides={})
    for override in overrides:
        load.apply(source, override)
    source.data[load.SECTION] = load.with_prompt_of(source.data[load.SECTION], source.data.get("prompt"))
    whole = load.with_open_forced_texts(load.with_absolute_paths(source.data, Path.cwd()))
    import_from(source.path.parent, whole)
    recipe = validate(replace(source, data=whole), EvaluationRecipe, whole)
    recipe = recipe.model_copy(update={"inputs": inputs_of(recipe)})
    return recipe.model_copy(update={"name": name_of(recipe)})


def _stated(section: dict[str, Any], overrides: Sequence[str]) -> set[str]:
    """The dotted names of the fields that a suite or an override gives, so that no recipe of a run decides them."""
    paths = [override.partition("=")[0].strip().removeprefix("evaluation.") for override in overrides]
    named = {name for name, value in section.items() if value is not None}
    prompt = section.get("prompt")
    of_prompt = {f"prompt.{field}" for field in prompt} if isinstance(prompt, dict) else set()
    if "prompt" in paths:
        of_prompt = {f"prompt.{field}" for field in Prompt.model_fields}
    strict = {"strict"} if _states_strict(section.get("benchmarks")) else set()
    return {*named, *paths, *of_prompt, *strict}


def _states_strict(benchmarks: Any) -> bool:
    """Whether the verifier of every benchmark is one that does not ask ``grading.strict``."""
    if not isinstance(benchmarks, list):
        return False
    marked = [
        b["problems"].get("verifier") for b in benchmarks if isinstance(b, dict) and isinstance(b.get("problems"), dict)
    ]
    return len(marked) == len(benchmarks) and all(
        isinstance(v, dict) and (v.get("type") != "math" or v.get("strict") is not None) for v in marked
    )


def _taken(recipes: Sequence[Recipe], *, stated: set[str]) -> dict[str, Any]:
    """The sections that are taken over from the recipes of runs.

    Args:
        recipes: of the runs whose weights are evaluated.
        stated: the names of the fields that do not come from them.

    Raises:
        UserError: they differ in a field that decides numbers, so that one evaluation cannot suit all models.
    """
    if not recipes:
        return {}
    dumped = [recipe.model_dump(mode="json") for recipe in recipes]
    for name in (name for name, by in DECIDING.items() if not {name, by} & stated):
        values = [_at(data, name) for data in dumped]
        if any(value != values[0] for value in values):
            raise UserError(
                f"the recipes of these runs differ in {name}, and one evaluation has one value of it for all models",
                value=", ".join(recipe.name for recipe in recipes),
                where=name,
                advice=f"the same command with --set {name}=VALUE, or one run at a time, then mrt-hpc compare",
            )
    first = dumped[0]
    taken = {name: first[name] for name in TAKEN}
    limits = {name: first["sampling"][name] for name in ("max_prompt_tokens", "long_prompts")}
    return {**taken, "serving": {**taken["serving"], "attach": None}, "sampling": limits}


def _at(data: Any, name: str) -> Any:
    """The value at a dotted name."""
    for key in name.split("."):
        data = data[key]
    return data


def inputs_of(recipe: EvaluationRecipe) -> dict[str, str]:
    """The state of the files that the evaluation reads and that are there, by path: the checksums of problems, of files
    of prompts and of the user's own code; and of a model directory the names, sizes and times of its files, as reading
    it takes long. Weights versions of runs and commits of the hub never change.
    """
    problems = [Path(path) for b in recipe.evaluation.benchmarks if (path := getattr(b.problems, "path", None))]
    changeable = [model.path for model in recipe.models if model.run is None and hub_model_of(model.path) is None]
    models = [path for path in map(Path, changeable) if path.is_dir()]
    files = [path for path in (*problems, *prompt_files(recipe).values(), *own_files(recipe)) if path.is_file()]
    return {str(path): _state(path) for path in (*files, *models)}


def _state(path: Path) -> str:
    """The checksum of a file; of a directory a digest of the names, sizes and times of its files."""
    if path.is_file():
        return checksum(path)
    states = {path.name: path.stat() for path in sorted(path.iterdir()) if path.is_file()}
    files = [(name, state.st_size, state.st_mtime_ns) for name, state in states.items()]
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def as_it_stands(recipe: EvaluationRecipe) -> EvaluationRecipe:
    """The recipe of an evaluation that has begun, with the state that its files have now: none for one that is gone."""
    paths = [path for path in map(Path, recipe.inputs) if path.exists()]
    return recipe.model_copy(update={"inputs": {str(path): _state(path) for path in paths}})


def narrowed(recipe: EvaluationRecipe, benchmark: Benchmark) -> EvaluationRecipe:
    """The recipe of the same evaluation on one of its benchmarks, under a name of its own. Samples of the whole one are
    shared by way of the results folder.
    """
    evaluation = recipe.evaluation.model_copy(update={"benchmarks": (benchmark,)})
    alone = recipe.model_copy(update={"evaluation": evaluation})
    alone = alone.model_copy(update={"inputs": inputs_of(alone)})
    return alone.model_copy(update={"name": name_of(alone)})


def name_of(recipe: EvaluationRecipe) -> str:
    """A name that shows models and suite, and that other models, settings and suites do not share."""
    content = recipe.model_dump(mode="json", exclude={"name", "expected", *FREE_SECTIONS})
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:DIGITS]
    model = recipe.models[0]
    first = model.name if hub_model_of(model.path) else Path(model.run or model.path).name
    words = f"eval-{recipe.evaluation.suite or 'own'}-{first}"
    plain = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in words)
    return f"{plain[:54]}-{digest}"


def submit_evaluation(
    recipe: EvaluationRecipe, awaited: Sequence[str], site: Site, root: Path, listener: Listener
) -> None:
    """Check everything, make or open the run directory, and start what is left to do.

    Args:
        recipe: of the evaluation.
        awaited: ids of queued jobs that publish its models.
        site: where it runs.
        root: its run directory, which may exist already.
        listener: receives a sentence about each step.

    Raises:
        UserError: models or data are wrong, models are gone, the run is in use, the site refuses, or a task failed.
    """
    plan = evaluation_plan(recipe, site)
    refuse_other_queue(awaited, site)
    refuse_lost_models(recipe, root)
    layout = checked_run(recipe, plan, site, root, listener)
    pin_models(recipe, layout, listener.warn)
    start(recipe, plan, layout, site, listener, awaited)


def refuse_other_queue(awaited: Sequence[str], site: Site) -> None:
    """Refuse to wait for queued jobs at a site without a queue, which would start at once and find no weights.

    Raises:
        UserError: the models are yet to be published by jobs of a queue, and the site has none.
    """
    if awaited and site.backend().queue is None:
        raise UserError(
            "the models are not there yet: queued jobs will publish them, and tasks on this machine cannot wait for "
            "those",
            value=", ".join(awaited),
            where=f"site {site.name}",
            advice="the same command with --site and the site of the training, or later without",
        )
