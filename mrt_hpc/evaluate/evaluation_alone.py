"""Separate evaluations: the recipe from models and a suite, and the submission."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from mrt_hpc.backends.backend import Site
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.evaluate.asked_models import ModelsAsked, pin_models, refuse_lost_models
from mrt_hpc.plan.compile import evaluation_plan
from mrt_hpc.recipe import load
from mrt_hpc.recipe.find import SUITES, absolute, find, here
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
"""Sections taken over from the recipe of the run whose weights are evaluated."""
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
"""Fields taken over that decide numbers, so that all models must agree; and the names by which a suite may state
them.
"""
RESULTS = Path("results")
"""Unless another is given."""
DIGITS = 8
"""They distinguish run directories of evaluations."""


def evaluation_recipe(
    models: ModelsAsked,
    suite: str,
    overrides: Sequence[str] = (),
    results: Path | None = None,
    data: Path | None = None,
) -> EvaluationRecipe:
    """An evaluation's recipe; what the suite leaves open is that of the models' run.

    Args:
        suite: its name or path.
        overrides: ``field=value`` each.
        results: None takes ``RESULTS``.
        data: a folder of problem files, instead of the suite's.

    Raises:
        UserError: wrong suite or field; or the models' runs differ in a deciding field that nothing states.
    """
    source = load.read_suite(find(SUITES, suite), advice=Advice("mrt-hpc eval MODEL --suite {suite}", suite=suite))
    given = source.data if data is None else load.move_data(source.data, data)
    section = dict(given[load.SECTION])
    taken = _inherited_sections(models.recipes, stated=_stated_fields(section, overrides))
    fields: dict[str, Any] = {**taken, **source.data, load.SECTION: section}
    section.setdefault("results", str(absolute(results or RESULTS)))
    fields["models"] = [model.model_dump(mode="json") for model in models.models]
    fields["name"] = "evaluation"
    source = replace(source, data=fields, overrides={})
    for override in overrides:
        load.apply(source, override)
    source.data[load.SECTION] = load.inherit_prompt(source.data[load.SECTION], source.data.get("prompt"))
    whole = load.add_open_forced_texts(load.resolve_paths(source.data, here()))
    import_from(source.path.parent, whole)
    return _complete_recipe(validate(replace(source, data=whole), EvaluationRecipe, whole))


def _stated_fields(section: dict[str, Any], overrides: Sequence[str]) -> set[str]:
    """Dotted fields that a suite or override gives, so that no run's recipe decides them."""
    paths = [override.partition("=")[0].strip().removeprefix("evaluation.") for override in overrides]
    named = {name for name, value in section.items() if value is not None}
    prompt = section.get("prompt")
    of_prompt = {f"prompt.{field}" for field in prompt} if isinstance(prompt, dict) else set()
    if "prompt" in paths:
        of_prompt = {f"prompt.{field}" for field in Prompt.model_fields}
    strict = {"strict"} if _states_strict(section.get("benchmarks")) else set()
    return {*named, *paths, *of_prompt, *strict}


def _states_strict(benchmarks: Any) -> bool:
    """Whether no benchmark's verifier asks ``grading.strict``."""
    if not isinstance(benchmarks, list):
        return False
    problems = [b.get("problems") if isinstance(b, dict) else None for b in benchmarks]
    marked = [each.get("verifier") if isinstance(each, dict) else None for each in problems]
    return all(isinstance(v, dict) and (v.get("type") != "math" or v.get("strict") is not None) for v in marked)


def _inherited_sections(recipes: Sequence[Recipe], *, stated: set[str]) -> dict[str, Any]:
    """Sections taken over from the evaluated runs' recipes, without ``stated`` fields."""
    if not recipes:
        return {}
    dumped = [recipe.model_dump(mode="json") for recipe in recipes]
    for name in (name for name, by in DECIDING.items() if not {name, by} & stated):
        values = [reduce(getitem, name.split("."), data) for data in dumped]
        if any(value != values[0] for value in values):
            advice = "the same command with --set {name}=VALUE, or one run at a time, to be compared then"
            raise UserError(
                f"the recipes of these runs differ in {name}, and one evaluation has one value of it for all models",
                value=", ".join(recipe.name for recipe in recipes),
                where=name,
                advice=Advice(advice, name=name),
            )
    limits = {name: dumped[0]["sampling"][name] for name in ("max_prompt_tokens", "long_prompts")}
    return {**{name: dumped[0][name] for name in TAKEN}, "sampling": limits}


def inputs_of(recipe: EvaluationRecipe) -> dict[str, str]:
    """State of existing input files, by path: checksums of problems, prompt files and own code; names, sizes and times
    in model directories, which take long to read. Runs' weights and hub commits never change.
    """
    problems = [Path(path) for b in recipe.evaluation.benchmarks if (path := getattr(b.problems, "path", None))]
    changeable = [model.path for model in recipe.models if model.run is None and hub_model_of(model.path) is None]
    models = [path for path in map(Path, changeable) if path.is_dir()]
    files = [path for path in (*problems, *prompt_files(recipe).values(), *own_files(recipe)) if path.is_file()]
    return {str(path): _state(path) for path in (*files, *models)}


def _state(path: Path) -> str:
    """A file's checksum; a directory's digest of names, sizes and times."""
    if path.is_file():
        return checksum(path)
    states = {path.name: path.stat() for path in sorted(path.iterdir()) if path.is_file()}
    files = [(name, state.st_size, state.st_mtime_ns) for name, state in states.items()]
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def refresh_inputs(recipe: EvaluationRecipe) -> EvaluationRecipe:
    """A begun evaluation's recipe with its files' present state, without missing ones."""
    paths = [path for path in map(Path, recipe.inputs) if path.exists()]
    return recipe.model_copy(update={"inputs": {str(path): _state(path) for path in paths}})


def narrow_to(recipe: EvaluationRecipe, benchmark: Benchmark) -> EvaluationRecipe:
    """The same evaluation on one benchmark, under its own name; samples are shared through the results folder."""
    evaluation = recipe.evaluation.model_copy(update={"benchmarks": (benchmark,)})
    return _complete_recipe(recipe.model_copy(update={"evaluation": evaluation}))


def _complete_recipe(recipe: EvaluationRecipe) -> EvaluationRecipe:
    """The recipe with the state of its inputs, and the name that follows."""
    recipe = recipe.model_copy(update={"inputs": inputs_of(recipe)})
    return recipe.model_copy(update={"name": name_of(recipe)})


def name_of(recipe: EvaluationRecipe) -> str:
    """Shows models and suite, and is unique to models, settings and suite."""
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
    """Check everything, make or open the run directory, and start what is left.

    Args:
        awaited: ids of queued jobs that publish models.
        root: may exist already.
        listener: receives a sentence on each step.
    """
    plan = evaluation_plan(recipe, site)
    refuse_other_queue(awaited, site)
    refuse_lost_models(recipe, root)
    layout = checked_run(recipe, plan, site, root, listener)
    pin_models(recipe, layout, listener.warn)
    start(recipe, plan, layout, site, listener, awaited)


def refuse_other_queue(awaited: Sequence[str], site: Site) -> None:
    """Refuse to wait for queued jobs at a site without a queue, which would start at once without weights."""
    if awaited and site.backend().queue is None:
        raise UserError(
            "the models are not there yet: queued jobs will publish them, and tasks on this machine cannot wait for "
            "those",
            value=", ".join(awaited),
            where=f"site {site.name}",
            advice="the same command with --site and the site of the training, or later without",
        )
