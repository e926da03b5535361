"""Fields set on the command line, as in ``--set training.learning_rate=2e-6``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.source import UNREADABLE, change

if TYPE_CHECKING:
    from mrt_hpc.recipe.source import Source


def apply(source: Source, override: str) -> None:
    """Set one field from ``dotted.path=value``; list items are named by their number."""
    path, equals, value = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise UserError(
            "not an override",
            value=override,
            expected="FIELD.PATH=VALUE",
            advice="--set training.learning_rate=2e-6, for example",
        )
    try:
        parsed = YAML(typ="safe", pure=True).load(value)
    except UNREADABLE as error:
        reason = getattr(error, "problem", None) or error
        raise UserError(
            f"the value is not YAML: {reason}", value=value, where=f"--set {override}", advice=change(override)
        ) from error
    target: Any = source.data
    location: list[int | str] = []
    for key in keys[:-1]:
        target, step = _descend(target, key, override)
        location.append(step)
    if isinstance(target, list):
        index = _index(target, keys[-1], override)
        target[index] = parsed
        location.append(index)
    else:
        target[keys[-1]] = parsed
        location.append(keys[-1])
    source.overrides[tuple(location)] = override


def _descend(target: Any, key: str, override: str) -> tuple[Any, int | str]:
    if isinstance(target, list):
        index = _index(target, key, override)
        return target[index], index
    if target.get(key) is None:
        target[key] = {}
    if not isinstance(target[key], dict | list):
        raise UserError(
            f"{key} holds a single value, so nothing can be set below it",
            value=target[key],
            where=f"--set {override}",
            advice=change(override),
        )
    return target[key], key


def _index(items: list[Any], key: str, override: str) -> int:
    if not key.isdecimal() or int(key) >= len(items):
        raise UserError(
            "no such list item",
            value=key,
            where=f"--set {override}",
            expected=f"a number from 0 to {len(items) - 1}",
            advice=change(override),
        )
    return int(key)
