"""Checks the content of a file against a model; a refusal names file, line, field, value, what was expected and the
nearest name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core.core_schema import ErrorType

from mrt_hpc.errors import UserError, nearest
from mrt_hpc.recipe.field_docs import child, default_at, field_names_at, meaning_at, reason_at, values_at, yaml_text
from mrt_hpc.recipe.source import Location, Source

Model = TypeVar("Model", bound=BaseModel)

REFUSED = {
    "sampling.top_p": "top-p would make the log-probabilities those of another distribution: it is refused in training",
    "sampling.top_k": "top-k would make the log-probabilities those of another distribution: it is refused in training",
}
"""Fields that users look for, and why they do not exist."""


OF_THE_LIBRARY = set(get_args(ErrorType)) - {"value_error", "assertion_error"}
"""Kinds of faults whose message is pydantic's, not the package's own."""


BEYOND = frozenset({"greater_than", "greater_than_equal", "less_than", "less_than_equal"})
"""Kinds of faults of a number that lies outside the range of its field."""


def validate(
    source: Source, model: type[Model], data: dict[str, Any], prefix: Location = (), context: str | None = None
) -> Model:
    """Check ``data`` strictly against ``model``; JSON is the way in, so that lists may fill tuples and texts enums."""
    _refuse_other_names(source, data, ())
    try:
        return model.model_validate_json(json.dumps(data, default=str), strict=True, context=context)
    except ValidationError as error:
        raise _explain(error, source, model, prefix) from None


def _refuse_other_names(source: Source, data: Any, location: Location) -> None:
    """Refuse a section whose fields have lists or sections for names, which YAML allows."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for step, value in items:
        if not isinstance(step, str | int | float | None):
            raise UserError(
                f"{'.'.join(map(str, location)) or 'the file as a whole'}: the name of a field is no text",
                value=step,
                where=source.where(location),
                expected="names of fields, each a text",
                advice=source.advice(location),
            )
        _refuse_other_names(source, value, (*location, step if isinstance(step, int) else str(step)))


def _explain(error: ValidationError, source: Source, model: type[BaseModel], prefix: Location) -> UserError:
    problems = error.errors(include_url=False)
    first = min(problems, key=lambda p: _order(source, _file_location(p["loc"], source.data, prefix)))
    at, kind = first["loc"], first["type"]
    if kind == "missing" and isinstance(at[-1], int):  # a list that is too short is a wrong value
        at, kind = at[:-1], "too_short"
    location = _file_location(at, source.data, prefix)
    value, expected, fits = first["input"], first["msg"], None
    match kind:
        case "extra_forbidden":
            value, expected = str(location[-1]), _expected_name(location, at, model)
        case "missing":
            value, expected = None, _expected_value(kind, at, model)
        case "too_short":
            expected = _expected_value(kind, at, model)
        case "misfit":
            location, fits = (*location, *_steps(first["ctx"]["field"])), first["ctx"]["fits"]
            value = _value_at(source.data, location)
            value = _default(model, source.data, location) if value is None else value
        case "union_tag_invalid" | "union_tag_not_found":
            location = (*location, "type")
            value, expected = _value_at(source.data, location), _expected_tag(first["ctx"], at, model)
        case "string_type" if isinstance(value, int | float):
            expected = f"the same with quotes around it, which make it text: {_expected_value(kind, at, model)}"
        case _ if kind in OF_THE_LIBRARY:
            expected = _expected_value(kind, at, model)
    dotted = ".".join(map(str, location)) or "the file as a whole"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return UserError(
        f"{dotted}: {_kind(kind)}{more}",
        value=value,
        where=source.where(location),
        expected=expected,
        advice=_advice(source, location, fits),
    )


@dataclass(frozen=True)
class Default:
    """A value that the file leaves out."""

    value: Any

    def __repr__(self) -> str:
        return f"{yaml_text(self.value)} (the default)"


def _default(model: type[BaseModel], data: Any, location: Location) -> Default | None:
    """The default of a field that the file leaves out; None where it has none, or where its default is null."""
    default = default_at(model, data, location)
    return None if default is None else Default(default)


def _steps(field: str) -> Location:
    """The location of a field that is written with dots; the items of lists are numbers."""
    return tuple(int(step) if step.isdecimal() else step for step in field.split("."))


def _advice(source: Source, location: Location, fits: str | None) -> str:
    """How to correct a fault, with the value that fits where it is known and an option can set it."""
    if fits is None or source.correction:
        return source.advice(location)
    return f"--set {'.'.join(map(str, location))}={fits}, or {source.advice(location)}"


def _kind(error_type: str) -> str:
    names = {
        "extra_forbidden": "no such field",
        "missing": "field is missing",
        "misfit": "does not fit the other fields",
    }
    return names.get(error_type, "wrong value")


def _expected_value(kind: str, location: Location, model: type[BaseModel]) -> str:
    """The values that a field takes, and its meaning, for faults that pydantic finds."""
    values, meaning = values_at(model, location) or "fields with values", meaning_at(model, location)
    if kind == "finite_number":
        values = values.replace("a number", "a finite number", 1)
    expected = f"{values}: {meaning}" if meaning else values
    reason = reason_at(model, location) if kind in BEYOND else None
    return expected if reason is None else f"{expected} ({reason})"


def _expected_tag(context: dict[str, Any], location: Location, model: type[BaseModel]) -> str:
    if "expected_tags" not in context:
        return _expected_value("union_tag_not_found", location, model)
    tags = [t.strip(" '") for t in context["expected_tags"].split(",")]
    guess = nearest(str(context.get("tag", "")), tags)
    listing = "one of " + ", ".join(tags)
    return f"{guess} is the nearest; {listing}" if guess else listing


def _expected_name(in_file: Location, location: Location, model: type[BaseModel]) -> str:
    if (dotted := ".".join(map(str, in_file))) in REFUSED:
        return REFUSED[dotted]
    valid = field_names_at(model, location[:-1])
    guess = nearest(str(location[-1]), valid)
    listing = "one of " + ", ".join(sorted(valid))
    return f"{guess} is the nearest; {listing}" if guess else listing


def _file_location(location: Location, data: Any, prefix: Location) -> Location:
    """Remove from pydantic's location the parts that are not in the file: the prefix and the tags of unions."""
    steps: list[int | str] = []
    for step in location[len(prefix) :]:
        if isinstance(data, dict) and step not in data and data.get("type") == step:
            continue
        steps.append(step)
        data = child(data, step)
    return tuple(steps)


def _value_at(data: Any, location: Location) -> Any:
    for step in location:
        data = child(data, step)
    return data


def _order(source: Source, location: Location) -> tuple[int, int]:
    """The order of faults: the first one in the file is reported."""
    place = source.nearest_place(location)
    return (0, 0) if place is None else (place.depth, place.line)
