"""A run keeps the recipe that it began with, even if a later version of mrt-hpc has other defaults.

A recipe file names some fields only. When the run is submitted again, the other fields take the values of the lock, so
that an unchanged file continues an unchanged run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from mrt_hpc.recipe.hub_models import is_hub_name, is_same_model
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.sections.model import HuggingFaceModel

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    found = wanted
    one, other = locked.model, wanted.model
    if isinstance(one, HuggingFaceModel) and isinstance(other, HuggingFaceModel) and _keeps(one.path, other.path):
        found = found.model_copy(update={"model": other.model_copy(update={"path": one.path})})
    before, now = locked.prover, wanted.prover
    if before is not None and now is not None and _keeps(before.model or "", now.model or ""):
        found = found.model_copy(update={"prover": now.model_copy(update={"model": before.model})})
    return found


def _keeps(before: str, now: str) -> bool:
    """Whether a run keeps the place of a model: it is the same one, and still there or in no other place."""
    return is_same_model(before, now) and (Path(before).is_dir() or is_hub_name(now))


def _filled(locked: dict[str, Any], named: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """The named fields over the lock's; a section that has become one of another type is taken as it is wanted."""
    if named.get("type", locked.get("type")) != locked.get("type"):
        return wanted
    found = dict(locked)
    for name, value in named.items():
        before, after = locked.get(name), wanted[name]
        if isinstance(before, dict) and isinstance(value, dict) and isinstance(after, dict):
            found[name] = _filled(before, value, after)
        else:
            found[name] = after
    return found


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The fields in which two resolved recipes differ: dotted path, old value, new value."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(k for k in new if k not in old)]:
            yield from differences(old.get(key), new.get(key), f"{path}.{key}" if path else str(key))
    elif old != new:
        yield path, old, new
