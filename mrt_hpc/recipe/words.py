"""Describes in words the values that a field takes, from the annotation that checks them."""

from __future__ import annotations

import types
import typing
from datetime import date
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from mrt_hpc.recipe.base import PATTERNS, Because
from mrt_hpc.recipe.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BOUNDS = ("ge", "gt", "le", "lt")
SCALARS = {
    bool: "true or false", str: "text", int: "a whole number", float: "a number", date: "a day", type(None): "null",
}  # fmt: skip


def field_in_words(field: FieldInfo) -> str:
    """The values of a field, as in "a whole number from 1 to 64, or null"."""
    return values_in_words(whole_annotation(field))


def whole_annotation(field: FieldInfo) -> Any:
    """The annotation of a field with its constraints, which pydantic keeps beside it."""
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def registry_in(annotation: Any) -> Registry[Any] | None:
    """The registry whose classes an annotation means; None if it means itself."""
    if get_origin(annotation) is not Annotated:
        return None
    return next((constraint for constraint in get_args(annotation)[1:] if isinstance(constraint, Registry)), None)


def values_in_words(annotation: Any, constraints: Iterable[Any] = ()) -> str:
    """The values that an annotation takes.

    Args:
        annotation: a type as pydantic checks it.
        constraints: bounds and patterns of the field.
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    if registry := registry_in(annotation):
        return f"a section with type: {_one_of([*registry.built_in])}"
    if origin is Annotated:
        return values_in_words(inner[0], [*_flat(inner[1:]), *constraints])
    if origin is Literal:
        return _one_of([yaml_text(value) for value in inner])
    if origin in (Union, types.UnionType):
        return _alternatives(inner, constraints)
    if origin in (tuple, list):
        return _listing([a for a in inner if a is not Ellipsis])
    if origin is dict:
        return f"names, each with its value: {values_in_words(inner[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _one_of([yaml_text(member) for member in annotation])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "a section"
    return _scalar(annotation, list(_flat(constraints)))


def yaml_text(value: Any) -> str:
    """A value as a recipe writes it."""
    if isinstance(value, Enum):
        return yaml_text(value.value)
    if isinstance(value, str):
        return value if value.isprintable() and value.strip() == value != "" else _quoted(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(yaml_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{yaml_text(k)}: {yaml_text(v)}' for k, v in value.items())}}}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def _one_of(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"


def _alternatives(inner: Iterable[Any], constraints: Iterable[Any]) -> str:
    kinds = [annotation for annotation in inner if annotation is not type(None)]
    or_null = ", or null" if type(None) in inner else ""
    if any(registry_in(kind) for kind in kinds):
        return ", or ".join(values_in_words(kind) for kind in kinds) + or_null
    if all(isinstance(kind, type) and issubclass(kind, BaseModel) for kind in kinds):
        tags = [tag for kind in kinds if (tag := tag_of(kind)) is not None]
        return (f"a section with type: {_one_of(tags)}" if tags else "a section") + or_null
    return ", or ".join(values_in_words(kind, constraints) for kind in kinds) + or_null


def tag_of(model: type[BaseModel]) -> str | None:
    """The ``type`` that distinguishes a section from the others of its union."""
    field = model.model_fields.get("type")
    values = typing.get_args(field.annotation) if field else ()
    return values[0] if values else None


def _listing(inner: list[Any]) -> str:
    each = values_in_words(inner[0])
    return f"a list of {len(inner)}, each {each}" if len(inner) > 1 else f"a list, each item {each}"


def _scalar(kind: Any, constraints: list[Any]) -> str:
    word = SCALARS.get(kind, getattr(kind, "__name__", str(kind)))
    patterns = [PATTERNS[p] for c in constraints if (p := getattr(c, "pattern", None)) is not None]
    bounds = {name: bound for c in constraints for name in BOUNDS if (bound := getattr(c, name, None)) is not None}
    return " ".join([word, *([_range(bounds)] if bounds else []), *(f"of {words}" for words in patterns)])


def reason_of_range(annotation: Any) -> str | None:
    """Why the range of a field ends where it does; None where its annotation does not say."""
    arguments = get_args(annotation)
    own = [one.reason for one in _flat(arguments[1:]) if isinstance(one, Because)]
    return next(iter([*own, *filter(None, map(reason_of_range, arguments))]), None)


def _range(bounds: dict[str, float]) -> str:
    told = {name: f"{bound:,}" for name, bound in bounds.items()}
    match told:
        case {"ge": low, "le": high}:
            return f"from {low} to {high}"
        case {"ge": low, "lt": high}:
            return f"from {low} to below {high}"
        case {"gt": low, "lt": high}:
            return f"above {low} and below {high}"
        case {"gt": low, "le": high}:
            return f"above {low} and at most {high}"
        case {"ge": low}:
            return f"of at least {low}"
        case {"gt": low}:
            return f"above {low}"
    return " and ".join(f"at most {b}" if name == "le" else f"below {b}" for name, b in told.items())


def _flat(constraints: Iterable[Any]) -> Iterator[Any]:
    """Return all constraints, including those within a ``Field``."""
    for constraint in constraints:
        if isinstance(constraint, FieldInfo):
            yield from constraint.metadata
        else:
            yield constraint
