"""Runs one submission as the user who calls it: in a process of its own, as the tests are root and submitters are not.

    python slurm_submit_driver.py submit REQUEST.json    prints {"name": ..., "id": ...} lines
    python slurm_submit_driver.py again REQUEST.json     what `mrt-hpc submit` does with a run that is there
    python slurm_submit_driver.py cancel ID...

REQUEST holds site, run directory and function; for ``submit`` also plan, ids known from earlier, and optionally the
name of the job after whose sbatch the process ends: ``die_after``, before its id is recorded, or ``die_once_recorded``.
"""

import json
import os
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from slurm_trivial_tasks import TrivialCall

from mrt_hpc.backends.slurm import arrays
from mrt_hpc.backends.slurm.queue import cancel
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import Plan, read_plan
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.submit.submission import Listener, start


def main(command: str, *words: str) -> None:
    if command == "cancel":
        cancel(words)
        return
    request = json.loads(Path(words[0]).read_text())
    layout, site = RunLayout(Path(request["run_dir"])), SlurmSite.model_validate_json(json.dumps(request["site"]))
    submit = partial(arrays.submit_arrays, call=partial(TrivialCall, function=request["function"]))
    if command == "again":
        arrays.submit_arrays = submit
        start(
            read_recipe_lock(layout.recipe_lock), read_plan(layout.plan), layout, site,
            Listener(print, print, nullcontext),
        )  # fmt: skip
        return

    def record(name: str, job_id: str) -> None:
        if name == request.get("die_after"):
            os._exit(9)
        print(json.dumps({"name": name, "id": job_id}), flush=True)
        if name == request.get("die_once_recorded"):
            os._exit(9)

    submit(Plan.model_validate(request["plan"]).jobs, site, layout, known_ids=request["known_ids"], record=record)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except UserError as error:
        sys.exit(error.message())
