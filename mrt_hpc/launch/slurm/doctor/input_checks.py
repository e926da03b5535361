"""Checks of the model and the data that a recipe names."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.errors import UserError
from mrt_hpc.launch.create import check_model, given_samples, problems_of, refuse_repeated_problems
from mrt_hpc.launch.filesystems import filesystem
from mrt_hpc.launch.slurm.containers import folders_read
from mrt_hpc.launch.slurm.doctor.findings import doubtful, fails, ok
from mrt_hpc.recipe.sections.data import JsonlProblems, SmallWorldProblems
from mrt_hpc.recipe.sections.model import HuggingFaceModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mrt_hpc.launch.slurm.doctor.findings import Result
    from mrt_hpc.launch.slurm.doctor.situation import Situation
    from mrt_hpc.recipe.schema import Recipe


MAKE_IT = (
    "make it on a node with network access (`mrt-hpc data prepare SOURCE FILE`), or correct the path in the recipe "
    "(`mrt-hpc fields data`)"
)


def model(situation: Situation) -> Iterator[Result]:
    """The model's directory is there and complete, and its files show no fault."""
    if (recipe := situation.recipe) is None:
        return
    check_model(recipe)
    if isinstance(recipe.model, HuggingFaceModel):
        yield ok(f"config.json, tokenizer and weights are complete in {recipe.model.path}")
    else:
        yield ok("the first job makes the model")


def data(situation: Situation) -> Iterator[Result]:
    """The training data and every benchmark are there and can be read."""
    if (recipe := situation.recipe) is None:
        return
    yield _read("for training", recipe.data, lambda: _training(recipe))
    for benchmark in recipe.evaluation.benchmarks:
        source = benchmark.problems
        yield _read(f"of benchmark {benchmark.name}", source, partial(_problems, source))


def _read(about: str, source: object, read: Callable[[], str]) -> Result:
    """The result of reading one source, which says what is in it."""
    path = getattr(source, "path", None)
    if path is not None and not Path(path).is_file():
        return fails(f"there is no file {Path(path).resolve()}", MAKE_IT, about=about)
    try:
        return ok(read(), about=about)
    except UserError as error:
        return fails(error.evidence, error.advice or "correct the file", about=about)


def _problems(source: JsonlProblems | SmallWorldProblems) -> str:
    return _told(source, len(problems_of(source)))


def _training(recipe: Recipe) -> str:
    """What there is to train on, in words.

    Raises:
        UserError: a file is missing or wrong.
    """
    if (samples := given_samples(recipe)) is not None:
        return f"{len(samples):,} samples{_from(recipe.data)}"
    assert isinstance(recipe.data, JsonlProblems | SmallWorldProblems)  # the only other kinds
    problems = problems_of(recipe.data)
    refuse_repeated_problems(recipe, problems)
    return _told(recipe.data, len(problems))


def _told(source: object, count: int) -> str:
    return f"{count:,} problems{_from(source)}"


def _from(source: object) -> str:
    path = getattr(source, "path", None)
    return " of the small world" if path is None else f" in {path}"


def inputs_are_shared(situation: Situation) -> Iterator[Result]:
    """Compute nodes see the folders of models and prompts."""
    if situation.recipe is None or situation.slurm is None or any(answer.facts for answer in situation.answers):
        return  # a node that has answered has looked itself
    folders = [Path(folder) for folder in folders_read(situation.recipe) if Path(folder).exists()]
    for folder in folders:
        if any(folder.is_relative_to(other) for other in folders if other != folder):
            continue  # said of the folder that it is in
        found = filesystem(folder)
        said = f"{folder} is on {found.type} at {found.mount_point}"
        if found.is_shared:
            yield ok(said)
        else:
            yield doubtful(
                f"{said}, which is not known to be shared with compute nodes",
                "--on-node shows whether they can read it; else move it to a shared filesystem",
            )
