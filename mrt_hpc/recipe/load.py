"""Loads a checked recipe or site profile from a YAML file and overrides."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mrt_hpc.errors import word
from mrt_hpc.recipe.extends import read_recipe_source
from mrt_hpc.recipe.hub_models import with_cached_models
from mrt_hpc.recipe.overrides import apply
from mrt_hpc.recipe.paths import with_absolute_paths
from mrt_hpc.recipe.prompts import with_open_forced_texts
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.site_file import SiteFile
from mrt_hpc.recipe.source import read_source
from mrt_hpc.recipe.suites import with_suite
from mrt_hpc.recipe.user_code import import_from
from mrt_hpc.recipe.validate import validate

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.recipe.site import SiteSettings


def load_recipe(path: Path, overrides: tuple[str, ...] = ()) -> Recipe:
    """Read a recipe with what it extends, override and check it. Its relative paths are made absolute, and models of
    the hub become their directories in the hub's cache. One that the cache does not hold keeps its name: `plan` says
    how to fetch it, and `submit` refuses it.

    Args:
        path: the YAML file.
        overrides: texts of the form ``training.learning_rate=2e-6``; the value is YAML.

    Raises:
        UserError: the first thing wrong, and how many more there are; or a class would be imported from beside the
            file, where another user can change it.
    """
    source = read_recipe_source(path, advice=f"mrt-hpc plan {word(path)}")
    for override in overrides:
        apply(source, override)
    absolute = replace(source, data=with_absolute_paths(source.data, path.parent.absolute()))
    whole = with_suite(absolute, advice=f"mrt-hpc plan {word(path)}")
    data = with_cached_models(with_open_forced_texts(whole.data))
    import_from(path.parent, data)
    return validate(replace(whole, data=data), Recipe, data)


def load_site(path: Path) -> SiteSettings:
    """Read and check a site profile; its kind may be a class of a module that lies beside it.

    Raises:
        UserError: the first thing wrong with it.
    """
    source = read_source(path, advice=f"mrt-hpc plan RECIPE --site {path}")
    import_from(path.parent, source.data)
    site = validate(source, SiteFile, {"site": source.data}, prefix=("site",)).site
    site.note_file(path)
    return site
