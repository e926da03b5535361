"""An evaluation on its own keeps a weights version of a run from being removed until its first job has taken it over.

A pin is a small file in the training run, one for each version and evaluation. A pin counts until the evaluation
removes it, or until its directory is gone.
"""

import errno
import hashlib
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path

from mrt_hpc.recipe.ownership import look_at_path
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import list_directory, retry_action
from mrt_hpc.run.typed_file import UnreadableError, read_typed

log = logging.getLogger(__name__)

_PIN = re.compile(r"v(\d{6})\.[0-9a-f]{16}\.json")


@dataclass(frozen=True)
class Pin:
    """Why an evaluation keeps a weights version."""

    evaluation: Path
    folder: int
    """The inode of the folder that holds this directory."""


def pin(run: RunLayout, version: int, evaluation: RunLayout) -> None:
    """Keep a version, published or not yet, of a run for the directory of an evaluation; a pin that exists is
    rewritten.
    """
    if look_at_path(run.root).status.st_uid != os.geteuid():
        raise PermissionError(errno.EACCES, "the run belongs to another user", str(run.root))
    root = evaluation.root.resolve()
    content = {"evaluation": str(root), "folder": root.parent.stat().st_ino}
    write_json(_file(run, version, evaluation), content)


def release(recipe: Experiment, evaluation: RunLayout) -> list[str]:
    """Remove all pins of an evaluation; returns the names of the pinned models. A pin that cannot be removed stays, and
    costs only disk space.
    """
    return [recipe.models[i].name for i, run, version in run_models(recipe) if _is_removed(run, version, evaluation)]


def run_models(recipe: Experiment) -> list[tuple[int, RunLayout, int]]:
    """The models of an evaluation that are weights versions of runs: model number, run and version."""
    return [
        (number, RunLayout(Path(model.run)), model.version)
        for number, model in enumerate(recipe.models)
        if model.run is not None and model.version is not None
    ]


def _is_removed(run: RunLayout, version: int, evaluation: RunLayout) -> bool:
    try:
        retry_action(_file(run, version, evaluation).unlink, "removing a pin")
    except FileNotFoundError:
        return False
    except OSError as error:
        log.warning("weights version %d of %s stays, though it is not needed any more: %s", version, run.root, error)
        return False
    return True


def pinned_versions(run: RunLayout) -> set[int]:
    """The versions of a run that evaluations still want, also unpublished ones."""
    pins = [(path, _PIN.fullmatch(path.name)) for path in list_directory(run.pins)]
    return {int(match[1]) for path, match in pins if match and not _is_abandoned(path)}


def _file(run: RunLayout, version: int, evaluation: RunLayout) -> Path:
    """The file of a pin, named by the evaluation's own key: a path has several spellings, others in containers."""
    key = (evaluation.secrets / "server_key").read_bytes()
    return run.pins / f"v{version:06d}.{hashlib.sha256(key).hexdigest()[:16]}.json"


def _is_abandoned(path: Path) -> bool:
    """Whether the evaluation's directory was removed. Only certain where the folder that held it is visible (a
    container may have another there); in doubt the pin counts.
    """
    try:
        pin = read_typed(path, Pin, "a pin", advice="nothing: it counts")
        parent = pin.evaluation.parent
        return parent.stat().st_ino == pin.folder and pin.evaluation not in list_directory(parent)
    except (OSError, ValueError, UnreadableError):
        return False
