"""Looking up the fields of nested models: for the nearest valid name, and for the documentation."""

from __future__ import annotations

import types
import typing
from typing import Annotated, Any, Union

from pydantic import BaseModel

Location = tuple[int | str, ...]


def field_names_at(model: type[BaseModel], location: Location) -> list[str]:
    """Names of the fields of the model at ``location`` (as pydantic gives it, tags of unions included)."""
    at: Any = model
    for step in location:
        at = _step(at, step)
    return [name for m in _models(at) for name in m.model_fields]


def _step(at: Any, step: int | str) -> Any:
    for candidate in _models(at):
        if step in candidate.model_fields:
            return _annotation(candidate, str(step))
    tagged = [m for m in _models(at) if _tag(m) == step]
    return tagged[0] if tagged else at  # a list index changes nothing: _models looks through lists


def _annotation(model: type[BaseModel], name: str) -> Any:
    return model.model_fields[name].annotation


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The models behind an annotation: through unions, optionals, lists and tuples."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if typing.get_origin(annotation) in (Union, types.UnionType, tuple, list, Annotated):
        return [m for inner in typing.get_args(annotation) for m in _models(inner)]
    return []


def _tag(model: type[BaseModel]) -> str | None:
    field = model.model_fields.get("type")
    values = typing.get_args(field.annotation) if field else ()
    return values[0] if values else None


def documented_fields(model: type[BaseModel], prefix: str = "") -> list[tuple[str, str, str]]:
    """Every field below ``model``: dotted name, default as text ("required" without one) and documentation."""
    rows: list[tuple[str, str, str]] = []
    for name, field in model.model_fields.items():
        dotted = f"{prefix}{name}"
        inner = _models(field.annotation)
        default = "required" if field.is_required() else _default_text(field.default)
        rows.append((dotted, default, field.description or ""))
        for choice in inner:
            tag = f"{dotted}[{_tag(choice)}]." if _tag(choice) else f"{dotted}."
            rows += documented_fields(choice, tag)
    return rows


def _default_text(default: Any) -> str:
    if isinstance(default, BaseModel):
        return "see below"
    return "null" if default is None else repr(getattr(default, "value", default))
