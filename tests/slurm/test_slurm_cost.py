"""The reckoning of hours beside that of a real cluster's accounting, with and without asking it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from slurm_cluster import notes, wait_for_end
from slurm_lives import QUICKSTART, run_directory
from slurm_plans import job, plan

from mrt_hpc.analysis.spending import Accounts, spending
from mrt_hpc.attempt.ledger import record_submission
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import lock_text, read_lock
from mrt_hpc.run.events import Use
from mrt_hpc.run.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slurm_cluster import Cluster

    from mrt_hpc.run.layout import RunLayout

THE_PLAN = plan(job("requeued", tasks=2, gpus=1), job("trainer", role=Role.TRAINER, gpus=2))
ATTEMPTS_GPUS = 5
"""Three attempts of the two tasks with one GPU each, and one of the trainer with two."""
LONGEST_END_S = 5.0
"""From the last event of an attempt to the end that accounting knows."""


@pytest.mark.timeout(600)
def test_the_hours_are_those_of_accounting(cluster: Cluster) -> None:
    layout = run_directory(cluster, "cost", THE_PLAN)
    layout.recipe_lock.write_text(lock_text(load_recipe(QUICKSTART, ("evaluation.benchmarks=[]",))))
    ids = cluster.submitted(THE_PLAN, layout.root, "spends")
    for name, job_id in ids.items():
        record_submission(layout, name, job_id, "onehost")
    wait_until(lambda: _goes_on(layout), reason="the task that is to be requeued", deadline_s=200)
    assert cluster.as_user("scontrol", "requeue", f"{ids['requeued']}_0").returncode == 0
    wait_for_end(ids, seconds=300)

    accounted = gpu_hours(ids.values())
    told = json.loads(cluster.mrt_hpc("cost", str(layout.root), "--json").stdout)
    print(cluster.mrt_hpc("cost", str(layout.root)).stdout)
    assert told["source"] == "accounting"
    assert told["attempts"] == 4
    assert told["gpu_hours"] == pytest.approx(accounted, rel=0.01)
    assert sum(row["gpu_hours"] for row in told["by_role_and_use"]) == pytest.approx(told["gpu_hours"], rel=1e-9)

    submitted = Accounts(submitted=dict.fromkeys(ids.values(), 0.0))
    alone = spending(layout, THE_PLAN, read_lock(layout.recipe_lock), submitted)
    print(f"by accounting {accounted:.5f} GPU-hours, by events {alone.gpu_hours:.5f}")
    assert not alone.accounted
    assert alone.gpu_hours == pytest.approx(accounted, abs=ATTEMPTS_GPUS * LONGEST_END_S / 3600)
    for spent in (uses(told["by_role_and_use"]), uses(map(asdict, alone.rows))):
        assert spent[Use.WAITING] == pytest.approx(30, abs=2)
        assert spent[Use.GENERATING] == pytest.approx((3 * 12 + 2 * 16) * 0.75, abs=4)
        assert spent[Use.BRANCHING] == pytest.approx((3 * 12 + 2 * 16) * 0.25, abs=4)
        assert spent[Use.LOST] > 0
        assert Use.UNACCOUNTED not in spent


def _goes_on(layout: RunLayout) -> bool:
    return any((n["job"], n["index"], n["what"]) == ("requeued", 0, "goes on") for n in notes(layout.root))


def uses(rows: Iterable[dict[str, Any]]) -> dict[Use, float]:
    """The seconds of inference by use."""
    return {Use(row["use"]): row["hours"] * 3600 for row in rows if row["role"] == "inference"}


def gpu_hours(ids: Iterable[str]) -> float:
    """What accounting itself says: the seconds of all attempts, times their GPUs."""
    command = ["sacct", "-X", "-D", "-n", "-P", f"--jobs={','.join(ids)}", "--format=ElapsedRaw,AllocTRES"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found = (line.partition("|") for line in lines)
    gpus = ((int(seconds), dict(item.split("=") for item in held.split(",") if item)) for seconds, _, held in found)
    return sum(seconds * int(held.get("gres/gpu", 0)) for seconds, held in gpus) / 3600
