"""The models that a user names on the command line: run directories, or RUN@VERSION."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.analysis.model_samples import samples_of_run
from mrt_hpc.errors import UserError
from mrt_hpc.run.layout import RunLayout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mrt_hpc.analysis.model_samples import ModelSamples

_WITH_VERSION = re.compile(r"(?P<run>.+)@v?(?P<version>\d+)")


def read_models(named: Sequence[str], benchmark: str | None) -> list[ModelSamples]:
    """The samples of each model that is named, on one benchmark.

    Args:
        named: run directories, or RUN@VERSION.
        benchmark: None takes the only one of the first run, and the same of the others.

    Raises:
        DamagedError: samples are not what was written.
        UserError: there is no such run, it has no such samples, a model is named twice, or the problems of the models
            differ.
    """
    models: list[ModelSamples] = []
    for text in named:
        models.append(_read(text, models[0].benchmark if models else benchmark))
    _require_same_problems(models)
    return _with_different_names(models)


def root_of(named: str) -> Path:
    """The run directory of a model.

    Raises:
        UserError: there is no such run.
    """
    return _split(named)[0]


def _split(named: str) -> tuple[Path, int | None]:
    """A run directory, and the version that is named after it."""
    run, version = Path(named), None
    if not run.exists() and (match := _WITH_VERSION.fullmatch(named)):
        run, version = Path(match["run"]), int(match["version"])
    if not RunLayout(run).plan.is_file():
        raise UserError(
            "not a run directory: it has no plan.json",
            value=named,
            expected="a directory that `mrt-hpc submit` made, or RUN@VERSION",
        )
    return run.absolute(), version


def _read(named: str, benchmark: str | None) -> ModelSamples:
    run, version = _split(named)
    return samples_of_run(RunLayout(run), run.name, named, benchmark, version)


def _require_same_problems(models: Sequence[ModelSamples]) -> None:
    """Refuse models that were evaluated on different problems.

    Raises:
        UserError: the problems of a model differ from those of the first.
    """
    first = models[0]
    for model in models[1:]:
        if different := first.problems.keys() ^ model.problems.keys():
            raise UserError(
                f"{first.name} and {model.name} were evaluated on different problems of {first.benchmark}",
                value=sorted(different)[:5],
                advice=f"mrt-hpc eval {first.source} {model.source} --suite SUITE",
            )


def _with_different_names(models: list[ModelSamples]) -> list[ModelSamples]:
    """The models; those whose names are the same are named as they were typed.

    Raises:
        UserError: the same model is named twice.
    """
    counts = Counter(model.name for model in models)
    named = [replace(model, name=model.source) if counts[model.name] > 1 else model for model in models]
    if len({model.name for model in named}) < len(named):
        raise UserError("a model is named twice", value=[model.source for model in models])
    return named
