"""``evaluation.suite``: an evaluation section takes its fields from a file of its own, and may replace some of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mrt_hpc.recipe.extends import merged, merged_places
from mrt_hpc.recipe.find import SUITES, find
from mrt_hpc.recipe.paths import with_absolute_paths
from mrt_hpc.recipe.source import Place, Source, read_source
from mrt_hpc.recipe.user_code import import_from

if TYPE_CHECKING:
    from pathlib import Path

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
    places = {(SECTION, *location): Place(1, place.line, path) for location, place in source.places.items()}
    return Source(path, data, {(SECTION,): Place(1, 1, path), **places})


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
