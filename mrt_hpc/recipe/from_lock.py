"""The recipe of a run with some fields changed, without the file that it was made from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.errors import UserError, word
from mrt_hpc.recipe.overrides import apply
from mrt_hpc.recipe.paths import with_absolute_paths
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.source import change, read_source
from mrt_hpc.recipe.validate import validate

if TYPE_CHECKING:
    from collections.abc import Sequence

SUITE = "evaluation.suite"
"""The field that cannot be set: the lock has the fields of its suite, and they would hide those of another one."""


def changed_recipe(lock: Path, recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """The recipe of a run with the fields of these options; relative paths in them start at the working directory.

    Args:
        lock: the run's lock, which errors name.
        recipe: as it was read from there.
        overrides: texts of the form ``training.learning_rate=2e-6``; the value is YAML.

    Raises:
        UserError: an option is none, or the changed recipe is wrong.
    """
    read = read_source(lock, advice=f"mrt-hpc status {word(lock.parent)}")
    source = replace(read, data=recipe.model_dump(mode="json"), below=("recipe",))
    for override in overrides:
        if override.partition("=")[0].strip() == SUITE:
            raise UserError(
                "the suite of a run cannot be replaced by an option",
                value=override,
                expected="fields of evaluation, such as evaluation.benchmarks",
                advice="leave the option out; afterwards: mrt-hpc eval RUN --suite SUITE",
            )
        apply(source, override)
    correction = " ".join(change(override) for override in overrides[-1:])
    data = with_absolute_paths(source.data, Path.cwd())
    return validate(replace(source, data=data, correction=correction), Recipe, data)
