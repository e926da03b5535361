"""The paths in a recipe: relative ones start at the folder of the file that names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mrt_hpc.recipe.find import expanded
from mrt_hpc.recipe.hub_models import MODEL_FIELDS, is_hub_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EACH = "*"
"""Stands for every item of a list."""
PATHS = (
    ("data", "path"),
    ("model", "path"),
    ("prompt", "chat_template"),
    ("prompt", "examples"),
    ("prover", "model"),
    ("serving", "attach", "key_file"),
    ("evaluation", "results"),
    ("evaluation", "prompt", "chat_template"),
    ("evaluation", "prompt", "examples"),
    ("evaluation", "benchmarks", EACH, "problems", "path"),
    ("evaluation", "benchmarks", EACH, "prompt", "chat_template"),
    ("evaluation", "benchmarks", EACH, "prompt", "examples"),
)
"""Where a recipe holds paths."""


def with_absolute_paths(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A recipe as it was read, with its relative paths resolved against its folder; wrong values and names of models of
    the hub stay as they are.
    """
    for path in PATHS:
        data = _changed(data, path, folder, names=path in MODEL_FIELDS)
    return data


def named_paths(data: dict[str, Any]) -> list[str]:
    """All paths that a recipe holds, as it was read, without names of models of the hub."""
    found = [(path, text) for path in PATHS for text in _values(data, path)]
    return [text for path, text in found if not (path in MODEL_FIELDS and is_hub_name(text))]


def _values(value: Any, path: tuple[str, ...]) -> Iterator[str]:
    if not path:
        if isinstance(value, str):
            yield value
        return
    step, *rest = path
    if step == EACH:
        for item in value if isinstance(value, list) else []:
            yield from _values(item, tuple(rest))
    elif isinstance(value, dict) and step in value:
        yield from _values(value[step], tuple(rest))


def _changed(value: Any, path: tuple[str, ...], folder: Path, *, names: bool) -> Any:
    """The value with the path at its end made absolute; ``names`` says whether a name of the hub may stand there."""
    if not path:
        is_path = isinstance(value, str) and value.strip() and not (names and is_hub_name(value))
        return str(folder / expanded(value)) if is_path else value
    step, *rest = path
    if step == EACH:
        return (
            [_changed(item, tuple(rest), folder, names=names) for item in value] if isinstance(value, list) else value
        )
    if not isinstance(value, dict) or step not in value:
        return value
    return {**value, step: _changed(value[step], tuple(rest), folder, names=names)}
