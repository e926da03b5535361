"""Describes the fields of a model in words, from their annotations and the docstrings below them: values, choices, and
the place in nested models.
"""

import ast
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from mrt_hpc.recipe.base import PATTERNS, Because
from mrt_hpc.recipe.registry import Registry

BOUNDS = ("ge", "gt", "le", "lt")
SCALARS = {
    bool: "true or false", str: "text", int: "a whole number", float: "a number", date: "a day", type(None): "null",
}  # fmt: skip


def whole_annotation(field: FieldInfo) -> Any:
    """pydantic keeps the constraints beside the annotation."""
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def registry_in(annotation: Any) -> Registry[Any] | None:
    """The registry whose classes an annotation means."""
    if get_origin(annotation) is not Annotated:
        return None
    return next((constraint for constraint in get_args(annotation)[1:] if isinstance(constraint, Registry)), None)


def values_in_words(annotation: Any, constraints: Iterable[Any] = ()) -> str:
    """The values within bounds and patterns, as in "a whole number from 1 to 64"."""
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
        each, count = values_in_words(inner[0]), len([a for a in inner if a is not Ellipsis])
        return f"a list of {count}, each {each}" if count > 1 else f"a list, each item {each}"
    if origin is dict:
        return f"names, each with its value: {values_in_words(inner[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _one_of([yaml_text(member) for member in annotation])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "a section"
    return _scalar(annotation, list(_flat(constraints)))


def yaml_text(value: Any) -> str:
    if isinstance(value, Enum):
        return yaml_text(value.value)
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
        return value if value.isprintable() and value.strip() == value != "" else f'"{escaped}"'
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(yaml_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{yaml_text(k)}: {yaml_text(v)}' for k, v in value.items())}}}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


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
    """The ``type`` of a section in a union."""
    field = model.model_fields.get("type")
    values = typing.get_args(field.annotation) if field else ()
    return values[0] if values else None


def _scalar(kind: Any, constraints: list[Any]) -> str:
    word = SCALARS.get(kind, getattr(kind, "__name__", str(kind)))
    patterns = [PATTERNS[p] for c in constraints if (p := getattr(c, "pattern", None)) is not None]
    bounds = {name: bound for c in constraints for name in BOUNDS if (bound := getattr(c, name, None)) is not None}
    return " ".join([word, *([_range(bounds)] if bounds else []), *(f"of {words}" for words in patterns)])


def reason_of_range(annotation: Any) -> str | None:
    """Says why the range ends where it does."""
    arguments = get_args(annotation)
    own = [marker.reason for marker in _flat(arguments[1:]) if isinstance(marker, Because)]
    return next(iter([*own, *filter(None, map(reason_of_range, arguments))]), None)


def _range(bounds: dict[str, float]) -> str:
    bounds_in_words = {name: f"{bound:,}" for name, bound in bounds.items()}
    match bounds_in_words:
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
    return " and ".join(f"at most {b}" if name == "le" else f"below {b}" for name, b in bounds_in_words.items())


def _flat(constraints: Iterable[Any]) -> Iterator[Any]:
    for constraint in constraints:
        if isinstance(constraint, FieldInfo):
            yield from constraint.metadata
        else:
            yield constraint


# -- choices of an enumeration -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """One value of an enumeration."""

    value: str
    """As a recipe writes it."""
    text: str


def choices_of(annotation: Any) -> tuple[Choice, ...]:
    """The choices of an enumeration, or of one with null."""
    if (enumeration := _enumeration(annotation)) is None:
        return ()
    texts = _texts(enumeration)
    return tuple(Choice(yaml_text(member), texts[member.name]) for member in enumeration if member.name in texts)


def _enumeration(annotation: Any) -> type[Enum] | None:
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, Enum) else None
    return next(filter(None, map(_enumeration, typing.get_args(annotation))), None)


@cache
def _texts(documented: type) -> dict[str, str]:
    """Docstrings below the members of an enumeration or the fields of a model, by name. Python keeps none; the source
    is read on demand.
    """
    try:
        source = inspect.getsource(documented)
    except (OSError, TypeError):  # a class of the user's own may come without its source
        return {}
    (definition,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(definition, ast.ClassDef)
    return dict(filter(None, map(_documented_name, definition.body, definition.body[1:])))


def _documented_name(defined: ast.stmt, after: ast.stmt) -> tuple[str, str] | None:
    """None unless the two statements are a member or field and its docstring."""
    match defined, after:
        case (
            ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)),
            ast.Expr(value=ast.Constant(value=str() as text)),
        ):
            return name, " ".join(text.split())
    return None


def _text_of(model: type[BaseModel], name: str) -> str:
    owners = (owner for owner in model.__mro__ if name in inspect.get_annotations(owner))
    return next((_texts(owner).get(name, "") for owner in owners), "")


# -- fields of nested models -------------------------------------------------------------------------------------------


Location = tuple[int | str, ...]
KEY = "[key]"
"""Ends pydantic's location if the name of an entry is wrong, not its value."""


def models_of(annotation: Any, kind: str | None = None) -> list[type[BaseModel]]:
    """The models behind an annotation, through unions, optionals, lists and tuples. ``kind`` may name a class of the
    user's own.
    """
    if registry := registry_in(annotation):
        own = None if kind is None else registry.find(kind)
        return [*registry.classes] if own is None else [own]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if typing.get_origin(annotation) in (Union, types.UnionType, tuple, list, Annotated):
        return [m for inner in typing.get_args(annotation) for m in models_of(inner, kind)]
    return []


def models_in(annotation: Any, data: Any) -> list[type[BaseModel]]:
    """The model that a file's ``type`` names, or else all."""
    kind = child(data, "type")
    models = models_of(annotation, kind if isinstance(kind, str) else None)
    return [model for model in models if tag_of(model) == kind] or models


def sections_with_own_classes(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Registry[Any]]]:
    """Sections whose ``type`` may name a class of the user's own, by dotted name."""
    for name, field in model.model_fields.items():
        annotation = whole_annotation(field)
        yield from ((f"{prefix}{name}", registry) for registry in _registries(annotation))
        for section in models_of(annotation):
            yield from sections_with_own_classes(section, f"{prefix}{name}.")


def _registries(annotation: Any) -> list[Registry[Any]]:
    if registry := registry_in(annotation):
        return [registry]
    return [found for inner in get_args(annotation) for found in _registries(inner)]


@dataclass(frozen=True)
class DocumentedField:
    """One field, as the documentation shows it."""

    name: str
    """Dotted, with a section's type in brackets, as in ``prover[majority].branches``."""
    values: str
    default: str | None
    """As a recipe writes it; None where the field is required."""
    text: str
    choices: tuple[Choice, ...] = ()

    def is_within(self, asked: str) -> bool:
        """Whether this is the field asked for, or below it; types of sections may be left out, or given as in
        ``prover.majority``.
        """
        names = (re.sub(r"\[[^\]]+\]", "", self.name), self.name.replace("[", ".").replace("]", ""))
        wanted = asked.replace("[", ".").replace("]", "")
        return any(name == wanted or name.startswith(f"{wanted}.") for name in names)


def documented_fields(model: type[BaseModel], prefix: str = "") -> list[DocumentedField]:
    documented: list[DocumentedField] = []
    for name, field in model.model_fields.items():
        dotted = f"{prefix}{name}"
        annotation = whole_annotation(field)
        values, default, choices = values_in_words(annotation), _default_text(field), choices_of(field.annotation)
        documented.append(DocumentedField(dotted, values, default, _text_of(model, name), choices))
        for section in models_of(annotation):
            tag = tag_of(section)
            documented += documented_fields(section, f"{dotted}[{tag}]." if tag else f"{dotted}.")
    return documented


def _default_text(field: FieldInfo) -> str | None:
    if field.is_required():
        return None
    default = field.get_default(call_default_factory=True)
    return "see below" if isinstance(default, BaseModel) else yaml_text(default)


@dataclass(frozen=True)
class FieldAt:
    """A field at a place of a file, whose content decides the classes of the sections around it."""

    annotation: Any
    """None where there is no field."""
    text: str
    """Its text, or that of the list or dictionary around it."""
    names: tuple[str, ...]
    """The fields below it."""

    @property
    def values(self) -> str | None:
        return None if self.annotation is None else values_in_words(self.annotation)

    @property
    def meaning(self) -> str:
        """The first sentence of its text."""
        return re.split(r"(?<=\.)\s+(?=[A-Z])", self.text)[0]

    @property
    def reason(self) -> str | None:
        return reason_of_range(self.annotation)


def field_at(model: type[BaseModel], data: Any, location: Location) -> FieldAt:
    """The field at a place of a file's ``data``, which may name classes of the user's own. ``location`` lacks the tags
    of unions; its last step may be ``KEY``.
    """
    at: Any = model
    text, of_key = "", location[-1:] == (KEY,)
    for step in location[:-2] if of_key else location:
        holder = _holder(at, data, step)
        text = text if holder is None else _text_of(holder, str(step))
        at, data = _inner_annotation(holder or at, step), child(data, step)
    names = (name for found in models_in(at, data) for name in found.model_fields)
    return FieldAt(_inner(at, dict)[0] if of_key else at, text, tuple(dict.fromkeys(names)))


def default_at(model: type[BaseModel], data: Any, location: Location) -> Any:
    """The default of a field that ``data`` leaves out; None where it is required, null or given."""
    at: Any = model
    for number, step in enumerate(location):
        given = {"type": data} if isinstance(data, str) else data  # a section that is written as its type alone
        holder = _holder(at, given, step)
        if isinstance(given, dict) and step not in given:
            return None if holder is None else _default_below(holder, location[number:])
        at, data = _inner_annotation(holder or at, step), child(given, step)
    return None


def _holder(annotation: Any, data: Any, step: int | str) -> type[BaseModel] | None:
    """The model of the data that has this field."""
    return next((model for model in models_in(annotation, data) if step in model.model_fields), None)


def _default_below(model: type[BaseModel], location: Location) -> Any:
    field = model.model_fields[str(location[0])]
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    for step in location[1:]:
        default = getattr(default, str(step), None)
    return None if isinstance(default, BaseModel) else default


def child(data: Any, step: int | str) -> Any:
    """None where the file holds nothing there."""
    try:
        return data[step]
    except (KeyError, IndexError, TypeError):
        return data if step == "type" and isinstance(data, str) else None  # a section that is written as its type alone


def _inner_annotation(annotation: Any, step: int | str) -> Any:
    for model in models_of(annotation):
        if step in model.model_fields:
            return whole_annotation(model.model_fields[str(step)])
    if isinstance(step, int):
        items = [a for kind in (tuple, list) for a in _inner(annotation, kind) if a is not Ellipsis]
        return items[min(step, len(items) - 1)] if items else None
    return next(iter(_inner(annotation, dict)[1:]), None)


def _inner(annotation: Any, kind: type) -> tuple[Any, ...]:
    """The arguments of a list, tuple or dictionary, also within a union."""
    if typing.get_origin(annotation) is kind:
        return typing.get_args(annotation)
    if typing.get_origin(annotation) in (Union, types.UnionType, Annotated):
        return next(filter(None, (_inner(a, kind) for a in typing.get_args(annotation))), ())
    return ()
