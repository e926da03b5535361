"""The meaning of each choice of a field: the docstrings below the members of its enumeration."""

from __future__ import annotations

import ast
import inspect
import textwrap
import typing
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

from mrt_hpc.recipe.words import yaml_text


@dataclass(frozen=True)
class Choice:
    """One value that a field takes."""

    value: str
    """As a recipe writes it."""
    text: str
    """Its meaning."""


def choices_of(annotation: Any) -> tuple[Choice, ...]:
    """The documented choices of a field whose annotation is an enumeration or null; none for other fields."""
    found = _enumeration(annotation)
    return () if found is None else _documented(found)


def _enumeration(annotation: Any) -> type[Enum] | None:
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, Enum) else None
    return next((found for inner in typing.get_args(annotation) if (found := _enumeration(inner))), None)


@cache
def _documented(enumeration: type[Enum]) -> tuple[Choice, ...]:
    """Python keeps no docstrings of members; they are read from the source."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(enumeration))).body
    assert isinstance(definition, ast.ClassDef)
    texts = dict(filter(None, map(_documented_member, definition.body, definition.body[1:])))
    return tuple(Choice(yaml_text(member), texts[member.name]) for member in enumeration if member.name in texts)


def _documented_member(member: ast.stmt, after: ast.stmt) -> tuple[str, str] | None:
    """The name of a member and its docstring, if the two statements are these."""
    match member, after:
        case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str() as text)):
            return name, " ".join(text.split())
    return None
