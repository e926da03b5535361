"""Tasks in an Apptainer image, built and run by the ordinary user: the image is an empty shell, all else is bound."""

from __future__ import annotations

from pathlib import Path

import pytest
from slurm_cluster import Cluster, notes, wait_for_end
from slurm_doctor import examine
from slurm_plans import job, plan
from slurm_recipes import site_file

from mrt_hpc.backends.slurm.queue import QueueState

DEFINITION = """
Bootstrap: scratch

%files
    {note} /built-from
"""
SYSTEM_FOLDERS = ("/bin", "/etc", "/lib", "/lib64", "/opt", "/sbin", "/tmp", "/usr", "/var")


@pytest.mark.timeout(900)
def test_tasks_run_in_the_image_and_come_back_from_within(cluster: Cluster, apptainer: str) -> None:
    run_dir = cluster.run_dir("container")
    image = build_image(cluster, apptainer, run_dir)
    folders = [*SYSTEM_FOLDERS, str(cluster.checkout), str(Path(cluster.python).parents[1])]
    container = {"image": str(image), "executable": apptainer, "binds": folders, "python": cluster.python}
    site = cluster.site(container=container)

    ids = cluster.submitted(
        plan(job("requeues"), job("after", ranks=2, ok=("requeues",))), run_dir, "comes_back", site=site
    )
    states = wait_for_end(ids, seconds=300)
    assert {state.state for state in states.values()} == {QueueState.COMPLETED}
    assert {note["restarts"] for note in notes(run_dir) if note["job"] == "requeues"} == {0, 1}
    assert {note["rank"] for note in notes(run_dir) if note["job"] == "after"} == {0, 1}
    assert {note["container"] for note in notes(run_dir)} == {str(image)}


@pytest.mark.timeout(900)
def test_the_doctor_looks_into_the_image_here_and_on_a_node(cluster: Cluster, apptainer: str) -> None:
    run = cluster.run_dir("doctor")
    image = build_image(cluster, apptainer, run)
    folders = [*SYSTEM_FOLDERS, str(cluster.checkout), str(Path(cluster.python).parents[1])]
    container = {"image": str(image), "executable": apptainer, "binds": folders, "python": cluster.python}
    status, found = examine(cluster, run, site_file(cluster, run / "x", container=container))
    assert status == 0, [result for result in found.values() if result["verdict"] == "fails"]
    assert found["container"]["verdict"] == "ok", found["container"]
    assert found["node of cpu: signals"]["verdict"] == "ok", "they reach the Python in the image"
    container["binds"] = []
    status, found = examine(cluster, run, site_file(cluster, run / "x", container=container))
    assert status == 2
    assert "cannot be started" in found["container"]["evidence"], "an empty image has no Python"
    assert "ended without an answer" in found["node of cpu"]["evidence"]


def build_image(cluster: Cluster, apptainer: str, run_dir: Path) -> Path:
    (run_dir / "note").write_text("nothing\n")
    definition, image = run_dir / "shell.def", run_dir / "shell.sif"
    definition.write_text(DEFINITION.format(note=run_dir / "note"))
    built = cluster.as_user(apptainer, "build", str(image), str(definition), timeout=300)
    assert built.returncode == 0, built.stderr
    return image
