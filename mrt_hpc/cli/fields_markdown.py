"""The reference of fields as Markdown pages: ``mrt-hpc fields --markdown docs/reference``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mrt_hpc.cli.fields import recipe_fields, site_fields
from mrt_hpc.errors import UserError
from mrt_hpc.run.atomic import write_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from mrt_hpc.recipe.explain import DocumentedField

MADE_BY = "mrt-hpc fields --markdown docs/reference"
TOP = "Fields without a section"
INTRODUCTIONS = {
    "recipe": "A recipe is one YAML file with these fields. A section that has a `type` takes the fields of that type, "
    "which stands in brackets: `prover[majority].branches` is written `prover: {type: majority, branches: 4}`. "
    "[Recipes](../recipes.md) explains how to write one; `mrt-hpc fields training` prints one section in a terminal.",
    "site": "A site profile is one YAML file with these fields. It says where jobs run, and never changes a result. "
    "[First day on a cluster](../first-day.md) explains how to write one; `mrt-hpc fields site` prints this list in a "
    "terminal.",
}
_CODE = re.compile(r"(``?[^`]+``?)")


def write_reference(folder: Path) -> list[Path]:
    """Write a page for recipes and one for site profiles, and return their paths.

    Raises:
        UserError: the folder is not there.
    """
    if not folder.is_dir():
        raise UserError("there is no such folder", value=str(folder), advice=f"mkdir -p {folder}")
    pages = {folder / name: text for name, text in reference_pages().items()}
    for path, text in pages.items():
        write_text(path, text)
    return list(pages)


def reference_pages() -> dict[str, str]:
    """Return the text of each page by the name of its file."""
    recipe, site = recipe_fields(), site_fields()
    return {
        "recipe.md": _page("recipe", "Fields of a recipe", recipe),
        "site.md": _page("site", "Fields of a site profile", site),
    }


def _page(kind: str, title: str, fields: Iterable[DocumentedField]) -> str:
    lines = [f"# {title}", "", INTRODUCTIONS[kind], "", f"This page was made by `{MADE_BY}`.", ""]
    return "\n".join([*lines, *_sections(list(fields))]).rstrip("\n") + "\n"


def _sections(fields: list[DocumentedField]) -> Iterator[str]:
    """The fields that have no fields below them, then the sections, each with its fields."""
    by_section: dict[str, list[DocumentedField]] = {}
    for field in fields:
        by_section.setdefault(_section(field), []).append(field)
    alone = [group[0] for group in by_section.values() if len(group) == 1]
    yield from (f"## {TOP}", "", *_table(alone), "")
    for name, (whole, *below) in by_section.items():
        if below:
            takes = "" if whole.values == "a section" else f" It is {_escaped(whole.values)}."
            yield from (f"## {name}", "", f"{_escaped(whole.text)}{takes}", "", *_table(below), "")


def _section(field: DocumentedField) -> str:
    return re.split(r"[.\[]", field.name)[0]


def _table(fields: Iterable[DocumentedField]) -> Iterator[str]:
    yield "| field | values | default | meaning |"
    yield "|---|---|---|---|"
    for field in fields:
        if field.text:  # the type of a section, which its name shows, has no words of its own
            yield f"| {_code(field.name)} | {_escaped(field.values)} | {_default(field)} | {_meaning(field)} |"


def _meaning(field: DocumentedField) -> str:
    """The meaning of a field, and of each of its choices."""
    return "<br>".join([_escaped(field.text), *(f"{_code(c.value)}: {_escaped(c.text)}" for c in field.choices)])


def _default(field: DocumentedField) -> str:
    if field.default is None:
        return "required"
    return "its fields' defaults" if field.default == "see below" else _code(field.default)


def _code(text: str) -> str:
    """A code span in the cell of a table."""
    return f"`{text.replace('|', chr(92) + '|')}`"


def _escaped(text: str) -> str:
    """A text in the cell of a table: code spans with single backticks, and everything else as it stands."""
    return "".join(_code(part.strip("`")) if part.startswith("`") else _plain(part) for part in _CODE.split(text))


def _plain(text: str) -> str:
    return re.sub(r"([\\|*\[\]])", r"\\\1", text).replace("<", "&lt;")
