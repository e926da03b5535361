"""Weights versions: directories that are complete or absent. A version is its number and its digest.

Most are Hugging Face directories. Where the recipe asks for deltas, a version between two full ones holds only what has
changed since the version before, its base (:mod:`mrt_hpc.run.weights_delta`).
"""

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.kinds import AlgorithmSettings
from mrt_hpc.recipe.schema import Experiment, Recipe
from mrt_hpc.run.atomic import remove_whole, write_json
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import DamagedError, commit_whole, read_manifest
from mrt_hpc.run.retries import list_directory, retrying
from mrt_hpc.run.typed_file import UnreadableError, read_typed

DELTA, CHANGES = "delta.json", "changes.bin"
"""The files of a version that is a delta: its index, and what has changed."""


@dataclass(frozen=True)
class Weights:
    """One complete weights version. The digest distinguishes it from one of the same number that was set aside."""

    version: int
    digest: str
    """The digest of the version as it is published."""
    directory: Path
    """A whole model: the published directory; for a delta the place where it was put together."""


def publish(layout: RunLayout, version: int, write: Callable[[Path], None], **about: Any) -> bool:
    """Write a weights version with ``write(directory)`` and commit it whole.

    Returns:
        False when this version was there already (what was written is dropped).
    """
    return commit_whole(layout.weights_version(version), write, version=version, **about)


def published_versions(layout: RunLayout) -> list[int]:
    """All complete weights versions, ascending."""
    versions = map(layout.version_of, list_directory(layout.weights))
    return sorted(v for v in versions if v is not None)


def published_digest(layout: RunLayout, version: int) -> str | None:
    """The digest of a weights version as it is published; None where it is missing or damaged."""
    try:
        return read_manifest(layout.weights_version(version)).digest
    except DamagedError:
        return None


def is_delta(directory: Path) -> bool:
    """Whether a weights version was published as a delta, which is no model by itself."""
    return (directory / DELTA).is_file()


def full_versions(layout: RunLayout) -> list[int]:
    """The complete weights versions that are whole models, ascending."""
    return [version for version in published_versions(layout) if not is_delta(layout.weights_version(version))]


def refuse_delta(directory: Path) -> None:
    """Refuse the directory of a weights version that is no whole model.

    Raises:
        UserError: it was published as a delta.
    """
    if is_delta(directory):
        full = [path.name for path in list_directory(directory.parent, "v*") if not is_delta(path)]
        raise UserError(
            "this weights version holds only what has changed since the version before, so it is no whole model",
            where=directory,
            expected=f"one of the full versions: {', '.join(full)}",
            advice="name a full version; training.full_weights_every of a recipe decides which ones are full",
        )


def with_bases(layout: RunLayout, versions: Iterable[int]) -> set[int]:
    """These weights versions, and all that those of them that are deltas were made of."""
    versions_needed: set[int] = set()
    left = set(versions)
    while left:
        version = left.pop()
        versions_needed.add(version)
        left |= _base_of(layout.weights_version(version)) - versions_needed
    return versions_needed


def _base_of(directory: Path) -> set[int]:
    """The number of the version that a delta was made of; none for a full version, and for a damaged one, which cannot
    be put together.
    """
    if not is_delta(directory):
        return set()
    try:
        return {int(read_manifest(directory).about["base"]["version"])}
    except (DamagedError, KeyError):
        return set()


def take_over(source: Path, directory: Path, *, without: Iterable[str] = ()) -> None:
    """Take the files of a model directory over by hard links where the filesystem allows it, by copies elsewhere.

    The links are safe: nothing in a run writes to a weights version, and replacing a file elsewhere leaves the link as
    it was.

    Args:
        source: the model directory.
        directory: where they go, which is there.
        without: names of files that stay behind, as hidden files do.
    """
    for file in sorted(p for p in source.iterdir() if p.is_file() and not p.name.startswith(".")):
        if file.name in without:
            continue
        real = file.resolve()
        try:
            os.link(real, directory / file.name)
        except OSError:  # another filesystem, or one without hard links
            shutil.copy2(real, directory / file.name)


def prune(layout: RunLayout, keep: Iterable[int]) -> list[int]:
    """Remove every version not in ``keep``. Each is renamed first, so that no reader finds a part of a version; and the
    newest goes first, so that none finds a delta without its base.
    """
    kept = set(keep)
    removed = [v for v in published_versions(layout) if v not in kept]
    for version in reversed(removed):
        remove_whole(layout.weights_version(version))
    return removed


# -- pins --------------------------------------------------------------------------------------------------------------
# Pins: an evaluation on its own keeps a weights version of a training run from being removed until its first job has
# taken the weights over.
#
# A pin is a small file in the training run, one for each version and evaluation. The trainer lists them whenever it
# removes old versions. A pin counts until the evaluation removes it, or until its directory is gone.


log = logging.getLogger(__name__)

_PIN = re.compile(r"v(\d{6})\.[0-9a-f]{16}\.json")


@dataclass(frozen=True)
class Pin:
    """What an evaluation keeps a weights version for."""

    evaluation: Path
    """Its directory."""
    folder: int
    """The inode of the folder that holds this directory."""


def pin(run: RunLayout, version: int, evaluation: RunLayout) -> None:
    """Keep a weights version of a run for an evaluation. A pin that is there already is written again.

    Args:
        run: the training run.
        version: of its weights; it may be published later.
        evaluation: the directory of the evaluation, which must exist.

    Raises:
        OSError: this user may not write to the run.
    """
    root = evaluation.root.resolve()
    content = {"evaluation": str(root), "folder": root.parent.stat().st_ino}
    write_json(_file(run, version, evaluation), content)


def release(recipe: Experiment, evaluation: RunLayout) -> list[str]:
    """Remove all pins of an evaluation, and return the names of the models that were pinned. One that cannot be removed
    stays: nothing but room on the disk depends on it.
    """
    return [recipe.models[i].name for i, run, version in of_runs(recipe) if _is_removed(run, version, evaluation)]


def of_runs(recipe: Experiment) -> list[tuple[int, RunLayout, int]]:
    """The models of an evaluation that are weights versions of runs: the number of the model, its run and version."""
    return [
        (number, RunLayout(Path(model.run)), model.version)
        for number, model in enumerate(recipe.models)
        if model.run is not None and model.version is not None
    ]


def _is_removed(run: RunLayout, version: int, evaluation: RunLayout) -> bool:
    try:
        retrying(_file(run, version, evaluation).unlink, "removing a pin")
    except FileNotFoundError:
        return False
    except OSError as error:
        log.warning("weights version %d of %s stays, though it is not needed any more: %s", version, run.root, error)
        return False
    return True


def pinned_versions(run: RunLayout) -> set[int]:
    """The weights versions of a run that evaluations still want, also those that are not published yet."""
    pins = [(path, _PIN.fullmatch(path.name)) for path in list_directory(run.pins)]
    return {int(match[1]) for path, match in pins if match and not _is_abandoned(path)}


def _file(run: RunLayout, version: int, evaluation: RunLayout) -> Path:
    """The file of a pin. Its name follows from the evaluation's own key: a path has several spellings, and another one
    in a container, and the digest reveals nothing of the key.
    """
    key = (evaluation.secrets / "server_key").read_bytes()
    return run.pins / f"v{version:06d}.{hashlib.sha256(key).hexdigest()[:16]}.json"


def _is_abandoned(path: Path) -> bool:
    """Whether the directory of the evaluation was removed. That is certain only where the folder that held it is seen:
    in a container of the trainer another folder may stand at its place. In doubt the pin counts.
    """
    try:
        pin = read_typed(path, Pin, "a pin", advice="nothing: it counts")
        parent = pin.evaluation.parent
        return parent.stat().st_ino == pin.folder and pin.evaluation not in list_directory(parent)
    except (OSError, ValueError, UnreadableError):
        return False


# Which weights versions of a run must stay, which its trainer may remove, and which are published in full.


def needed_versions(layout: RunLayout, recipe: Recipe, version: int) -> set[int]:
    """The weights versions that must stay once a version is published: those that the recipe needs, those that were
    evaluated, those that evaluations on their own have yet to take over, and those that deltas among them were made of.
    Once the last version is there, no task loads an earlier delta any more, and a delta is no model by itself.
    """
    kept = kept_versions(recipe, version)
    if version == recipe.schedule.iterations:
        kept = {old for old in kept if not is_delta(layout.weights_version(old))}
    return with_bases(layout, kept | evaluated(layout) | pinned_versions(layout))


def kept_versions(recipe: Recipe, version: int) -> set[int]:
    """The weights versions that the recipe needs: the newest few, the first, all that the schedule evaluates, and all
    that sample traces, as a damaged collection is sampled with them again.
    """
    newest = range(version - recipe.training.keep_weights + 1, version + 1)
    return {*newest, *_lasting(recipe)}


def _lasting(recipe: Recipe) -> set[int]:
    """The weights versions that are models of their own to the run, also when it has ended. Those that sample traces
    are not known where the algorithm was not imported: they count as versions that may go.
    """
    algorithm = recipe.algorithm
    known = isinstance(algorithm, AlgorithmSettings)
    traces = algorithm.traces_versions(recipe.schedule.iterations) if known else ()
    return {0, *recipe.evaluated_versions, *traces}


def stays(layout: RunLayout, recipe: Recipe, version: int) -> bool:
    """Whether a weights version is never removed, also without a pin, and is a whole model."""
    kept = kept_versions(recipe, recipe.schedule.iterations) | evaluated(layout)
    return version in kept and is_in_full(layout, recipe, version)


def is_in_full(layout: RunLayout, recipe: Recipe, version: int) -> bool:
    """Whether a weights version is published as a whole model even without a pin: every so many, those at the end of a
    segment, where other tasks begin, and all that are evaluated or sample traces.
    """
    if version % recipe.training.full_weights_every == 0:
        return True
    ends_segment = version % recipe.schedule.iterations_per_job == 0 or version == recipe.schedule.iterations
    return ends_segment or version in _lasting(recipe) or layout.evaluations(version).exists()


def evaluated(layout: RunLayout) -> set[int]:
    """The weights versions that were evaluated, also those that an earlier recipe of the run has asked for: with other
    settings they may be asked for again.
    """
    return {version for version in published_versions(layout) if layout.evaluations(version).exists()}


def prune_weights(layout: RunLayout, recipe: Recipe, version: int) -> list[int]:
    """Remove the weights versions that are not needed any more once ``version`` is published, and return them. Later
    ones stay: they are the work of an attempt that has taken this one for lost.
    """
    later = {published for published in published_versions(layout) if published > version}
    return prune(layout, needed_versions(layout, recipe, version) | later)
