"""The models that ``mrt-hpc eval`` is given: model directories, models of the hub, and runs with weights versions, as
in ``runs/grpo@0,last``; and the pins that keep these versions until the evaluation has taken them over.
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
from mrt_hpc.errors import UserError, word
from mrt_hpc.plan.jobs import Role, read_plan
from mrt_hpc.recipe.find import expanded
from mrt_hpc.recipe.hub_models import HubModel, found_in_cache, hub_model_of, is_hub_name
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.recipe.schema import EvaluatedModel, EvaluationRecipe, Recipe
from mrt_hpc.run.layout import AT, FIRST, LAST, RunLayout, split_at, version_named
from mrt_hpc.run.weights import full_versions, of_runs, pin, published_versions, refuse_delta, release, stays


@dataclass(frozen=True)
class ModelsAsked:
    """The models that a command asks for."""

    models: tuple[EvaluatedModel, ...]
    recipes: tuple[Recipe, ...]
    """The recipes of their runs; none for model directories."""
    awaited: tuple[str, ...]
    """The ids of queued jobs that will publish those that are not there yet."""


def models_asked(texts: Sequence[str]) -> ModelsAsked:
    """Find the models that the arguments of a command name.

    A weights version may be gone that an evaluation has taken over: ``refuse_lost_models`` knows that.

    Raises:
        UserError: there is no such model or run, or a run never has such a weights version.
    """
    models: list[EvaluatedModel] = []
    recipes: list[Recipe] = []
    awaited: list[str] = []
    for text in texts:
        if is_hub_name(text):
            # one that the cache does not hold keeps its name: a plan says how to fetch it
            models.append(EvaluatedModel(name=HubModel.of(text).name, path=found_in_cache(text)))
            continue
        directory, versions = split_at(text)
        run = RunLayout(expanded(directory).absolute())
        if not run.recipe_lock.is_file():
            models.append(_model(run.root, versions))
            continue
        recipes.append(read_recipe_lock(run.recipe_lock, looking=True))
        numbers = sorted({_number(run, version) for version in (LAST if versions is None else versions).split(",")})
        models += [_model_of_run(run, version) for version in numbers]
        awaited += chain.from_iterable(publishing_jobs(run, numbers).values())
    return ModelsAsked(with_unique_names(_each_once(models)), tuple(recipes), tuple(dict.fromkeys(awaited)))


def _each_once(models: Sequence[EvaluatedModel]) -> list[EvaluatedModel]:
    """The models without those whose directory is that of an earlier one, perhaps through a link."""
    unique: dict[Path, EvaluatedModel] = {}
    for model in models:
        unique.setdefault(Path(model.path).resolve(), model)
    return list(unique.values())


def _model(path: Path, versions: str | None) -> EvaluatedModel:
    """A model directory.

    Raises:
        UserError: it is neither that nor a run directory.
    """
    refuse_delta(path)
    if not (path / "config.json").is_file() or versions is not None:
        raise UserError(
            "this is neither a model directory nor a run directory",
            value=str(path) if versions is None else f"{path}{AT}{versions}",
            expected="a folder with config.json, or a run directory, alone or with versions as in runs/grpo@0,last",
            advice=f"ls {word(path.parent)}",
        )
    return EvaluatedModel(name=path.name, path=str(path))


def _model_of_run(run: RunLayout, version: int) -> EvaluatedModel:
    """A weights version of a run. One that is not there yet will be a whole model, as it is pinned.

    Raises:
        UserError: it is there, and is no whole model.
    """
    path = run.weights_version(version)
    refuse_delta(path)
    return EvaluatedModel(name=f"{run.root.name}{AT}{version}", path=str(path), run=str(run.root), version=version)


def _number(run: RunLayout, text: str) -> int:
    """The number of a weights version. The first is 0, unless that has been pruned.

    Raises:
        UserError: it is none.
    """
    last = read_plan(run.plan).iterations
    version = version_named(text, last, run.root)
    if version == FIRST:
        return min(published_versions(run), default=0)
    return version if isinstance(version, int) else last


def with_unique_names(models: Sequence[EvaluatedModel]) -> tuple[EvaluatedModel, ...]:
    """The models with names that differ: where some have one name, the folders above are put before it, as many as it
    takes.
    """
    models, shown = tuple(models), [0] * len(models)
    while True:
        names = [_name_below(model, count) for model, count in zip(models, shown, strict=True)]
        alike = [i for i, name in enumerate(names) if names.count(name) > 1 and shown[i] < len(_folders(models[i]))]
        if not alike:
            return tuple(model.model_copy(update={"name": name}) for model, name in zip(models, names, strict=True))
        for number in alike:
            shown[number] += 1


def _folders(model: EvaluatedModel) -> tuple[str, ...]:
    """The names of the folders that the model's directory, or that of its run, stands in; one name for a model of the
    hub, whose folder in the cache says nothing.
    """
    return ("hub",) if hub_model_of(model.path) is not None else Path(model.run or model.path).parent.parts


def _name_below(model: EvaluatedModel, count: int) -> str:
    """The name of a model behind those of ``count`` folders above it; of a model of the hub, if any are wanted,
    OWNER/NAME and the beginning of the commit.
    """
    if count and (of_hub := hub_model_of(model.path)) is not None:
        return f"{of_hub.repository}{AT}{of_hub.revision[:8]}"
    folders = _folders(model)
    return str(Path(*folders[len(folders) - count :], model.name))


def publishing_jobs(layout: RunLayout, versions: Sequence[int]) -> dict[int, list[str]]:
    """The ids of the queued jobs that will publish each of these versions that is not there; none for a version that no
    job will publish, or that training has passed and removed.
    """
    published = published_versions(layout)
    missing = [version for version in versions if version not in published]
    live = live_jobs(layout) if missing else {}
    trainers = [job for job in read_plan(layout.plan).jobs if job.does(Role.TRAINER) or job.does(Role.PREPARE)]
    publishers: dict[int, list[str]] = {}
    for version in missing:
        makers = [job.name for job in trainers if version in _published_by(job.role, job.iterations)]
        ahead = version > max(published, default=-1)
        publishers[version] = job_ids_of([live[name] for name in makers if name in live]) if ahead else []
    return publishers


def _published_by(role: Role, iterations: range) -> range:
    """The weights versions that a job publishes."""
    return range(1) if role is Role.PREPARE else range(iterations.start + 1, iterations.stop + 1)


def not_published(layout: RunLayout, version: int) -> UserError:
    """The refusal of a weights version that is not there."""
    here, published, models = local_process(layout), published_versions(layout), full_versions(layout)
    gone = version < max(published, default=0)
    why = "it was pruned" if gone else "no queued job of the run will publish it"
    wait = f"wait until process {here.pid}, which trains the run on this machine, has ended" if here else None
    return UserError(
        f"weights version {version} is not there: {why}",
        where=layout.weights,
        expected=f"one of {', '.join(map(str, models))}" if models else "a run that has published weights",
        advice=wait or f"mrt-hpc status {layout.word}",
    )


# -- pinned models: the training of a run removes most versions, perhaps days before the evaluation starts


CLOSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""The errors of a directory that this user may not write to."""


def refuse_lost_models(recipe: EvaluationRecipe, root: Path) -> None:
    """Refuse an evaluation whose models are not there when it starts, before anything is made. What its directory holds
    already it needs no more.

    Args:
        recipe: of the evaluation.
        root: its directory, which may exist already.

    Raises:
        UserError: a weights version is not there and no queued job publishes it; or one is still to be published, will
            be removed, and this user cannot keep its run from that.
    """
    wanted: dict[str, list[int]] = defaultdict(list)
    for run, version in _wanted(recipe, RunLayout(root)):
        wanted[str(run.root)].append(version)
    for path, versions in wanted.items():
        run = RunLayout(Path(path))
        for version, jobs in publishing_jobs(run, versions).items():
            if not jobs:
                raise not_published(run, version)
            if not os.access(run.root, os.W_OK) and _is_at_risk(run, version):
                raise _cannot_be_kept(run, version)


def awaited_jobs(recipe: EvaluationRecipe, layout: RunLayout) -> list[str]:
    """The ids of the queued jobs that will publish the weights versions that an evaluation has not taken over yet."""
    found = (publishing_jobs(run, [version]).values() for run, version in _wanted(recipe, layout))
    return list(dict.fromkeys(chain.from_iterable(chain.from_iterable(found))))


def pin_models(recipe: EvaluationRecipe, layout: RunLayout, warn: Callable[[str], None]) -> None:
    """Pin the weights versions that an evaluation has not taken over yet.

    Args:
        recipe: of the evaluation.
        layout: its directory.
        warn: receives a sentence about each version that cannot be kept and is there now.

    Raises:
        UserError: a version has just been removed, or is still to be published and cannot be kept.
    """
    for run, version in _wanted(recipe, layout):
        is_pinned = _pinned(run, version, layout)
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


def _wanted(recipe: EvaluationRecipe, layout: RunLayout) -> list[tuple[RunLayout, int]]:
    """The weights versions of runs that the directory of an evaluation does not hold yet."""
    there = published_versions(layout)
    return [(run, version) for number, run, version in of_runs(recipe) if number not in there]


def _pinned(run: RunLayout, version: int, evaluation: RunLayout) -> bool:
    """Whether a version is pinned now; False where this user may not write to the run."""
    try:
        pin(run, version, evaluation)
    except OSError as error:
        if error.errno not in CLOSED:
            raise
        return False
    return True


def _is_at_risk(run: RunLayout, version: int) -> bool:
    """Whether the training may remove a version that is not pinned."""
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
