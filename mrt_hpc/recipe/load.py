"""Loads a checked recipe or site profile: a YAML file with what it extends, its suite, and the fields that the command
line sets.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict

from mrt_hpc.errors import Advice, UserError
from mrt_hpc.recipe.find import RECIPES, SHAPES, SUITES, Kind, absolute, data_file, expand_home, find, spellings
from mrt_hpc.recipe.find import SITES as PROFILES
from mrt_hpc.recipe.hub_models import MODEL_FIELDS, is_hub_name, use_cached_models
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.site import SITES, SiteSettings
from mrt_hpc.recipe.source import UNREADABLE, FieldPlace, Location, Source, change, option_text, parse_yaml, read_source
from mrt_hpc.recipe.user_code import import_from
from mrt_hpc.recipe.validate import validate

# -- overrides: --set training.learning_rate=2e-6 ----------------------------------------------------------------------


def apply(source: Source, override: str) -> None:
    """Set a field from ``dotted.path=value``, where list items have numbers."""
    path, equals, value = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        advice = "--set training.learning_rate=2e-6, for example"
        raise UserError("not an override", value=override, expected="FIELD.PATH=VALUE", advice=advice)
    try:
        content, _ = parse_yaml(value)
    except UNREADABLE as error:
        reason = getattr(error, "problem", None) or error
        raise UserError(
            f"the value is not YAML: {reason}", value=value, where=option_text(override), advice=change(override)
        ) from error
    target: Any = source.data
    location: list[int | str] = []
    for key in keys[:-1]:
        location.append(step := _step(target, key, override))
        target = _descend(target, step, override)
    location.append(last := _step(target, keys[-1], override))
    target[last] = content
    for replaced in [place for place in source.places if place[: len(location)] == tuple(location)]:
        del source.places[replaced]
    source.overrides[tuple(location)] = override


def _descend(target: Any, key: int | str, override: str) -> Any:
    if isinstance(target, list):
        return target[int(key)]
    if target.get(key) is None:
        target[key] = {}
    if not isinstance(target[key], dict | list):
        what = f"{key} holds a single value, so nothing can be set below it"
        raise UserError(what, value=target[key], where=option_text(override), advice=change(override))
    return target[key]


def _step(items: Any, key: str, override: str) -> int | str:
    """The name of a field, or the number of a list item."""
    if not isinstance(items, list):
        return key
    if not key.isdecimal() or int(key) >= len(items):
        expected = f"a number from 0 to {len(items) - 1}"
        raise UserError(
            "no such list item", value=key, where=option_text(override), expected=expected, advice=change(override)
        )
    return int(key)


# -- relative paths start at the folder of the file that names them ----------------------------------------------------


EACH = "*"
PATHS = (
    ("data", "path"),
    ("model", "path"),
    ("prompt", "chat_template"),
    ("prompt", "examples"),
    ("prover", "model"),
    ("evaluation", "results"),
    ("evaluation", "prompt", "chat_template"),
    ("evaluation", "prompt", "examples"),
    ("evaluation", "benchmarks", EACH, "problems", "path"),
    ("evaluation", "benchmarks", EACH, "prompt", "chat_template"),
    ("evaluation", "benchmarks", EACH, "prompt", "examples"),
)
DATA_FILES = (("data", "path"), ("evaluation", "benchmarks", EACH, "problems", "path"))


def resolve_paths(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Wrong values and names of models of the hub stay."""
    for path in PATHS:
        data = _change_at(data, path, partial(_absolute, folder, path))
    return data


def named_paths(data: dict[str, Any]) -> list[str]:
    """All paths of a recipe but names of models of the hub."""
    named: list[str] = []

    def take(path: tuple[str, ...], value: Any) -> None:
        if isinstance(value, str) and not _is_hub_name_at(path, value):
            named.append(value)

    for path in PATHS:
        _change_at(data, path, partial(take, path))
    return named


def _absolute(folder: Path, path: tuple[str, ...], value: Any) -> Any:
    if not isinstance(value, str) or not value.strip() or _is_hub_name_at(path, value):
        return value
    return str(data_file(folder, value) if path in DATA_FILES else folder / expand_home(value))


def move_data(data: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    if folder is None:
        return data
    below = absolute(folder)

    def moved(value: Any) -> Any:
        return str(below / Path(value).name) if isinstance(value, str) and value.strip() else value

    for path in DATA_FILES:
        data = _change_at(data, path, moved)
    return data


def _is_hub_name_at(path: tuple[str, ...], text: str) -> bool:
    """Whether a text is a name of the hub, where one may stand."""
    return path in MODEL_FIELDS and is_hub_name(text)


def _change_at(value: Any, path: tuple[str, ...], change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(value)
    step, *rest = path
    if step == EACH:
        return [_change_at(item, tuple(rest), change) for item in value] if isinstance(value, list) else value
    if not isinstance(value, dict) or step not in value:
        return value
    return {**value, step: _change_at(value[step], tuple(rest), change)}


# -- extends: a recipe has only the differences from another one -------------------------------------------------------
# Sections are merged field by field. Lists and single values replace those of the base. A section of another ``type``
# replaces the whole section, as the fields of the one type mean nothing to the other.


_ABOVE = re.compile(r"^(?:\.\./)+")
EXTENDS = "extends"


OF_RECIPES = frozenset({EXTENDS, "model", "data", "algorithm"})
"""Every recipe has one of them, and no file of another kind."""
OTHER_KINDS = {PROFILES: "type", SUITES: "benchmarks", SHAPES: "gpus"}
"""Other kinds of files, each with a field that no recipe has."""


def kind_of(data: Mapping[str, Any]) -> Kind:
    """The kind of a file, by the fields that it has."""
    others = (kind for kind, field in OTHER_KINDS.items() if field in data and data.keys().isdisjoint(OF_RECIPES))
    return next(others, RECIPES)


def read_recipe_source(path: Path, *, advice: str, extending: tuple[Path, ...] = ()) -> Source:
    """``advice`` says what to type after the file is corrected; ``extending`` are the files that extend this one,
    outermost first.
    """
    source, chain = read_source(path, advice=advice, depth=len(extending)), (*extending, path.resolve())
    if {"recipe", "packages"} <= source.data.keys():
        what = "this is the record of a run, and no recipe"
        raise UserError(what, where=path, advice=Advice("name the run: {parent}", parent=path.parent))
    if (kind := kind_of(source.data)) is not RECIPES:
        raise UserError(f"this is a {kind.word}, and no recipe", where=path, advice=Advice(kind.command, name=path))
    if EXTENDS not in source.data:
        return source
    base_path = _base(source.data[EXTENDS], source.places[EXTENDS,], chain)
    base = read_recipe_source(base_path, advice=advice, extending=chain)
    base = replace(base, data=resolve_paths(base.data, shorten_folder(absolute(base_path.parent))))
    own = {name: value for name, value in source.data.items() if name != EXTENDS}
    return Source(path, merge_fields(base.data, own), merged_places(base, own, source))


def shorten_folder(folder: Path) -> Path:
    """Recipes of two folders then name their files alike, and one continues a run of the other. A ``..`` behind a
    symbolic link stays.
    """
    short = Path(os.path.normpath(folder))
    return short if short.is_dir() and short.samefile(folder) else folder


def _base(named: Any, where: FieldPlace, chain: tuple[Path, ...]) -> Path:
    """A file beside it, or a recipe by its name."""

    def refusal(what: str, expected: str) -> UserError:
        line, advice = f"{where.path}, line {where.line}", Advice("edit {path}", path=where.path)
        return UserError(what, value=named, where=line, expected=expected, advice=advice)

    if not isinstance(named, str) or not named.strip():
        raise refusal("extends: wrong value", "the path or the name of another recipe")
    beside = [path for path in spellings(where.path.parent / expand_home(named)) if path.is_file()]
    try:
        base = beside[0] if beside else find(RECIPES, _ABOVE.sub("", named))  # a copied variant stands elsewhere
    except UserError as error:
        expected = f"a path from {where.path.parent}, or the name of a recipe; {error.expected or ''}".rstrip("; ")
        raise refusal("extends: there is no such recipe", expected) from error
    if base.resolve() in chain:
        circle = " -> ".join(str(path) for path in (*chain, base.resolve()))
        what = f"extends: recipes extend each other in a circle: {circle}"
        raise refusal(what, "a recipe that does not extend this one")
    return base


def merge_fields(base: Any, own: Any) -> Any:
    """Own values win over those of the base."""
    if not _merge(base, own):
        return own
    both = {name: merge_fields(base[name], value) for name, value in own.items() if name in base}
    return {**base, **own, **both}


def _merge(base: Any, own: Any) -> bool:
    both = isinstance(base, dict) and isinstance(own, dict)
    return both and ("type" not in own or own["type"] == base.get("type"))


def merged_places(base: Source, own_data: dict[str, Any], own: Source) -> dict[Location, FieldPlace]:
    kept = {at: place for at, place in base.places.items() if not _is_replaced(base.data, own_data, at)}
    of_own = {location: place for location, place in own.places.items() if location[:1] != (EXTENDS,)}
    return {**kept, **of_own}


def _is_replaced(base: Any, own: Any, location: Location) -> bool:
    """Whether the recipe replaces this field of the base, or a section around it."""
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


def read_suite(path: Path, *, advice: str) -> Source:
    """A suite as a source with the section ``evaluation``; its relative paths and modules start at its own folder."""
    source = read_source(path, advice=advice)
    import_from(path.parent, source.data)
    data = resolve_paths({SECTION: {SUITE: path.stem, **source.data}}, absolute(path.parent))
    places = {(SECTION, *location): FieldPlace(1, place.line, path) for location, place in source.places.items()}
    return Source(path, data, {(SECTION,): FieldPlace(1, 1, path), **places})


def inherit_prompt(section: dict[str, Any], prompt: Any) -> dict[str, Any]:
    """Gives an evaluation section's prompts the recipe's thinking tags, chat template and so on where it has none: a
    suite cannot know what a model needs.
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


def add_suite(source: Source, *, advice: str) -> Source:
    """Gives the evaluation section the unnamed fields of its suite."""
    section = source.data.get(SECTION)
    name = section.get(SUITE) if isinstance(section, dict) else None
    if not isinstance(section, dict) or not isinstance(name, str):
        return source
    suite = read_suite(find(SUITES, name), advice=advice)
    own: dict[str, Any] = {SECTION: {field: value for field, value in section.items() if field != SUITE}}
    whole = merge_fields(suite.data, own)[SECTION]
    both = {**source.data, SECTION: inherit_prompt(whole, source.data.get(PROMPT))}
    return replace(source, data=both, places={**merged_places(suite, own, source), **source.places})


# -- models without tags -----------------------------------------------------------------------------------------------


OPEN_FORCED_TEXT = (
    "\nTime is up. I should stop here and give my best answer now.\n\n**Final Answer**\n\nThe final answer is"
)
"""The forced text for a model without thinking tags. It begins with one newline: the thought ends inside the sentence
that opens the box, which must not run into the prover's.
"""


def add_open_forced_texts(recipe: dict[str, Any]) -> dict[str, Any]:
    """Gives ``OPEN_FORCED_TEXT`` to provers without a text where the prompt's closing tag is empty. The schema refuses
    wrong values later.
    """
    if _part(recipe, "prompt").get("thought_end") != "":
        return recipe
    changed = _add_open_forced_text(recipe)
    if evaluation := _part(recipe, "evaluation"):
        changed["evaluation"] = _add_open_forced_text(evaluation)
    return changed


def _part(recipe: dict[str, Any], name: str) -> dict[str, Any]:
    part = recipe.get(name)
    return part if isinstance(part, dict) else {}


def _add_open_forced_text(section: dict[str, Any]) -> dict[str, Any]:
    prover = _part(section, "prover")
    if not prover or prover.get("type") == "continuation":
        return dict(section)
    return {**section, "prover": {"forced_text": OPEN_FORCED_TEXT, **prover}}


# -- recipes and site profiles -----------------------------------------------------------------------------------------


def load_recipe(path: Path, overrides: tuple[str, ...] = (), data_from: Path | None = None) -> Recipe:
    """Read a recipe with what it extends, override and check it. A hub model becomes its directory in the hub's cache;
    a missing one keeps its name, and `submit` refuses it.

    Args:
        overrides: ``training.learning_rate=2e-6``; the value is YAML.
        data_from: the folder of all files of problems and samples, in place of the named ones.
    """
    source = read_recipe_source(path, advice=Advice("mrt-hpc plan {path}", path=path))
    for override in overrides:
        apply(source, override)
    rooted = replace(source, data=resolve_paths(source.data, absolute(path.parent)))
    whole = add_suite(rooted, advice=Advice("mrt-hpc plan {path}", path=path))
    data = use_cached_models(add_open_forced_texts(move_data(whole.data, data_from)))
    import_from(path.parent, data)
    return validate(replace(whole, data=data), Recipe, data)


class SiteFile(BaseModel):
    """The kind is named by ``type``."""

    model_config = ConfigDict(frozen=True)

    site: Annotated[SiteSettings, SITES]


def load_site(path: Path) -> SiteSettings:
    """The profile's kind may be a class of a module beside it."""
    source = read_source(path, advice=Advice("mrt-hpc plan RECIPE --site {path}", path=path))
    import_from(path.parent, source.data)
    site = validate(source, SiteFile, {"site": source.data}, prefix=("site",)).site
    site.note_file(path, source.file)
    return site
