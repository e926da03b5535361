"""Checks the content of a file against a model. A refusal names file, line, field, value, what was expected and the
nearest name.
"""

import json
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ErrorType

from mrt_hpc.errors import UserError, nearest
from mrt_hpc.recipe import registry
from mrt_hpc.recipe.field_docs import KEY, child, default_at, field_at, yaml_text
from mrt_hpc.recipe.source import Location, Source

Model = TypeVar("Model", bound=BaseModel)

REFUSED = {
    "sampling.top_p": "top-p would make the log-probabilities those of another distribution: it is refused in training",
    "sampling.top_k": "top-k would make the log-probabilities those of another distribution: it is refused in training",
    "model.path": "the type that has a path: model: {type: hugging_face, path: ...}",
}
"""Fields that users look for, and why they do not exist."""


OF_THE_LIBRARY = set(get_args(ErrorType)) - {"value_error", "assertion_error"}
"""Faults with pydantic's message, not the package's own."""


KINDS = {
    "extra_forbidden": "no such field", "missing": "field is missing", "misfit": "does not fit the other fields",
}  # fmt: skip
BEYOND = frozenset({"greater_than", "greater_than_equal", "less_than", "less_than_equal"})


def validate(
    source: Source, model: type[Model], data: dict[str, Any], prefix: Location = (), context: str | None = None
) -> Model:
    """Check ``data`` strictly; JSON is the way in, so that lists may fill tuples and texts enums."""
    content: Any = data
    for step in prefix:
        content = content[step]
    _refuse_other_names(source, content, ())
    try:
        return model.model_validate_json(json.dumps(data, default=str), strict=True, context=context)
    except ValidationError as error:
        raise _Faults(source, model, data, prefix).user_error(error) from None


def _refuse_other_names(source: Source, data: Any, location: Location) -> None:
    """YAML allows lists and sections as names."""
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


@dataclass(frozen=True)
class _Faults:
    """Puts pydantic's faults in a file into words."""

    source: Source
    model: type[BaseModel]
    data: dict[str, Any]
    prefix: Location

    def user_error(self, error: ValidationError) -> UserError:
        faults = sorted(map(self._fault, error.errors(include_url=False)), key=lambda fault: fault[0])
        first, *others = {refused.message(): refused for _, refused in faults}.values()  # a union has one for each form
        return first.add_others(others)

    def _fault(self, problem: ErrorDetails) -> tuple[tuple[int, int], UserError]:
        at, kind = _file_location(problem["loc"], self.data), problem["type"]
        if kind == "missing" and isinstance(at[-1], int):  # a list that is too short is a wrong value
            at, kind = at[:-1], "too_short"
        value, expected, fits = problem["input"], problem["msg"], None
        match kind:
            case "extra_forbidden":
                value, expected = str(at[-1]), self._expected_name(at)
            case "missing":
                value, expected = None, self._expected_value(kind, at)
            case "misfit":
                steps, fits = problem["ctx"]["field"].split("."), problem["ctx"]["fits"]
                at = (*at, *(int(step) if step.isdecimal() else step for step in steps))
                value = _value_at(self.data, at)
                if value is None and (default := default_at(self.model, self.data, at)) is not None:
                    value = Default(default)
            case registry.NO_CLASS:
                at = (*at, "type")
                value = _value_at(self.data, at)
            case "union_tag_invalid" | "union_tag_not_found":
                section, at = at, (*at, "type")
                value, expected = _value_at(self.data, at), self._expected_tag(problem["ctx"], section)
            case "string_type" if isinstance(value, int | float):
                expected = f"the same with quotes around it, which make it text: {self._expected_value(kind, at)}"
            case _ if kind in OF_THE_LIBRARY:
                expected = self._expected_value(kind, at)
        location = at[len(self.prefix) :]
        dotted = ".".join(str(step) for step in location if step != KEY) or "the file as a whole"
        where, advice = self.source.where(location), _advice(self.source, location, fits)
        what = f"{dotted}: {KINDS.get(kind, 'wrong value')}"
        refused = UserError(what, value=value, where=where, expected=expected, advice=advice)
        return _order(self.source, location), refused

    def _expected_value(self, kind: str, location: Location) -> str:
        """The values of a field, and its meaning."""
        field = field_at(self.model, self.data, location)
        values = field.values or "fields with values"
        if kind == "finite_number":
            values = values.replace("a number", "a finite number", 1)
        expected = f"{values}: {field.meaning}" if field.meaning else values
        reason = field.reason if kind in BEYOND else None
        return expected if reason is None else f"{expected} ({reason})"

    def _expected_tag(self, context: dict[str, Any], location: Location) -> str:
        if "expected_tags" not in context:
            return self._expected_value("union_tag_not_found", location)
        return _one_of(str(context.get("tag", "")), [t.strip(" '") for t in context["expected_tags"].split(",")])

    def _expected_name(self, location: Location) -> str:
        if (dotted := ".".join(map(str, location))) in REFUSED:
            return REFUSED[dotted]
        return _one_of(str(location[-1]), sorted(field_at(self.model, self.data, location[:-1]).names))


def _one_of(given: str, valid: list[str]) -> str:
    guess = nearest(given, valid)
    return f"{f'{guess} is the nearest; ' if guess else ''}one of {', '.join(valid)}"


@dataclass(frozen=True)
class Default:
    value: Any

    def __repr__(self) -> str:
        return f"{yaml_text(self.value)} (the default)"


def _advice(source: Source, location: Location, fits: str | None) -> str:
    """Names a fitting value where it is known and an option can set it."""
    if fits is None or source.correction:
        return source.advice(location)
    return f"--set {'.'.join(map(str, location))}={fits}, or {source.advice(location)}"


def _file_location(location: Location, data: Any) -> Location:
    """Remove the tags of unions from pydantic's location: the file lacks them."""
    steps: list[int | str] = []
    for number, step in enumerate(location):
        is_last = number == len(location) - 1
        if isinstance(data, dict) and step not in data and (not is_last or data.get("type") == step):
            continue
        if not isinstance(data, dict | list | None) and step != KEY:
            continue
        if isinstance(data, list) and not isinstance(step, int):
            continue
        steps.append(step)
        data = child(data, step)
    return tuple(steps)


def _value_at(data: Any, location: Location) -> Any:
    for step in location:
        data = child(data, step)
    return data


def _order(source: Source, location: Location) -> tuple[int, int]:
    place = source.nearest_place(location)
    return (0, 0) if place is None else (place.depth, place.line)
