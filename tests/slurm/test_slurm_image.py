"""A recipe, shrunk, inside an image that `mrt-hpc container build cpu` made, preempted once. The image takes minutes to
build and gigabytes of room, so this runs only where MRT_HPC_TEST_IMAGE names one:

    mrt-hpc container build cpu cpu.sif && MRT_HPC_TEST_IMAGE=$PWD/cpu.sif pytest tests/slurm/test_slurm_image.py
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from slurm_cluster import wait_for_end
from slurm_recipes import SHRUNK, options, site_file
from submitted import latest_ids

from mrt_hpc.backends.slurm.queue import QueueState, queue_states
from mrt_hpc.cluster.login_node import mounts_by_kernel
from mrt_hpc.run.events import EventKind, read_events
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.waiting import wait_until

if TYPE_CHECKING:
    from slurm_cluster import Cluster

IMAGE = os.environ.get("MRT_HPC_TEST_IMAGE")
CHANGES = {**SHRUNK, "schedule.iterations": 4, "schedule.iterations_per_job": 4}


@pytest.mark.skipif(IMAGE is None, reason="MRT_HPC_TEST_IMAGE names no image of `mrt-hpc container build cpu`")
@pytest.mark.timeout(1500)
def test_a_run_inside_the_image_survives_a_preemption(cluster: Cluster, apptainer: str) -> None:
    run = cluster.run_dir("image") / "quickstart"
    container = {"image": IMAGE, "executable": apptainer, "unpack": not mounts_by_kernel(apptainer)}
    site = site_file(
        cluster,
        run,
        container=container,
        python=None,
        partitions={"cpu": "preempt", "gpu": "preempt"},
        environment={"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"},  # all that the image has is its own
    )
    arguments = ["quickstart", "--site", str(site), "--run", str(run), *options(CHANGES)]
    submitted = cluster.mrt_hpc("submit", *arguments)
    assert submitted.returncode == 0, submitted.stderr
    layout = RunLayout(run)
    ids = latest_ids(layout)

    wait_until(lambda: layout.metrics(0).is_file(), reason="the first iteration", deadline_s=900)
    cluster.push_out(node_of(ids["segment-000.trainer"]))
    states = wait_for_end(ids, seconds=1300)
    assert {state.state for state in states.values()} == {QueueState.COMPLETED}, cluster.mrt_hpc(
        "logs", str(run), "--all"
    ).stdout
    assert json.loads(layout.metrics(3).read_text())["reward_mean"] >= 0
    assert layout.report.is_file()
    events = read_events(layout.events)
    starts = [e for e in events if e["kind"] == EventKind.TASK_STARTED and e["job"] == "segment-000.trainer"]
    assert len(starts) >= 2, "the trainer was pushed out and came back"


def node_of(job_id: str) -> str:
    """The node that the first task of a job runs on."""
    return next(task.nodes for task in queue_states([job_id]).values() if task.nodes)
