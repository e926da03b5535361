"""Tasks in an Apptainer image, built and run by the ordinary user: an empty shell, into which all else is bound; and a
whole run in an image that `mrt-hpc container build cpu` made. That one takes minutes to build and gigabytes of room:

    mrt-hpc container build cpu cpu.sif && MRT_HPC_TEST_IMAGE=$PWD/cpu.sif pytest tests/slurm/test_slurm_container.py
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from run_of import read_events
from slurm_cluster import REPOSITORY, Cluster, notes, wait_for_end
from slurm_submissions import SHRUNK, all_logs, begun, examined, job, plan, sent, site_file

from mrt_hpc.backends.slurm.queue import QueueState, queue_states
from mrt_hpc.cluster.login_node import mounts_by_kernel
from mrt_hpc.plan.jobs import Role
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.retries import wait_until

SYSTEM_FOLDERS = ("/bin", "/etc", "/lib", "/lib64", "/opt", "/sbin", "/tmp", "/usr", "/var")
WELL_KNOWN = Path("/opt/apptainer/usr/bin/apptainer")
IMAGE = os.environ.get("MRT_HPC_TEST_IMAGE")


@pytest.fixture(scope="module")
def apptainer(cluster: Cluster) -> str:
    """Apptainer, installed by the project's script where the host has none."""
    found = shutil.which("apptainer") or (str(WELL_KNOWN) if WELL_KNOWN.exists() else None)
    if found:
        return found
    command = [str(REPOSITORY / "containers/install_apptainer.sh"), str(cluster.home / "apptainer")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        pytest.skip(f"Apptainer cannot be installed here: {done.stderr.strip()}")
    return done.stdout.splitlines()[-1]


@pytest.mark.timeout(900)
def test_tasks_in_the_image_come_back_and_the_doctor_looks_into_it(cluster: Cluster, apptainer: str) -> None:
    run = cluster.folder("container")
    image, definition, note = run / "shell.sif", run / "shell.def", run / "note"
    note.write_text("nothing\n")
    definition.write_text(f"Bootstrap: scratch\n\n%files\n    {note} /built-from\n")
    built = cluster.as_user(apptainer, "build", str(image), str(definition), timeout=300)
    assert built.returncode == 0, built.stderr
    folders = [*SYSTEM_FOLDERS, str(cluster.checkout), str(Path(cluster.python).parents[1])]
    container = {"image": str(image), "executable": apptainer, "binds": folders, "python": cluster.python}

    after = job("after-gives-back", role=Role.TRAINER, ranks=2, ok=("gives-back",))
    layout, ids = begun(cluster, plan(job("gives-back"), after), site=cluster.site(container=container))
    status, found = examined(cluster, run, site_file(cluster, run / "x", container=container), "--on-node")
    assert status == 0, [result for result in found.values() if result["verdict"] == "fails"]
    assert found["container"]["verdict"] == "ok", found["container"]
    assert found["node of cpu: signals"]["verdict"] == "ok", "they reach the Python in the image"
    without = container | {"binds": []}
    status, found = examined(cluster, run, site_file(cluster, run / "x", container=without), "--on-node")
    assert status == 2
    assert "cannot be started" in found["container"]["evidence"], "an empty image has no Python"
    assert "ended without an answer" in found["node of cpu"]["evidence"]

    assert {state.state for state in wait_for_end(ids).values()} == {QueueState.COMPLETED}
    said = notes(layout.root)
    assert {note["restarts"] for note in said if note["job"] == "gives-back"} == {0, 1}
    assert {note["rank"] for note in said if note["job"] == "after-gives-back"} == {0, 1}
    assert {note["container"] for note in said} == {str(image)}


@pytest.mark.skipif(IMAGE is None, reason="MRT_HPC_TEST_IMAGE names no image of `mrt-hpc container build cpu`")
@pytest.mark.timeout(1500)
def test_a_run_inside_the_image_survives_a_preemption(cluster: Cluster, apptainer: str) -> None:
    layout, ids = sent(
        cluster,
        cluster.folder("image") / "run",
        {**SHRUNK, "schedule.iterations": 4, "schedule.iterations_per_job": 4},
        container={"image": IMAGE, "executable": apptainer, "unpack": not mounts_by_kernel(apptainer)},
        python=None,
        partitions={"cpu": "preempt", "gpu": "preempt"},
        environment={"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"},  # all that the image has is its own
    )
    wait_until(lambda: layout.metrics(0).is_file(), reason="the first iteration", deadline_s=900)
    trainer = "segment-000.trainer"
    cluster.push_out(next(task.nodes for task in queue_states([ids[trainer]]).values() if task.nodes))
    states = wait_for_end(ids, seconds=1300)
    assert {state.state for state in states.values()} == {QueueState.COMPLETED}, all_logs(cluster, layout)
    assert layout.metrics(3).is_file() and layout.report.is_file()
    starts = [event for event in read_events(layout.events, EventKind.TASK_STARTED) if event["job"] == trainer]
    assert len(starts) >= 2, "the trainer was pushed out and came back"
