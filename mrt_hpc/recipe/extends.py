"""``extends``: a recipe names another one and contains only the differences.

Sections are merged field by field. Lists and single values replace those of the base. A section of another ``type``
replaces the whole section, as the fields of the one type mean nothing to the other. A recipe that is extended may
extend a further one.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.find import RECIPES, expanded, find, spellings
from mrt_hpc.recipe.paths import with_absolute_paths
from mrt_hpc.recipe.source import Source, read_source

if TYPE_CHECKING:
    from mrt_hpc.recipe.source import Location, Place

_ABOVE = re.compile(r"^(?:\.\./)+")
EXTENDS = "extends"
"""The field of a recipe that names another one."""


def read_recipe_source(path: Path, *, advice: str, extending: tuple[Path, ...] = ()) -> Source:
    """A recipe with all that it extends, as one source.

    Args:
        path: the YAML file.
        advice: what to type after the file is corrected.
        extending: the files that extend this one, the one that was named first.

    Raises:
        UserError: a file is missing or holds no fields, or recipes extend each other in a circle.
    """
    source, chain = read_source(path, advice=advice, depth=len(extending)), (*extending, path.resolve())
    if EXTENDS not in source.data:
        return source
    base_path = _base(source.data[EXTENDS], source.places[EXTENDS,], chain)
    base = read_recipe_source(base_path, advice=advice, extending=chain)
    base = replace(base, data=with_absolute_paths(base.data, without_detour(base_path.parent.absolute())))
    own = {name: value for name, value in source.data.items() if name != EXTENDS}
    return Source(path, merged(base.data, own), merged_places(base, own, source))


def without_detour(folder: Path) -> Path:
    """The folder without ``..``, where that is the same folder: a symbolic link may lead elsewhere. A recipe and one
    that extends it from another folder then name their files alike, and one continues a run of the other.
    """
    short = Path(os.path.normpath(folder))
    return short if short.is_dir() and short.samefile(folder) else folder


def _base(named: Any, where: Place, chain: tuple[Path, ...]) -> Path:
    """The file that a recipe extends: beside it, or a recipe by its name."""
    if not isinstance(named, str) or not named.strip():
        raise UserError(
            "extends: wrong value",
            value=named,
            where=f"{where.path}, line {where.line}",
            expected="the path or the name of another recipe",
            advice=f"edit {where.path}",
        )
    beside = [path for path in spellings(where.path.parent / expanded(named)) if path.is_file()]
    try:
        base = beside[0] if beside else find(RECIPES, _ABOVE.sub("", named))  # a copied variant stands elsewhere
    except UserError as error:
        raise UserError(
            "extends: there is no such recipe",
            value=named,
            where=f"{where.path}, line {where.line}",
            expected=f"a path from {where.path.parent}, or the name of a recipe; {error.expected or ''}".rstrip("; "),
            advice=f"edit {where.path}",
        ) from error
    if base.resolve() in chain:
        circle = " -> ".join(str(path) for path in (*chain, base.resolve()))
        raise UserError(
            f"extends: recipes extend each other in a circle: {circle}",
            value=named,
            where=f"{where.path}, line {where.line}",
            expected="a recipe that does not extend this one",
            advice=f"edit {where.path}",
        )
    return base


def merged(base: Any, own: Any) -> Any:
    """Return the fields of a recipe and its base together; where they differ, the recipe's own value is used."""
    if not _merge(base, own):
        return own
    both = {name: merged(base[name], value) for name, value in own.items() if name in base}
    return {**base, **own, **both}


def _merge(base: Any, own: Any) -> bool:
    """Whether two values are sections of one type."""
    both = isinstance(base, dict) and isinstance(own, dict)
    return both and ("type" not in own or own["type"] == base.get("type"))


def merged_places(base: Source, own_data: dict[str, Any], own: Source) -> dict[Location, Place]:
    """Return the place of each field of the merged recipe."""
    kept = {location: place for location, place in base.places.items() if not _replaced(base.data, own_data, location)}
    of_own = {location: place for location, place in own.places.items() if location[:1] != (EXTENDS,)}
    return {**kept, **of_own}


def _replaced(base: Any, own: Any, location: Location) -> bool:
    """Whether the recipe replaces a field of the base, or a section that contains it."""
    for step in location:
        if not _merge(base, own):
            return True
        if step not in own:
            return False
        base, own = base[step], own[step]
    return False
