"""What ``mrt-hpc eval`` is given: model directories, models of the hub, and runs with weights versions, as in
``runs/grpo@0,last``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.errors import UserError, word
from mrt_hpc.launch.ledger import local_process
from mrt_hpc.launch.queued_jobs import job_ids_of, live_jobs
from mrt_hpc.plan.jobs import Role, read_plan
from mrt_hpc.recipe.evaluation_recipe import EvaluatedModel
from mrt_hpc.recipe.find import expanded
from mrt_hpc.recipe.hub_models import HubModel, found_in_cache, hub_model_of, is_hub_name
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.weights import full_versions, published_versions, refuse_delta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mrt_hpc.recipe.schema import Recipe

AT = "@"
"""Stands between a run and its weights versions."""
FIRST, LAST = "first", "last"


@dataclass(frozen=True)
class Asked:
    """One argument of the command: a model directory, or a run with some of its weights versions."""

    path: Path
    versions: tuple[str, ...]
    """As typed; none for a model directory, and for a run whose last version is meant."""

    @staticmethod
    def of(text: str) -> Asked:
        """Read an argument. A directory whose name holds an ``@`` is taken as a directory."""
        whole = expanded(text)
        before, at, after = text.rpartition(AT)
        if whole.is_dir() or not at:
            return Asked(whole.absolute(), ())
        return Asked(expanded(before).absolute(), tuple(part.strip() for part in after.split(",")))

    @property
    def layout(self) -> RunLayout:
        """The run directory, where it is one."""
        return RunLayout(self.path)

    @property
    def is_run(self) -> bool:
        """Whether it is a run directory."""
        return self.layout.recipe_lock.is_file()


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
        asked = Asked.of(text)
        if is_hub_name(text):
            models.append(_model_of_hub(text))
        elif asked.is_run:
            recipes.append(read_recipe_lock(asked.layout.recipe_lock, looking=True))
            found = versions_of_run(asked)
            models += [_model_of_run(asked, version) for version in found]
            awaited += chain.from_iterable(publishing_jobs(asked.layout, found).values())
        else:
            models.append(_model(asked))
    return ModelsAsked(with_unique_names(_each_once(models)), tuple(recipes), tuple(dict.fromkeys(awaited)))


def _each_once(models: Sequence[EvaluatedModel]) -> list[EvaluatedModel]:
    """The models without those whose directory is that of an earlier one, perhaps through a link."""
    unique: dict[Path, EvaluatedModel] = {}
    for model in models:
        unique.setdefault(Path(model.path).resolve(), model)
    return list(unique.values())


def _model_of_hub(text: str) -> EvaluatedModel:
    """A model of the hub; one that the cache does not hold keeps its name: a plan says how to fetch it.

    Raises:
        UserError: it is no name of a model.
    """
    return EvaluatedModel(name=HubModel.of(text).name, path=found_in_cache(text))


def _model(asked: Asked) -> EvaluatedModel:
    """A model directory.

    Raises:
        UserError: it is neither that nor a run directory.
    """
    refuse_delta(asked.path)
    if not (asked.path / "config.json").is_file() or asked.versions:
        raise UserError(
            "this is neither a model directory nor a run directory",
            value=AT.join((str(asked.path), ",".join(asked.versions))) if asked.versions else str(asked.path),
            expected="a folder with config.json, or a run directory, alone or with versions as in runs/grpo@0,last",
            advice=f"ls {word(asked.path.parent)}",
        )
    return EvaluatedModel(name=asked.path.name, path=str(asked.path))


def _model_of_run(asked: Asked, version: int) -> EvaluatedModel:
    """A weights version of a run. One that is not there yet will be a whole model, as it is pinned.

    Raises:
        UserError: it is there, and is no whole model.
    """
    path = asked.layout.weights_version(version)
    refuse_delta(path)
    return EvaluatedModel(name=f"{asked.path.name}{AT}{version}", path=str(path), run=str(asked.path), version=version)


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
    hub, whose folder in the cache tells nothing.
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


def versions_of_run(asked: Asked) -> list[int]:
    """The numbers of the weights versions that are asked for, ascending.

    Raises:
        UserError: a word is no version.
    """
    return sorted({_version(asked, word) for word in asked.versions or (LAST,)})


def _version(asked: Asked, text: str) -> int:
    """The number of a weights version. The first is 0, unless that has been pruned."""
    last = read_plan(asked.layout.plan).iterations
    if text == LAST:
        return last
    if text == FIRST:
        return min(published_versions(asked.layout), default=0)
    if not text.isdecimal() or int(text) > last:
        raise UserError(
            "the run has no such weights version",
            value=text,
            where=asked.path,
            expected=f"a number from 0 to {last}, {FIRST} or {LAST}",
            advice=f"ls {word(asked.layout.weights)}",
        )
    return int(text)


def publishing_jobs(layout: RunLayout, versions: Sequence[int]) -> dict[int, list[str]]:
    """The ids of the queued jobs that will publish each of these versions that is not there; none for a version that no
    job will publish, or that training has passed and removed.
    """
    published = published_versions(layout)
    missing = [version for version in versions if version not in published]
    live = live_jobs(layout) if missing else {}
    trainers = [job for job in read_plan(layout.plan).jobs if job.does(Role.TRAINER) or job.does(Role.PREPARE)]
    found: dict[int, list[str]] = {}
    for version in missing:
        makers = [job.name for job in trainers if version in _published_by(job.role, job.iterations)]
        ahead = version > max(published, default=-1)
        found[version] = job_ids_of([live[name] for name in makers if name in live]) if ahead else []
    return found


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
