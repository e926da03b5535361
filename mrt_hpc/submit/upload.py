"""Uploads a run's offline W&B directories, from a machine with network access."""

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from mrt_hpc.attempt.ledger import claim_run
from mrt_hpc.backends.queued_jobs import refuse_live
from mrt_hpc.errors import Advice, UserError, retryable_error
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.wandb_runs import waiting_directories
from mrt_hpc.submit.changes import iterations_done


def upload_run(layout: RunLayout) -> int:
    """Upload the rest in order, as it is all one W&B run; returns the number of directories."""
    recipe = read_recipe_lock(layout.recipe_lock, looking=True)
    if not (layout.wandb / "run_id").is_file():
        raise _no_tracking(layout, recipe)
    command = wandb_command()
    with claim_run(layout, recipe.resilience.heartbeat_limit_s):
        refuse_live(layout, "so nothing is uploaded")
        waiting = waiting_directories(layout)
        if waiting:
            _run([command, "sync", *(str(path.absolute()) for path in waiting)], layout)
        if left := waiting_directories(layout):
            raise _not_uploaded(layout, f"W&B has left out {len(left)} of {len(waiting)} offline directories")
    return len(waiting)


def wandb_command() -> str:
    """W&B's command, on the search path or beside this Python."""
    if (command := shutil.which("wandb") or shutil.which("wandb", path=str(Path(sys.executable).parent))) is None:
        raise UserError(
            "the command wandb is not installed here",
            expected="wandb on the search path, or in the environment of mrt-hpc",
            advice="pip install wandb, wandb login, and the same command again",
        )
    return command


def _run(command: list[str], layout: RunLayout) -> None:
    with TemporaryDirectory() as folder:  # W&B takes its server from ./wandb/settings, where there is such a file
        code = subprocess.run(command, cwd=folder, check=False).returncode
    if code:
        raise _not_uploaded(layout, f"wandb sync ended with exit code {code}; its own words are above")


def _not_uploaded(layout: RunLayout, what: str) -> UserError:
    return retryable_error(
        what,
        where=layout.offline_runs,
        expected="a machine with network access that is logged in to W&B (wandb login)",
        advice=Advice(
            "mrt-hpc sync {run} again: it uploads what is left; the run itself needs nothing of it", run=layout.root
        ),
    )


def _no_tracking(layout: RunLayout, recipe: Recipe) -> UserError:
    if iterations_done(layout) == recipe.schedule.iterations:  # nothing is logged of what was trained before
        what, advice = "this run was trained without W&B", Advice("mrt-hpc report {run}", run=layout.root)
    elif recipe.tracking.wandb:
        what, advice = "the run has logged nothing for W&B yet", Advice("mrt-hpc status {run}", run=layout.root)
    else:
        what = "this run does not track with W&B"
        advice = Advice("mrt-hpc submit {run} --set tracking.wandb=true", run=layout.root)
    return UserError(what, where=layout.root, expected="tracking.wandb: true in its recipe as it trains", advice=advice)
