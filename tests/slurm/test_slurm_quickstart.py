"""The quickstart recipe, shrunk, on a real cluster: two inference tasks and a trainer of two ranks, to its report."""

from __future__ import annotations

import json

import pytest
from slurm_cluster import Cluster, wait_for_end
from slurm_recipes import SHRUNK, accounting, options, site_file

from mrt_hpc.launch.ledger import latest_ids, submissions
from mrt_hpc.launch.slurm_queue import QueueState
from mrt_hpc.run.layout import RunLayout


@pytest.mark.timeout(1500)
def test_quickstart_runs_to_its_report(cluster: Cluster) -> None:
    run = cluster.run_dir("e2e") / "quickstart"
    arguments = [
        str(cluster.checkout / "recipes/quickstart.yaml"),
        "--site",
        str(site_file(cluster, run)),
        "--run",
        str(run),
        *options(SHRUNK),
    ]

    planned = cluster.mrt_hpc("plan", *arguments, "--sbatch")
    assert planned.returncode == 0, planned.stderr
    submitted = cluster.mrt_hpc("submit", *arguments)
    assert submitted.returncode == 0, submitted.stderr
    layout = RunLayout(run)
    ids = latest_ids(layout)
    assert len(submissions(layout)) == len(ids) == 5
    check_planned_texts(planned.stdout, layout, ids)

    again = cluster.mrt_hpc("submit", *arguments)
    assert "0 job(s) submitted" in again.stdout, again.stderr

    states = wait_for_end(ids, seconds=1200)
    print(accounting(ids.values()))
    logs = cluster.mrt_hpc("logs", str(run), "--all").stdout
    assert {state.state for state in states.values()} == {QueueState.COMPLETED}, logs
    assert len(states) == 1 + 2 + 1 + 2 + 1
    check_result(cluster, layout)


def check_planned_texts(planned: str, layout: RunLayout, ids: dict[str, str]) -> None:
    """What `plan --sbatch` printed is what was submitted, placeholders apart."""
    texts = dict(part.split("\n", 1) for part in planned.split("# ---- ")[1:])
    assert set(texts) == set(ids)
    for name, text in texts.items():
        for other, job_id in ids.items():
            text = text.replace(f"{{{other}}}", job_id)
        submitted = layout.logs / name / f"{ids[name]}_submission.sh"
        assert text.rstrip("\n") == submitted.read_text().rstrip("\n")


def check_result(cluster: Cluster, layout: RunLayout) -> None:
    assert layout.report.is_file()
    assert layout.report.owner() == cluster.user
    for iteration in range(2):
        assert json.loads(layout.metrics(iteration).read_text())["reward_mean"] >= 0
    status = cluster.mrt_hpc("status", str(layout.root))
    assert status.returncode == 0, status.stderr
    assert "2 completed" in status.stdout, "the two inference tasks"
    assert str(layout.report) in status.stdout
