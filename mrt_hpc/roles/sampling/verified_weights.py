"""Weights versions that are read with their checksums; a damaged one is set aside, and its maker makes it again."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from mrt_hpc.errors import ExitCode, UserError, word
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.evaluation_recipe import EvaluationRecipe
from mrt_hpc.run.manifest import DamagedError, verify
from mrt_hpc.run.weights import Weights, published_versions, refuse_delta
from mrt_hpc.run.weights_delta import BrokenChainError

if TYPE_CHECKING:
    from mrt_hpc.plan.jobs import Plan
    from mrt_hpc.roles.sampling.local_weights import LocalWeights
    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.layout import RunLayout


def verified_weights(task: Task, version: int, local: LocalWeights | None = None) -> Weights:
    """A weights version whose checksums are right.

    A damaged one is set aside: the trainer publishes it again, or the first job of an evaluation on its own.

    Args:
        task: who asks.
        version: its number.
        local: puts versions together that were published as deltas; without it only whole models are taken.

    Raises:
        DamagedError: it was damaged.
        UserError: the first job published it, and only this job can make it again; or it is no whole model.
    """
    layout = task.layout
    directory, before = layout.weights_version(version), _identities(layout)
    try:
        return task.retrying(lambda: _found(layout, version, local), f"reading {directory}")
    except DamagedError as damage:
        if version == 0:
            raise UserError(
                f"weights version 0 is damaged: {damage.what}",
                where=damage.where,
                advice=f"rm -r {word(directory)} {word(layout.root / 'tasks/prepare')}, and the same command again",
            ) from damage
        _set_aside_damaged(task, version, damage, before)
        raise


def _set_aside_damaged(task: Task, version: int, damage: DamagedError, before: dict[int, int]) -> None:
    """Set aside a damaged version, and what it cannot be put together of; but none that was published again.

    Args:
        task: who asked.
        version: what it asked for.
        damage: what it found.
        before: the inodes of all versions when it asked.
    """
    layout, now = task.layout, _identities(task.layout)
    damaged = damage.versions if isinstance(damage, BrokenChainError) else (version,)
    same = [v for v in damaged if v in before and now.get(v) == before[v]]
    if version in same:
        if version == task.plan.iterations:  # no trainer continues from there
            task.reopen(trainer_to(task.plan, version), f"weights version {version}, its last, was damaged")
        if isinstance(task.experiment, EvaluationRecipe):
            publish_again(task, f"model {version} was damaged")
    paths = [layout.weights_version(v) for v in same]
    task.set_aside(paths, f"weights version {version} is damaged: {damage.what} ({damage.where})")


def _found(layout: RunLayout, version: int, local: LocalWeights | None) -> Weights:
    if local is not None:
        return local.of(version)
    directory = layout.weights_version(version)
    digest = verify(directory).digest
    refuse_delta(directory)
    return Weights(version, digest, directory)


def publish_again(task: Task, why: str) -> None:
    """Have the next submission of an evaluation on its own run the first job again, which publishes all models."""
    first = [job.name for job in task.plan.jobs if job.role is Role.PREPARE]
    task.reopen([(name, 0) for name in first], why)


def _identities(layout: RunLayout) -> dict[int, int]:
    """The inodes of the published versions: that of a directory that has taken another's place differs."""
    found: dict[int, int] = {}
    for version in published_versions(layout):
        with suppress(FileNotFoundError):
            found[version] = layout.weights_version(version).stat().st_ino
    return found


def collecting_weights(task: Task, version: int) -> Weights:
    """The weights version that a collection is sampled with, verified.

    The trainer that published it has ended, and no other trains before the collection is whole: where the version is
    damaged, that one has to publish it again.

    Raises:
        UserError: it was damaged.
    """
    try:
        return verified_weights(task, version)
    except DamagedError as damage:
        if max(published_versions(task.layout), default=0) > version:
            raise UserError(
                f"weights version {version} is damaged, which a damaged collection has to be sampled with again, and "
                f"training has gone on from there: {damage.what}",
                where=damage.where,
                advice="the same submit command with another --run directory, which makes a run of its own",
            ) from damage
        task.reopen(trainer_to(task.plan, version), f"weights version {version}, which a collection needs, was damaged")
        raise UserError(
            f"weights version {version}, which a collection is sampled with, was damaged: {damage.what}",
            where=damage.where,
            advice="the same submit command again: the trainer publishes it again",
            exit_code=ExitCode.RETRYABLE,
        ) from damage


def trainer_to(plan: Plan, version: int) -> list[tuple[str, int]]:
    """The task that publishes a weights version at its end."""
    trainers = [job for job in plan.jobs if job.does(Role.TRAINER)]
    return [(job.name, 0) for job in trainers if job.end_iteration == version]
