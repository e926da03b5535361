"""Runs one submission as whoever calls it: a process of its own, because the tests are root and submitters are not.

    python slurm_submit_driver.py submit REQUEST.json    prints {"name": ..., "id": ...} lines
    python slurm_submit_driver.py cancel ID...

REQUEST holds plan, site, run directory, function, ids known from earlier, and optionally the name of the job after
whose sbatch the process ends at once: ``die_after``, before the id is recorded, or ``die_once_recorded``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from mrt_hpc.launch.slurm import submit
from mrt_hpc.launch.slurm_queue import cancel
from mrt_hpc.plan.model import Plan
from mrt_hpc.recipe.errors import UserError
from mrt_hpc.recipe.site import SlurmSite
from mrt_hpc.run.layout import RunLayout


def submit_request(path: str) -> None:
    request = json.loads(Path(path).read_text())
    plan = Plan.model_validate(request["plan"])

    def record(name: str, job_id: str) -> None:
        if name == request.get("die_after"):
            os._exit(9)
        print(json.dumps({"name": name, "id": job_id}), flush=True)
        if name == request.get("die_once_recorded"):
            os._exit(9)

    submit(
        plan.jobs,
        SlurmSite.model_validate_json(json.dumps(request["site"])),
        RunLayout(Path(request["run_dir"])),
        known_ids=request["known_ids"],
        record=record,
        function=request["function"],
    )


if __name__ == "__main__":
    try:
        submit_request(sys.argv[2]) if sys.argv[1] == "submit" else cancel(sys.argv[2:])
    except UserError as error:
        sys.exit(error.message())
