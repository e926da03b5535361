"""Uploads the offline W&B directories of a run, from a machine with network access, with the report and its figures."""

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mrt_hpc.attempt.ledger import claimed
from mrt_hpc.backends.queued_jobs import refuse_live
from mrt_hpc.errors import ExitCode, UserError, word
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.run.atomic import checksum, write_json
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.typed_file import UnreadableError, read_typed
from mrt_hpc.run.wandb_runs import waiting_directories


@dataclass(frozen=True)
class Uploaded:
    """What was uploaded."""

    directories: int
    files: int
    """The files of the report, attached because they had changed."""


def upload_run(layout: RunLayout, show: Callable[[str], None]) -> Uploaded:
    """Upload what is not uploaded yet, in the order in which it was written: all of it belongs to one W&B run.

    Args:
        layout: the run directory.
        show: receives a sentence about what cannot be attached.

    Raises:
        UserError: the run does not track, its tasks are queued or running, or W&B is not installed, cannot be reached
            or refuses.
    """
    recipe = read_recipe_lock(layout.recipe_lock, looking=True)
    if not (layout.wandb / "run_id").is_file():
        raise _no_tracking(layout, recipe)
    command = wandb_command()
    with claimed(layout, recipe.resilience.heartbeat_limit_s):
        refuse_live(layout, "so nothing is uploaded")
        files = _attach_report(layout, recipe, show)
        waiting = waiting_directories(layout)
        if waiting:
            _run([command, "sync", *map(str, waiting)], layout)
        if left := waiting_directories(layout):
            raise _not_uploaded(layout, f"W&B has left out {len(left)} of {len(waiting)} offline directories")
    return Uploaded(len(waiting), files)


def wandb_command() -> str:
    """The command of W&B: the first on the search path, or the one beside this Python.

    Raises:
        UserError: there is none.
    """
    command = shutil.which("wandb") or shutil.which("wandb", path=str(Path(sys.executable).parent))
    if command is None:
        raise UserError(
            "the command wandb is not installed here",
            expected="wandb on the search path, or in the environment of mrt-hpc",
            advice="pip install wandb, wandb login, and the same command again",
        )
    return command


def _attach_report(layout: RunLayout, recipe: Recipe, show: Callable[[str], None]) -> int:
    """Put the report and its figures into the W&B run, where they have changed since; returns their number."""
    record = layout.wandb / "attached.json"
    files = [path for path in (layout.report, layout.page, *list_directory(layout.plots)) if path.is_file()]
    sums = {str(path.relative_to(layout.root)): checksum(path) for path in files}
    if not files or _attached(record) == sums:
        return 0
    if importlib.util.find_spec("wandb") is None:
        show("the report is not attached: W&B is not installed in the environment of mrt-hpc (pip install wandb)")
        return 0
    from mrt_hpc.roles.tracking import attach

    attach(layout, recipe, files)
    write_json(record, sums)
    return len(files)


def _attached(record: Path) -> dict[str, str]:
    """The checksums of what is in the W&B run already; none where the record cannot be read: it is attached again."""
    try:
        return read_typed(record, dict[str, str], "the record of what was attached", advice=f"rm -r {word(record)}")
    except (FileNotFoundError, UnreadableError):
        return {}


def _run(command: list[str], layout: RunLayout) -> None:
    code = subprocess.run(command, check=False).returncode
    if code:
        raise _not_uploaded(layout, f"wandb sync ended with exit code {code}; its own words are above")


def _not_uploaded(layout: RunLayout, what: str) -> UserError:
    return UserError(
        what,
        where=layout.offline_runs,
        expected="a machine with network access that is logged in to W&B (wandb login)",
        advice=f"mrt-hpc sync {layout.word} again: it uploads what is left; the run itself needs nothing of it",
        exit_code=ExitCode.RETRYABLE,
    )


def _no_tracking(layout: RunLayout, recipe: Recipe) -> UserError:
    if recipe.tracking.wandb:
        what, advice = "the run has logged nothing for W&B yet", f"mrt-hpc status {layout.word}"
    else:
        what, advice = "this run does not track with W&B", "submit it again with --set tracking.wandb=true"
    return UserError(what, where=layout.root, expected="tracking.wandb: true in its recipe", advice=advice)
