"""``mrt-hpc fields``."""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from mrt_hpc.errors import UserError, nearest
from mrt_hpc.recipe.explain import DocumentedField, documented_fields
from mrt_hpc.recipe.extends import EXTENDS
from mrt_hpc.recipe.registry import SITES
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.site import SiteSettings
from mrt_hpc.recipe.words import tag_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


EXTENDS_MEANS = """The path or the name of another recipe, of which this one says only what differs. Sections are merged
field by field, lists and single values replace, and a section of another type replaces the whole section."""
INDENT = "    "
WIDEST = 110
"""The maximum number of columns of a line: longer lines are hard to read."""


def recipe_fields() -> list[DocumentedField]:
    """Every field of a recipe; ``extends`` is resolved before the rest is checked."""
    return [DocumentedField(EXTENDS, "text", "null", EXTENDS_MEANS.replace("\n", " ")), *documented_fields(Recipe)]


def site_fields() -> list[DocumentedField]:
    """Every field of a site profile: those of all kinds, and those of each kind, which say so."""
    kinds_in_words = f"{', '.join(SITES.built_in)}, or module:Class"
    fields = documented_fields(SiteSettings)
    common = [replace(field, values=kinds_in_words) if field.name == "type" else field for field in fields]
    names = {field.name for field in common}
    kinds = {str(tag_of(site)): documented_fields(site) for site in SITES.classes}
    own = [(kind, field) for kind, fields in kinds.items() for field in fields if field.name not in names]
    return [*common, *(replace(field, text=f"{field.text} Only with type: {kind}.") for kind, field in own)]


KINDS: dict[str, Callable[[], list[DocumentedField]]] = {"recipe": recipe_fields, "site": site_fields}


def print_fields(words: tuple[str, ...]) -> None:
    """Print fields with their values, defaults and meanings.

    Args:
        words: the kind of file, or none for a recipe; then the field below which to look, or none for all.

    Raises:
        UserError: there is no such field.
    """
    kind, *asked = words if words[:1] and words[0] in KINDS else ("recipe", *words)
    fields = KINDS[kind]()
    for name in asked:
        fields = _within(kind, fields, name)
    width = min(shutil.get_terminal_size().columns, WIDEST)
    for field in fields:
        click.secho(field.name, bold=True)
        for line in _lines(field, width):
            click.echo(line)


def _within(kind: str, fields: list[DocumentedField], asked: str) -> list[DocumentedField]:
    found = [field for field in fields if field.is_within(asked)]
    if not found:
        names = [field.name for field in fields]
        guess = nearest(asked, [*names, *{name.split(".")[0] for name in names}])
        raise UserError(
            f"a {kind} has no such field",
            value=asked,
            expected=f"{guess} is the nearest" if guess else "a field, or the first part of its name",
            advice=f"mrt-hpc fields {kind}",
        )
    return found


def _lines(field: DocumentedField, width: int) -> Iterator[str]:
    """The values that a field takes, and its meaning."""
    default = "required" if field.default is None else f"default {field.default}"
    takes = default if field.values == field.default else f"{field.values}; {default}"
    for text in (takes, field.text):
        yield from _wrapped(text, width, INDENT)
    for choice in field.choices:
        yield from _wrapped(f"{choice.value}: {choice.text}", width, INDENT * 2)


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    """The lines of a text, without the marks of code in docstrings."""
    plain = text.replace("`", "")
    return textwrap.wrap(plain, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
