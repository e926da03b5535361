"""The models of ``mrt-hpc eval``: directories, hub models and runs' weights as ``runs/grpo@0,last``; and pins that keep
those until the evaluation has them.
"""

import errno
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from mrt_hpc.attempt.ledger import local_process
from mrt_hpc.backends.queued_jobs import job_ids_of, live_jobs
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.plan.jobs import Job, Role, read_plan
from mrt_hpc.recipe.find import absolute, expand_home
from mrt_hpc.recipe.hub_models import HubModel, cached_directory, hub_model_of, is_hub_name
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.recipe.schema import EvaluatedModel, EvaluationRecipe, Recipe
from mrt_hpc.run.layout import AT, FIRST, LAST, RunLayout, split_at, version_named
from mrt_hpc.run.pins import pin, release, run_models
from mrt_hpc.run.weights import published_versions, stays


@dataclass(frozen=True)
class ModelsAsked:
    models: tuple[EvaluatedModel, ...]
    recipes: tuple[Recipe, ...]
    """Of their runs; none for model directories."""
    awaited: tuple[str, ...]
    """Ids of queued jobs that will publish missing versions."""


def models_asked(texts: Sequence[str]) -> ModelsAsked:
    """Find the models of a command's arguments; refuses unknown ones.

    A version may be gone that an evaluation has taken over: ``refuse_lost_models`` knows that.
    """
    models: list[EvaluatedModel] = []
    recipes: list[Recipe] = []
    awaited: list[str] = []
    for text in texts:
        if is_hub_name(text):
            # one that the cache does not hold keeps its name: a plan says how to fetch it
            models.append(EvaluatedModel(name=HubModel.of(text).name, path=cached_directory(text)))
            continue
        directory, versions = split_at(text)
        run = RunLayout(absolute(expand_home(directory)))
        if not run.recipe_lock.is_file():
            models.append(_model(run.root, versions))
            continue
        recipes.append(read_recipe_lock(run.recipe_lock, looking=True))
        numbers = sorted({_number(run, version) for version in (LAST if versions is None else versions).split(",")})
        models += [_model_of_run(run, version) for version in numbers]
        awaited += chain.from_iterable(publishing_jobs(run, numbers).values())
    return ModelsAsked(make_names_unique(_each_once(models)), tuple(recipes), tuple(dict.fromkeys(awaited)))


def _each_once(models: Sequence[EvaluatedModel]) -> list[EvaluatedModel]:
    """The models without repeated directories, which links may hide."""
    unique: dict[Path, EvaluatedModel] = {}
    for model in models:
        unique.setdefault(Path(model.path).resolve(), model)
    return list(unique.values())


def _model(path: Path, versions: str | None) -> EvaluatedModel:
    if not (path / "config.json").is_file() or versions is not None:
        raise UserError(
            "this is neither a model directory nor a run directory",
            value=str(path) if versions is None else f"{path}{AT}{versions}",
            expected="a folder with config.json, or a run directory, alone or with versions as in runs/grpo@0,last",
            advice=Advice("ls {parent}", parent=path.parent),
        )
    return EvaluatedModel(name=path.name, path=str(path))


def _model_of_run(run: RunLayout, version: int) -> EvaluatedModel:
    """A run's version, which may be published later."""
    path = str(run.weights_version(version))
    return EvaluatedModel(name=f"{run.root.name}{AT}{version}", path=path, run=str(run.root), version=version)


def _number(run: RunLayout, text: str) -> int:
    """A version's number; ``first`` is 0 unless pruned."""
    last = read_plan(run.plan).iterations
    version = version_named(text, last, run.root)
    if version == FIRST:
        return min(published_versions(run), default=0)
    return version if isinstance(version, int) else last


def make_names_unique(models: Sequence[EvaluatedModel]) -> tuple[EvaluatedModel, ...]:
    """Models with unique names: equal ones get as many folders above as needed."""
    models, shown = tuple(models), [0] * len(models)
    while True:
        names = [_name_below(model, count) for model, count in zip(models, shown, strict=True)]
        alike = [i for i, name in enumerate(names) if names.count(name) > 1 and shown[i] < len(_folders(models[i]))]
        if not alike:
            return tuple(model.model_copy(update={"name": name}) for model, name in zip(models, names, strict=True))
        for number in alike:
            shown[number] += 1


def _folders(model: EvaluatedModel) -> tuple[str, ...]:
    """Folders above the model's or its run's directory; just a name for a hub model, whose cache folder says
    nothing.
    """
    return ("hub",) if hub_model_of(model.path) is not None else Path(model.run or model.path).parent.parts


def _name_below(model: EvaluatedModel, count: int) -> str:
    """The name with ``count`` folders above; for a hub model OWNER/NAME and a short commit."""
    if count and (of_hub := hub_model_of(model.path)) is not None:
        return f"{of_hub.repository}{AT}{of_hub.revision[:8]}"
    folders = _folders(model)
    return str(Path(*folders[len(folders) - count :], model.name))


def publishing_jobs(layout: RunLayout, versions: Sequence[int]) -> dict[int, list[str]]:
    """Ids of queued jobs that will publish missing versions; none where no job will, or training has passed and removed
    it.
    """
    published = published_versions(layout)
    missing = [version for version in versions if version not in published]
    live = live_jobs(layout) if missing else {}
    trainers = [job for job in read_plan(layout.plan).jobs if job.does(Role.TRAINER) or job.does(Role.PREPARE)]
    publishers: dict[int, list[str]] = {}
    for version in missing:
        makers = [job.name for job in trainers if version in _job_versions(job)]
        ahead = version > max(published, default=-1)
        publishers[version] = job_ids_of([live[name] for name in makers if name in live]) if ahead else []
    return publishers


def _job_versions(job: Job) -> range:
    """Versions that a job publishes."""
    return range(1) if job.role is Role.PREPARE else range(job.iterations.start + 1, job.iterations.stop + 1)


def not_published(layout: RunLayout, version: int) -> UserError:
    """The refusal of a missing version."""
    published, advice = published_versions(layout), Advice("mrt-hpc status {run}", run=layout.root)
    gone = version < max(published, default=0)
    why = "it was pruned" if gone else "no queued job of the run will publish it"
    if here := local_process(layout):
        advice = Advice("wait until process {pid}, which trains the run on this machine, has ended", pid=here.pid)
    expected = f"one of {', '.join(map(str, published))}" if published else "a run that has published weights"
    what = f"weights version {version} is not there: {why}"
    return UserError(what, where=layout.weights, expected=expected, advice=advice)


# -- pinned models: the training of a run removes most versions, perhaps days before the evaluation starts


CLOSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""Errors of a directory that this user may not write to."""


def refuse_lost_models(recipe: EvaluationRecipe, root: Path) -> None:
    """Refuse missing models at the start, before anything is made, except those that the evaluation's directory holds;
    also unpublished ones that will be removed and cannot be pinned.
    """
    wanted: dict[RunLayout, list[int]] = defaultdict(list)
    for run, version in _versions_to_copy(recipe, RunLayout(root)):
        wanted[run].append(version)
    for run, versions in wanted.items():
        for version, jobs in publishing_jobs(run, versions).items():
            if not jobs:
                raise not_published(run, version)
            if not os.access(run.root, os.W_OK) and _is_at_risk(run, version):
                raise _cannot_be_kept(run, version)


def awaited_jobs(recipe: EvaluationRecipe, layout: RunLayout) -> list[str]:
    """Ids of queued jobs that will publish versions not taken over yet."""
    found = (publishing_jobs(run, [version]).values() for run, version in _versions_to_copy(recipe, layout))
    return list(dict.fromkeys(chain.from_iterable(chain.from_iterable(found))))


def pin_models(recipe: EvaluationRecipe, layout: RunLayout, warn: Callable[[str], None]) -> None:
    """Pin versions not taken over yet; refuses those just removed, and unpublished ones that cannot be pinned.

    Args:
        warn: receives a sentence on each existing version that cannot be kept.
    """
    for run, version in _versions_to_copy(recipe, layout):
        is_pinned = _try_pin(run, version, layout)
        published = published_versions(run)
        if version not in published and version < max(published, default=0):
            release(recipe, layout)
            raise not_published(run, version)
        if is_pinned or not _is_at_risk(run, version):
            continue
        if version not in published:
            raise _cannot_be_kept(run, version)
        warn(
            f"you cannot write to {run.root}, so its training may remove weights version {version} before this "
            "evaluation has taken it over"
        )


def _versions_to_copy(recipe: EvaluationRecipe, layout: RunLayout) -> list[tuple[RunLayout, int]]:
    """Versions that the evaluation's directory does not hold yet."""
    there = published_versions(layout)
    return [(run, version) for number, run, version in run_models(recipe) if number not in there]


def _try_pin(run: RunLayout, version: int, evaluation: RunLayout) -> bool:
    """False where this user may not write to the run."""
    try:
        pin(run, version, evaluation)
    except OSError as error:
        if error.errno not in CLOSED:
            raise
        return False
    return True


def _is_at_risk(run: RunLayout, version: int) -> bool:
    """Whether training may remove an unpinned version."""
    return not stays(run, read_recipe_lock(run.recipe_lock, looking=True), version)


def _cannot_be_kept(run: RunLayout, version: int) -> UserError:
    recipe = read_recipe_lock(run.recipe_lock, looking=True)
    kept = sorted(v for v in range(recipe.schedule.iterations + 1) if stays(run, recipe, v))
    return UserError(
        f"weights version {version} would be removed before the evaluation starts: you cannot write to its run, and so "
        "cannot make the training keep it",
        value=version,
        where=run.root,
        expected=f"a version that the training keeps anyway: {', '.join(map(str, kept))}",
        advice="ask the owner of the run to type this command, or evaluate one of these versions",
    )
