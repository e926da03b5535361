"""Loads a checked recipe or site profile: a YAML file with what it extends, the suite that it names, and the fields
that the command line sets.
"""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict

from mrt_hpc.errors import UserError, word
from mrt_hpc.recipe.find import RECIPES, SUITES, data_file, expanded, find, spellings
from mrt_hpc.recipe.hub_models import MODEL_FIELDS, is_hub_name, with_cached_models
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.site import SITES, SiteSettings
from mrt_hpc.recipe.source import UNREADABLE, FieldPlace, Location, Source, change, parsed, read_source
from mrt_hpc.recipe.user_code import import_from
from mrt_hpc.recipe.validate import validate

# -- overrides: --set training.learning_rate=2e-6 ----------------------------------------------------------------------


def apply(source: Source, override: str) -> None:
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
        content, _ = parsed(value)
    except UNREADABLE as error:
        reason = getattr(error, "problem", None) or error
        raise UserError(
            f"the value is not YAML: {reason}", value=value, where=f"--set {override}", advice=change(override)
        ) from error
    target: Any = source.data
    location: list[int | str] = []
    for key in keys[:-1]:
        target, step = _descend(target, key, override)
        location.append(step)
    if isinstance(target, list):
        index = _index(target, keys[-1], override)
        target[index] = content
        location.append(index)
    else:
        target[keys[-1]] = content
        location.append(keys[-1])
    for replaced in [place for place in source.places if place[: len(location)] == tuple(location)]:
        del source.places[replaced]
    source.overrides[tuple(location)] = override


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
            advice=change(override),
        )
    return target[key], key


def _index(items: list[Any], key: str, override: str) -> int:
    if not key.isdecimal() or int(key) >= len(items):
        raise UserError(
            "no such list item",
            value=key,
            where=f"--set {override}",
            expected=f"a number from 0 to {len(items) - 1}",
            advice=change(override),
        )
    return int(key)


# -- relative paths start at the folder of the file that names them ----------------------------------------------------


EACH = "*"
"""Stands for every item of a list."""
PATHS = (
    ("data", "path"),
    ("model", "path"),
    ("prompt", "chat_template"),
    ("prompt", "examples"),
    ("prover", "model"),
    ("serving", "attach", "key_file"),
    ("evaluation", "results"),
    ("evaluation", "prompt", "chat_template"),
    ("evaluation", "prompt", "examples"),
    ("evaluation", "benchmarks", EACH, "problems", "path"),
    ("evaluation", "benchmarks", EACH, "prompt", "chat_template"),
    ("evaluation", "benchmarks", EACH, "prompt", "examples"),
)
"""Where a recipe holds paths."""
DATA_FILES = (("data", "path"), ("evaluation", "benchmarks", EACH, "problems", "path"))
"""Those of problems and samples."""


def with_absolute_paths(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A recipe as it was read, with its relative paths resolved against its folder; wrong values and names of models of
    the hub stay as they are.
    """
    for path in PATHS:
        data = _changed(data, path, partial(_absolute, folder, path))
    return data


def named_paths(data: dict[str, Any]) -> list[str]:
    """All paths that a recipe holds, as it was read, without names of models of the hub."""
    named: list[str] = []

    def take(path: tuple[str, ...], value: Any) -> None:
        if isinstance(value, str) and not _is_hub_name_at(path, value):
            named.append(value)

    for path in PATHS:
        _changed(data, path, partial(take, path))
    return named


def _absolute(folder: Path, path: tuple[str, ...], value: Any) -> Any:
    if not isinstance(value, str) or not value.strip() or _is_hub_name_at(path, value):
        return value
    return str(data_file(folder, value) if path in DATA_FILES else folder / expanded(value))


def with_data_in(data: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    """A recipe as it was read, with the files of problems and samples in another folder; None leaves them."""
    if folder is not None:
        for path in DATA_FILES:
            data = _changed(data, path, partial(_moved, folder))
    return data


def _moved(folder: Path, value: Any) -> Any:
    return str(folder.absolute() / Path(value).name) if isinstance(value, str) and value.strip() else value


def _is_hub_name_at(path: tuple[str, ...], text: str) -> bool:
    """Whether a text stands where a name of the hub may stand, and is one."""
    return path in MODEL_FIELDS and is_hub_name(text)


def _changed(value: Any, path: tuple[str, ...], change: Callable[[Any], Any]) -> Any:
    """The value with what stands at the end of a path changed."""
    if not path:
        return change(value)
    step, *rest = path
    if step == EACH:
        return [_changed(item, tuple(rest), change) for item in value] if isinstance(value, list) else value
    if not isinstance(value, dict) or step not in value:
        return value
    return {**value, step: _changed(value[step], tuple(rest), change)}


# -- extends: a recipe has only the differences from another one -------------------------------------------------------
# Sections are merged field by field. Lists and single values replace those of the base. A section of another ``type``
# replaces the whole section, as the fields of the one type mean nothing to the other.


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
    if {"recipe", "packages"} <= source.data.keys():
        raise UserError(
            "this is the record of a run, and no recipe", where=path, advice=f"name the run: {word(path.parent)}"
        )
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


def _base(named: Any, where: FieldPlace, chain: tuple[Path, ...]) -> Path:
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


def merged_places(base: Source, own_data: dict[str, Any], own: Source) -> dict[Location, FieldPlace]:
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


# -- evaluation.suite: the section takes its fields from a file --------------------------------------------------------


SECTION = "evaluation"
PROMPT, BENCHMARKS = "prompt", "benchmarks"
SUITE = "suite"
"""The field of the section that names a suite."""


def read_suite(path: Path, *, advice: str) -> Source:
    """A suite file as a source with the section ``evaluation``; its relative paths start at its own folder, and modules
    that it names may lie beside it.

    Args:
        path: the YAML file, whose fields are those of the section.
        advice: what to type after the file is corrected.

    Raises:
        UserError: the file is missing, or holds no fields.
    """
    source = read_source(path, advice=advice)
    import_from(path.parent, source.data)
    data = with_absolute_paths({SECTION: {SUITE: path.stem, **source.data}}, path.parent.absolute())
    places = {(SECTION, *location): FieldPlace(1, place.line, path) for location, place in source.places.items()}
    return Source(path, data, {(SECTION,): FieldPlace(1, 1, path), **places})


def with_prompt_of(section: dict[str, Any], prompt: Any) -> dict[str, Any]:
    """An evaluation section whose prompts take the fields that they do not name, such as thinking tags and a chat
    template, from a recipe's prompt: a suite cannot know what a model needs. What a benchmark's prompt does not name
    comes from the section's prompt before.

    Args:
        section: with the fields of a suite.
        prompt: that of the recipe, or what stands in its place.
    """
    own, whole = section.get(PROMPT), dict(section)
    filled = {**(prompt if isinstance(prompt, dict) else {}), **(own if isinstance(own, dict) else {})}
    if isinstance(own, dict):
        whole[PROMPT] = filled
    if isinstance(benchmarks := section.get(BENCHMARKS), list):
        whole[BENCHMARKS] = [
            {**b, PROMPT: {**filled, **b[PROMPT]}} if isinstance(b, dict) and isinstance(b.get(PROMPT), dict) else b
            for b in benchmarks
        ]
    return whole


def with_suite(source: Source, *, advice: str) -> Source:
    """A recipe whose evaluation section has the fields of the suite that it names, where it names none of its own.

    Args:
        source: the recipe, with absolute paths.
        advice: what to type after a file is corrected.

    Raises:
        UserError: there is no such suite.
    """
    section = source.data.get(SECTION)
    name = section.get(SUITE) if isinstance(section, dict) else None
    if not isinstance(section, dict) or not isinstance(name, str):
        return source
    suite = read_suite(find(SUITES, name), advice=advice)
    own: dict[str, Any] = {SECTION: {field: value for field, value in section.items() if field != SUITE}}
    whole = merged(suite.data, own)[SECTION]
    both = {**source.data, SECTION: with_prompt_of(whole, source.data.get(PROMPT))}
    return replace(source, data=both, places={**merged_places(suite, own, source), **source.places})


# -- models without tags -----------------------------------------------------------------------------------------------


OPEN_FORCED_TEXT = (
    "\nTime is up. I should stop here and give my best answer now.\n\n**Final Answer**\n\nThe final answer is"
)
"""The forced text of a prover for a model that writes no thinking tags. It begins with one newline: the whole thought
ends inside the sentence that opens the box, whose words must not run into the prover's; behind an inner prefix it is a
third newline.
"""


def with_open_forced_texts(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe as it was read, whose provers get ``OPEN_FORCED_TEXT`` where the prompt names an empty closing tag and
    they have no text of their own. Wrong values are left for the schema to refuse.
    """
    if _part(recipe, "prompt").get("thought_end") != "":
        return recipe
    changed = _with_open_prover(recipe)
    if evaluation := _part(recipe, "evaluation"):
        changed["evaluation"] = _with_open_prover(evaluation)
    return changed


def _part(recipe: dict[str, Any], name: str) -> dict[str, Any]:
    part = recipe.get(name)
    return part if isinstance(part, dict) else {}


def _with_open_prover(section: dict[str, Any]) -> dict[str, Any]:
    prover = _part(section, "prover")
    if not prover or prover.get("type") == "continuation":
        return dict(section)
    return {**section, "prover": {"forced_text": OPEN_FORCED_TEXT, **prover}}


# -- recipes and site profiles -----------------------------------------------------------------------------------------


def load_recipe(path: Path, overrides: tuple[str, ...] = (), data_from: Path | None = None) -> Recipe:
    """Read a recipe with what it extends, override and check it. Its relative paths are made absolute, and models of
    the hub become their directories in the hub's cache. One that the cache does not hold keeps its name: `plan` says
    how to fetch it, and `submit` refuses it.

    Args:
        path: the YAML file.
        overrides: texts of the form ``training.learning_rate=2e-6``; the value is YAML.
        data_from: the folder of all files of problems and samples, in place of those that the recipe names.

    Raises:
        UserError: everything that is wrong; or a class would be imported from beside the
            file, where another user can change it.
    """
    source = read_recipe_source(path, advice=f"mrt-hpc plan {word(path)}")
    for override in overrides:
        apply(source, override)
    absolute = replace(source, data=with_absolute_paths(source.data, path.parent.absolute()))
    whole = with_suite(absolute, advice=f"mrt-hpc plan {word(path)}")
    data = with_cached_models(with_open_forced_texts(with_data_in(whole.data, data_from)))
    import_from(path.parent, data)
    return validate(replace(whole, data=data), Recipe, data)


class SiteFile(BaseModel):
    """A site profile of one kind, which ``type`` names."""

    model_config = ConfigDict(frozen=True)

    site: Annotated[SiteSettings, SITES]


def load_site(path: Path) -> SiteSettings:
    """Read and check a site profile; its kind may be a class of a module that lies beside it.

    Raises:
        UserError: everything that is wrong with it.
    """
    source = read_source(path, advice=f"mrt-hpc plan RECIPE --site {path}")
    import_from(path.parent, source.data)
    site = validate(source, SiteFile, {"site": source.data}, prefix=("site",)).site
    site.note_file(path)
    return site
