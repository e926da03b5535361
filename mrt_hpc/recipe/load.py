"""From a YAML file and overrides to a checked model; every refusal names file, line, field, value, what was expected
and the nearest name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core.core_schema import ErrorType
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from mrt_hpc.errors import UserError, nearest
from mrt_hpc.recipe.explain import field_names_at, meaning_at, values_at
from mrt_hpc.recipe.find import expanded
from mrt_hpc.recipe.prompts import with_open_forced_texts
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.site import LocalSite, Site, SiteFile
from mrt_hpc.recipe.user_code import import_from

if TYPE_CHECKING:
    from pathlib import Path

Location = tuple[int | str, ...]
Model = TypeVar("Model", bound=BaseModel)

REFUSED = {
    "sampling.top_p": "top-p would make the log-probabilities those of another distribution: it is refused in training",
    "sampling.top_k": "top-k would make the log-probabilities those of another distribution: it is refused in training",
}
"""Fields that users look for, and why they are not there."""


OF_THE_LIBRARY = set(get_args(ErrorType)) - {"value_error", "assertion_error"}
"""Kinds of faults whose message is pydantic's, not the package's own."""

MAX_BYTES = 1_000_000
"""Of a YAML file: a recipe has some kilobytes, and the parser is slow on far larger files."""

UNREADABLE = (YAMLError, ValueError, TypeError, AttributeError, RecursionError)
"""What the parser raises for text that is no YAML, or YAML of a kind that nobody writes (an alias within itself)."""


@dataclass(frozen=True)
class Source:
    """A parsed YAML file: its data, and where each field stands."""

    path: Path
    data: dict[str, Any]
    lines: dict[Location, int]
    """Line numbers, from 1, of fields and list items."""
    overrides: dict[Location, str]
    """Fields set on the command line, with the text they came from."""
    mend: str = ""
    """What to do about a fault in it; empty is to edit the file."""
    below: Location = ()
    """Where in the file stands what is checked."""

    def where(self, location: Location) -> str:
        """Where a field stands, for an error: file and line, or the command-line option."""
        for length in range(len(location), 0, -1):
            if location[:length] in self.overrides:
                return f"--set {self.overrides[location[:length]]}"
            if (line := self.line(location[:length])) is not None:
                return f"{self.path}, line {line}"
        return str(self.path)

    def line(self, location: Location) -> int | None:
        """The line of a field, from 1; None for one that the file does not hold."""
        return self.lines.get((*self.below, *location))

    def advice(self, location: Location) -> str:
        """What to do about a fault in a field: about the option that has set it, the file, or both."""
        edit = self.mend or f"edit {self.path}"
        for length in range(len(location), 0, -1):
            if location[:length] in self.overrides:
                return _change(self.overrides[location[:length]])
        options = " ".join(f"--set {text}" for text in self.overrides.values())
        return f"{edit}, or change the options {options}" if options else edit


def load_recipe(path: Path, overrides: tuple[str, ...] = ()) -> Recipe:
    """Read, override and check a recipe; its relative paths are made absolute.

    Args:
        path: the YAML file.
        overrides: texts of the form ``training.learning_rate=2e-6``; the value is YAML.

    Raises:
        UserError: the first thing wrong, and how many more there are.
    """
    import_from(path.parent)
    source = read_source(path, overrides, advice=f"mrt-hpc plan {path}")
    return with_absolute_paths(validate(source, Recipe, with_open_forced_texts(source.data)), path.parent.absolute())


def load_site(path: Path) -> Site:
    """Read and check a site profile.

    Raises:
        UserError: the first thing wrong with it.
    """
    source = read_source(path, (), advice=f"mrt-hpc plan RECIPE --site {path}")
    return validate(source, SiteFile, {"site": source.data}, prefix=("site",)).site


def default_site() -> LocalSite:
    """This machine."""
    return LocalSite()


def read_source(path: Path, overrides: tuple[str, ...], *, advice: str) -> Source:
    """Parse a YAML file (1.2) and lay the overrides over it."""
    if not path.is_file():
        raise UserError("no such file", value=str(path), expected="a YAML file", advice=advice)
    if (size := path.stat().st_size) > MAX_BYTES:
        raise UserError(
            "the file is too large for a recipe or a site profile",
            value=f"{size / 1e6:.1f} MB",
            where=path,
            expected=f"{MAX_BYTES / 1e6:g} MB or less; problems belong into a file that data.path names",
            advice=advice,
        )
    try:
        text = path.read_text(encoding="utf-8")
        yaml = YAML(typ="safe", pure=True)
        node = yaml.compose(text)
        data = yaml.constructor.construct_document(node) if node is not None else None
        lines = dict(_lines(node, ()))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise UserError(f"not YAML: {error.problem or error.context}", where=where, advice=advice) from error
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8 text: {error}", where=path, advice=advice) from error
    except UNREADABLE as error:
        raise UserError(f"not YAML that can be read: {error}", where=path, advice=advice) from error
    if not isinstance(data, dict):
        raise UserError(
            "the file holds no fields",
            value=data,
            where=path,
            expected="lines such as `name: quickstart`",
            advice=advice,
        )
    source = Source(path, data, lines, {})
    for override in overrides:
        _apply(source, override)
    return source


def _lines(node: Node, at: Location) -> list[tuple[Location, int]]:
    found: list[tuple[Location, int]] = []
    if isinstance(node, MappingNode):
        for key, value in node.value:
            found.append(((*at, key.value), key.start_mark.line + 1))
            found += _lines(value, (*at, key.value))
    elif isinstance(node, SequenceNode):
        for index, item in enumerate(node.value):
            found.append(((*at, index), item.start_mark.line + 1))
            found += _lines(item, (*at, index))
    return found


def _apply(source: Source, override: str) -> None:
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
            f"the value is not YAML: {reason}", value=value, where=f"--set {override}", advice=_change(override)
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


def _change(override: str) -> str:
    """The advice on an option of the command line."""
    return f"change the option --set {override}"


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
            advice=_change(override),
        )
    return target[key], key


def _index(items: list[Any], key: str, override: str) -> int:
    if not key.isdecimal() or int(key) >= len(items):
        raise UserError(
            "no such list item",
            value=key,
            where=f"--set {override}",
            expected=f"a number from 0 to {len(items) - 1}",
            advice=_change(override),
        )
    return int(key)


def validate(source: Source, model: type[Model], data: dict[str, Any], prefix: Location = ()) -> Model:
    """Check ``data`` strictly against ``model``; JSON is the way in, so that lists may fill tuples and texts enums."""
    _refuse_other_names(source, data, ())
    try:
        return model.model_validate_json(json.dumps(data, default=str), strict=True)
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
    first = min(problems, key=lambda p: _line_of(source, _file_location(p["loc"], source.data, prefix)))
    at, kind = first["loc"], first["type"]
    if kind == "missing" and isinstance(at[-1], int):  # a list that is too short: it is the value that is wrong
        at, kind = at[:-1], "too_short"
    location = _file_location(at, source.data, prefix)
    value, expected = first["input"], first["msg"]
    match kind:
        case "extra_forbidden":
            value, expected = str(location[-1]), _expected_name(location, at, model)
        case "missing":
            value, expected = None, _expected_value(kind, at, model)
        case "too_short":
            expected = _expected_value(kind, at, model)
        case "misfit":
            location = (*location, *first["ctx"]["field"].split("."))
            value = _value_at(source.data, location)
        case "union_tag_invalid" | "union_tag_not_found":
            location = (*location, "type")
            value, expected = _value_at(source.data, location), _expected_tag(first["ctx"], at, model)
        case _ if kind in OF_THE_LIBRARY:
            expected = _expected_value(kind, at, model)
    dotted = ".".join(map(str, location)) or "the file as a whole"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return UserError(
        f"{dotted}: {_kind(kind)}{more}",
        value=value,
        where=source.where(location),
        expected=expected,
        advice=source.advice(location),
    )


def _kind(error_type: str) -> str:
    names = {
        "extra_forbidden": "no such field",
        "missing": "field is missing",
        "misfit": "does not fit the other fields",
    }
    return names.get(error_type, "wrong value")


def _expected_value(kind: str, location: Location, model: type[BaseModel]) -> str:
    """What a field takes, and what it means; of a kind of fault that pydantic finds."""
    values, meaning = values_at(model, location) or "fields with values", meaning_at(model, location)
    if kind == "finite_number":
        values = values.replace("a number", "a finite number", 1)
    return f"{values}: {meaning}" if meaning else values


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
    """Drop from pydantic's location what is not in the file: the prefix and the tags of unions."""
    steps: list[int | str] = []
    for step in location[len(prefix) :]:
        if isinstance(data, dict) and step not in data and data.get("type") == step:
            continue
        steps.append(step)
        data = _child(data, step)
    return tuple(steps)


def _value_at(data: Any, location: Location) -> Any:
    for step in location:
        data = _child(data, step)
    return data


def _child(data: Any, step: int | str) -> Any:
    try:
        return data[step]
    except (KeyError, IndexError, TypeError):
        return None


def _line_of(source: Source, location: Location) -> int:
    lines = (source.line(location[:n]) for n in range(len(location), 0, -1))
    return next((line for line in lines if line is not None), 0)


def with_absolute_paths(recipe: Recipe, base: Path) -> Recipe:
    """Resolve the recipe's relative paths against its folder, so that the lock holds whatever the working directory."""
    updates: dict[str, Any] = {"data": _absolute(recipe.data, base), "model": _absolute(recipe.model, base)}
    if recipe.prover is not None and recipe.prover.model is not None:
        updates["prover"] = recipe.prover.model_copy(update={"model": _under(base, recipe.prover.model)})
    if recipe.prompt.chat_template is not None:
        template = _under(base, recipe.prompt.chat_template)
        updates["prompt"] = recipe.prompt.model_copy(update={"chat_template": template})
    if (attach := recipe.serving.attach) is not None:
        attach = attach.model_copy(update={"key_file": _under(base, attach.key_file)})
        updates["serving"] = recipe.serving.model_copy(update={"attach": attach})
    benchmarks = tuple(
        b.model_copy(update={"problems": _absolute(b.problems, base)}) for b in recipe.evaluation.benchmarks
    )
    updates["evaluation"] = recipe.evaluation.model_copy(update={"benchmarks": benchmarks})
    return recipe.model_copy(update=updates)


def _absolute(section: Any, base: Path) -> Any:
    """A section with its path resolved, where it has one."""
    return section.model_copy(update={"path": _under(base, section.path)}) if hasattr(section, "path") else section


def _under(base: Path, path: str) -> str:
    return str(base / expanded(path))
