"""Checks of the model and the data that a recipe names."""

from collections.abc import Iterator
from pathlib import Path

from mrt_hpc.backends.slurm.plain_paths import folders_read
from mrt_hpc.cluster.doctor.checks import CheckResult, fails, ok
from mrt_hpc.cluster.doctor.place_checks import shared_or_doubtful
from mrt_hpc.cluster.doctor.situation import Situation
from mrt_hpc.cluster.filesystems import filesystem
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.sections import HuggingFaceModel, ProblemSource
from mrt_hpc.submit.create import check_model, given_samples, problems_of, refuse_repeated_problems

MAKE_IT = (
    "make it on a node with network access (`mrt-hpc data prepare SOURCE FILE`), or correct the path in the recipe "
    "(`mrt-hpc fields data`)"
)


def model(situation: Situation) -> Iterator[CheckResult]:
    """The model's directory is complete, and its files show no fault."""
    if (recipe := situation.recipe) is None:
        return
    check_model(recipe)
    if isinstance(recipe.model, HuggingFaceModel):
        yield ok(f"config.json, tokenizer and weights are complete in {recipe.model.path}")
    else:
        yield ok("the first job makes the model")


def data(situation: Situation) -> Iterator[CheckResult]:
    """The training data and every benchmark can be read."""
    if (recipe := situation.recipe) is None:
        return
    yield _read("for training", recipe.data, recipe)
    for benchmark in recipe.evaluation.benchmarks:
        yield _read(f"of benchmark {benchmark.name}", benchmark.problems)


def _read(about: str, source: object, trained: Recipe | None = None) -> CheckResult:
    """Read one source; of a recipe's data, also whether problems repeat."""
    path = getattr(source, "path", None)
    if path is not None and not Path(path).is_file():
        return fails(f"there is no file {Path(path).resolve()}", MAKE_IT, about=about)
    try:
        if isinstance(source, ProblemSource):
            problems = problems_of(source)
            if trained is not None:
                refuse_repeated_problems(trained, problems)
            said = f"{len(problems):,} problems"
        else:
            assert trained is not None, "only a recipe trains on given samples"
            said = f"{len(given_samples(trained)):,} samples"
    except UserError as error:
        return fails(error.evidence, error.advice or "correct the file", about=about)
    return ok(f"{said} {'of the small world' if path is None else f'in {path}'}", about=about)


def inputs_are_shared(situation: Situation) -> Iterator[CheckResult]:
    """Compute nodes see the folders of models and prompts."""
    if situation.recipe is None or situation.slurm is None or any(answer.facts for answer in situation.answers):
        return  # a node that has answered has looked itself
    folders = [Path(folder) for folder in folders_read(situation.recipe) if Path(folder).exists()]
    for folder in folders:
        if any(folder.is_relative_to(other) for other in folders if other != folder):
            continue  # said of the folder that it is in
        disk = filesystem(folder)
        remedy = "--on-node shows whether they can read it; else move it to a shared filesystem"
        yield shared_or_doubtful(disk, f"{folder} is on {disk.type} at {disk.mount_point}", remedy)
