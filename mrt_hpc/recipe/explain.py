"""Looking up the fields of nested models: for the nearest valid name, and for the documentation."""

from __future__ import annotations

import re
import types
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import BaseModel

from mrt_hpc.recipe.choices import Choice, choices_of
from mrt_hpc.recipe.words import (
    field_in_words,
    reason_of_range,
    registry_in,
    tag_of,
    values_in_words,
    whole_annotation,
    yaml_text,
)

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

Location = tuple[int | str, ...]
KEY = "[key]"
"""The last step of pydantic's location if the name of an entry is wrong, not its value."""


def field_names_at(model: type[BaseModel], location: Location) -> list[str]:
    """Names of the fields of the model at ``location`` (as pydantic gives it, tags of unions included)."""
    at: Any = model
    for step in location:
        at = _step(at, step)
    return [name for m in models_of(at) for name in m.model_fields]


def _step(at: Any, step: int | str) -> Any:
    for candidate in models_of(at):
        if step in candidate.model_fields:
            return _annotation(candidate, str(step))
    tagged = [m for m in models_of(at) if tag_of(m) == step]
    return tagged[0] if tagged else at  # a list index changes nothing: models_of looks through lists


def _annotation(model: type[BaseModel], name: str) -> Any:
    return whole_annotation(model.model_fields[name])


def models_of(annotation: Any) -> list[type[BaseModel]]:
    """The models behind an annotation: through unions, optionals, lists and tuples."""
    if registry := registry_in(annotation):
        return [*registry.classes]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if typing.get_origin(annotation) in (Union, types.UnionType, tuple, list, Annotated):
        return [m for inner in typing.get_args(annotation) for m in models_of(inner)]
    return []


@dataclass(frozen=True)
class DocumentedField:
    """One field, as the documentation shows it."""

    name: str
    """Dotted, with the type of a section in brackets, as in ``prover[majority].branches``."""
    values: str
    """The values that it takes, in words."""
    default: str | None
    """As a recipe writes it; None where the field is required."""
    text: str
    """Its meaning."""
    choices: tuple[Choice, ...] = ()
    """The values of an enumeration, each with its meaning; none for other fields."""

    def is_within(self, asked: str) -> bool:
        """Whether this is the field asked for, or one below it; the types of sections may be left out, or given as in
        ``prover.majority``.
        """
        names = (re.sub(r"\[\w+\]", "", self.name), self.name.replace("[", ".").replace("]", ""))
        wanted = asked.replace("[", ".").replace("]", "")
        return any(name == wanted or name.startswith(f"{wanted}.") for name in names)


def documented_fields(model: type[BaseModel], prefix: str = "") -> list[DocumentedField]:
    """Every field below ``model``."""
    found: list[DocumentedField] = []
    for name, field in model.model_fields.items():
        dotted = f"{prefix}{name}"
        text = " ".join((field.description or "").split())
        choices = choices_of(field.annotation)
        found.append(DocumentedField(dotted, field_in_words(field), _default_text(field), text, choices))
        for section in models_of(whole_annotation(field)):
            tag = tag_of(section)
            found += documented_fields(section, f"{dotted}[{tag}]." if tag else f"{dotted}.")
    return found


def _default_text(field: FieldInfo) -> str | None:
    if field.is_required():
        return None
    default = field.get_default(call_default_factory=True)
    return "see below" if isinstance(default, BaseModel) else yaml_text(default)


def values_at(model: type[BaseModel], location: Location) -> str | None:
    """What the field at ``location`` (as pydantic gives it) takes, in words; None where that is no field."""
    of_key = location[-1:] == (KEY,)
    at: Any = model
    for step in location[:-2] if of_key else location:
        if (at := _below(at, step)) is None:
            return None
    return values_in_words(_inner(at, dict)[0] if of_key else at)


def reason_at(model: type[BaseModel], location: Location) -> str | None:
    """Why the range of the field at ``location`` ends where it does; None where nothing is said."""
    at: Any = model
    for step in location:
        if (at := _below(at, step)) is None:
            return None
    return reason_of_range(at)


def meaning_at(model: type[BaseModel], location: Location) -> str:
    """The first sentence about the field at ``location``, or about the list or dictionary that the value stands in;
    empty where nothing is said.
    """
    at: Any = model
    text = ""
    for step in location:
        for candidate in models_of(at):
            if step in candidate.model_fields:
                text = candidate.model_fields[str(step)].description or ""
        if (at := _below(at, step)) is None:
            break
    return re.split(r"(?<=\.)\s+(?=[A-Z])", " ".join(text.split()))[0]


def default_at(model: type[BaseModel], data: Any, location: Location) -> Any:
    """The default of a field that ``data`` leaves out.

    Args:
        model: the model of ``data``.
        data: what a file holds, which decides the kinds of its sections.
        location: of the field, without the tags of unions.

    Returns:
        None where the field is required, has no default other than null, or is given.
    """
    at: Any = model
    for number, step in enumerate(location):
        given = {"type": data} if isinstance(data, str) else data  # a section that is written as its type alone
        holder = _holder(at, given, step)
        if isinstance(given, dict) and step not in given:
            return None if holder is None else _default_below(holder, location[number:])
        at, data = _below(holder or at, step), child(given, step)
    return None


def _holder(annotation: Any, data: Any, step: int | str) -> type[BaseModel] | None:
    """The model with a field of this name: the one that the ``type`` in the data names, or else the first."""
    models = [model for model in models_of(annotation) if step in model.model_fields]
    named = (model for model in models if isinstance(data, dict) and tag_of(model) == data.get("type"))
    return next(named, models[0] if models else None)


def _default_below(model: type[BaseModel], location: Location) -> Any:
    """The default of a field, or of one below it; None where it is required, or is a section."""
    field = model.model_fields[str(location[0])]
    found = None if field.is_required() else field.get_default(call_default_factory=True)
    for step in location[1:]:
        found = getattr(found, str(step), None)
    return None if isinstance(found, BaseModel) else found


def child(data: Any, step: int | str) -> Any:
    """What a file holds at a step below ``data``; None where it holds nothing there."""
    try:
        return data[step]
    except (KeyError, IndexError, TypeError):
        return data if step == "type" and isinstance(data, str) else None  # a section that is written as its type alone


def _below(annotation: Any, step: int | str) -> Any:
    """Return the annotation at a step below another one, with its constraints; None if there is none."""
    for model in models_of(annotation):
        if step in model.model_fields:
            return whole_annotation(model.model_fields[str(step)])
        if tag_of(model) == step:
            return model
    if isinstance(step, int):
        items = [a for kind in (tuple, list) for a in _inner(annotation, kind) if a is not Ellipsis]
        return items[min(step, len(items) - 1)] if items else None
    return next(iter(_inner(annotation, dict)[1:]), None)


def _inner(annotation: Any, kind: type) -> tuple[Any, ...]:
    """The arguments of a list, tuple or dictionary, which may be one of several alternatives."""
    if typing.get_origin(annotation) is kind:
        return typing.get_args(annotation)
    if typing.get_origin(annotation) in (Union, types.UnionType, Annotated):
        return next((found for a in typing.get_args(annotation) if (found := _inner(a, kind))), ())
    return ()
