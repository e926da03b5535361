"""Pins: an evaluation on its own keeps a weights version of a training run from being removed until its first job has
taken the weights over.

A pin is a small file in the training run, one for each version and evaluation. The trainer lists them whenever it
removes old versions. A pin counts until the evaluation removes it, or until its directory is gone.
"""

from __future__ import annotations

import hashlib
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import list_directory, retrying
from mrt_hpc.run.typed_file import UnreadableError, read_typed

if TYPE_CHECKING:
    from mrt_hpc.recipe.evaluation_recipe import EvaluationRecipe

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


def release(recipe: EvaluationRecipe, evaluation: RunLayout) -> list[str]:
    """Remove all pins of an evaluation, and return the names of the models that were pinned. One that cannot be removed
    stays: nothing but room on the disk depends on it.
    """
    return [recipe.models[i].name for i, run, version in of_runs(recipe) if _is_removed(run, version, evaluation)]


def of_runs(recipe: EvaluationRecipe) -> list[tuple[int, RunLayout, int]]:
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
    found = [(path, _PIN.fullmatch(path.name)) for path in list_directory(run.pins)]
    return {int(match[1]) for path, match in found if match and not _is_abandoned(path)}


def _file(run: RunLayout, version: int, evaluation: RunLayout) -> Path:
    """The file of a pin. Its name follows from the evaluation's own key: a path has several spellings, and another one
    in a container, and the digest tells nothing of the key.
    """
    key = (evaluation.secrets / "server_key").read_bytes()
    return run.pins / f"v{version:06d}.{hashlib.sha256(key).hexdigest()[:16]}.json"


def _is_abandoned(path: Path) -> bool:
    """Whether the directory of the evaluation was removed. That is certain only where the folder that held it is seen:
    in a container of the trainer another folder may stand at its place. In doubt the pin counts.
    """
    try:
        found = read_typed(path, Pin, "a pin", advice="nothing: it counts")
        parent = found.evaluation.parent
        return parent.stat().st_ino == found.folder and found.evaluation not in list_directory(parent)
    except (OSError, ValueError, UnreadableError):
        return False
