"""`mrt-hpc init` and `mrt-hpc doctor --on-node` on real clusters, as the ordinary user: what is written is what the
cluster has, and faults of nodes and partitions are found.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from slurm_doctor import examine
from slurm_recipes import SHRUNK, options, site_file

from mrt_hpc.backends.sites import find_site
from mrt_hpc.backends.slurm.site import SlurmSite

if TYPE_CHECKING:
    from pathlib import Path

    from slurm_cluster import Cluster


def written_profile(cluster: Cluster, run: Path, *wishes: str) -> tuple[Path, SlurmSite]:
    """The profile that init writes, with the Python that the user may read."""
    path = run.parent / f"{run.name}.yaml"
    done = cluster.mrt_hpc("init", "onehost", "--yes", "--python", cluster.python, "--output", str(path), *wishes)
    assert done.returncode == 0, done.stderr
    site = find_site(str(path))
    assert isinstance(site, SlurmSite)
    return path, site


@pytest.mark.timeout(300)
def test_a_new_profile_and_a_node_that_answers(cluster: Cluster) -> None:
    run = cluster.run_dir("doctor")
    path, site = written_profile(cluster, run)
    assert (site.account, site.partitions.cpu, site.max_array_size) == ("lab", "cpu", 1001)
    status, found = examine(cluster, run, path)
    assert status == 0, found
    for name in ("", ": versions", ": visibility of files", ": clock", ": signals", ": Slurm's commands"):
        assert found[f"node of cpu{name}"]["verdict"] == "ok", found[f"node of cpu{name}"]
    assert "SIGUSR2 and SIGTERM" in found["node of cpu: signals"]["evidence"]
    assert list(run.glob(".*")) == [], "what was tried is removed"


@pytest.mark.timeout(300)
def test_the_plain_command_goes_to_the_cluster(cluster: Cluster) -> None:
    run = cluster.run_dir("plain-command")
    words = ("submit", "quickstart", *options(SHRUNK), "--run", str(run / "run"))
    shutil.rmtree(cluster.configuration, ignore_errors=True)
    refused = cluster.mrt_hpc(*words)
    assert refused.returncode == 2
    assert "mrt-hpc init" in refused.stderr
    assert not (run / "run").exists()
    written_profile(cluster, run)
    sent = cluster.mrt_hpc(*words)
    assert sent.returncode == 0, sent.stderr
    shutil.rmtree(cluster.configuration)
    again = cluster.mrt_hpc(*words)
    cancelled = cluster.mrt_hpc("cancel", str(run / "run"))
    assert again.returncode == 0, again.stderr
    assert "0 job(s) submitted" in again.stdout, "the run has its own site"
    assert cancelled.returncode == 0, cancelled.stderr


@pytest.mark.timeout(300)
def test_a_preemptible_partition_and_its_notice(cluster: Cluster) -> None:
    run = cluster.run_dir("doctor")
    path, site = written_profile(cluster, run, "--partition", "preempt", "--gpu-partition", "preempt")
    assert site.preemption_notice_s == 25
    status, found = examine(cluster, run, path)
    assert status == 0, found
    assert "is queued again" in found["preemption in partition preempt"]["evidence"]


@pytest.mark.timeout(300)
def test_a_python_that_nodes_do_not_have(cluster: Cluster) -> None:
    run = cluster.run_dir("doctor")
    python = run / "python"
    python.write_text(
        f'#!/bin/bash\n[ "$SLURM_JOB_ID" ] || exec {cluster.python} "$@"\necho no such library >&2; exit 1\n'
    )
    python.chmod(0o755)
    status, found = examine(cluster, run, site_file(cluster, run / "x", python=str(python)))
    assert status == 2
    assert found["Python"]["verdict"] == "ok", "here it works"
    assert "ended without an answer" in found["node of cpu"]["evidence"]
    assert "no such library" in found["node of cpu"]["evidence"]


@pytest.mark.timeout(300)
def test_what_slurm_refuses_and_a_job_that_does_not_start(cluster: Cluster) -> None:
    run = cluster.run_dir("doctor")
    status, found = examine(cluster, run, site_file(cluster, run / "x", account="nobodys"))
    assert status == 2
    assert found["account"]["verdict"] == "fails"
    assert "sbatch refused" in found["node of cpu"]["evidence"]
    down = ["scontrol", "update", "PartitionName=preempt", "State=DOWN"]
    subprocess.run(down, check=True)
    try:
        status, found = examine(
            cluster, run, site_file(cluster, run / "x", partitions={"cpu": "preempt"}), "--wait", "0.5"
        )
    finally:
        subprocess.run([*down[:-1], "State=UP"], check=True)
    assert status == 0, "it may start later"
    assert found["partition of cpu jobs"]["verdict"] == "doubtful"
    assert found["node of preempt"]["verdict"] == "not checked"
    assert "PartitionDown" in found["node of preempt"]["evidence"]
    queue = ["squeue", "--noheader", "--format=%j", "--name=doctor-cpu"]
    assert "doctor" not in subprocess.run(queue, capture_output=True, text=True, check=True).stdout


PLANTED = {
    "AllowGroups": (["scontrol", "update", "PartitionName=cpu", "AllowGroups=daemon"], "AllowGroups=ALL"),
    "AllowAccounts": (["scontrol", "update", "PartitionName=cpu", "AllowAccounts=root"], "AllowAccounts=ALL"),
    "DenyAccounts": (["scontrol", "update", "PartitionName=cpu", "DenyAccounts=lab"], "DenyAccounts="),
    "AllowQos": (["scontrol", "update", "PartitionName=cpu", "AllowQos=urgent"], "AllowQos=ALL"),
    "State": (["scontrol", "update", "PartitionName=cpu", "State=DRAIN"], "State=UP"),
    "MaxTime": (["scontrol", "update", "PartitionName=cpu", "MaxTime=5"], "MaxTime=2-00:00:00"),
    "MaxSubmitJobs": (
        ["sacctmgr", "--immediate", "modify", "user", "researcher", "set", "MaxSubmitJobs=2"],
        "MaxSubmitJobs=-1",
    ),
    "MaxWall": (["sacctmgr", "--immediate", "modify", "qos", "normal", "set", "MaxWall=5"], "MaxWall=-1"),
    "MaxSubmitPU": (
        ["sacctmgr", "--immediate", "modify", "qos", "normal", "set", "MaxSubmitJobsPerUser=3"],
        "MaxSubmitJobsPerUser=-1",
    ),
}
"""By the word that the evidence holds: the command that plants a fault, and its last word for undoing it."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("word", PLANTED)
def test_a_fault_planted_on_the_cluster(cluster: Cluster, word: str) -> None:
    run = cluster.run_dir("doctor")
    plant, undo = PLANTED[word]
    subprocess.run(plant, check=True, capture_output=True)
    try:
        words = ("--site", str(site_file(cluster, run / "x")), "--recipe", "quickstart", "--run", str(run / "run"))
        done = cluster.mrt_hpc("doctor", *words, "--json")
    finally:
        subprocess.run([*plant[:-1], undo], check=True, capture_output=True)
    found = [one for one in json.loads(done.stdout)["checks"] if one["verdict"] in ("fails", "doubtful")]
    told = [one for one in found if word in one["evidence"] or "allows 5" in one["evidence"]]
    assert told, found
    assert all(one["remedy"] for one in told)
    assert done.returncode == (0 if word == "State" else 2)


# The last test: from here on, Slurm's commands of this process speak to the plain cluster.
@pytest.mark.timeout(600)
def test_a_cluster_without_accounting_whose_preemption_cancels(plain_cluster: Cluster) -> None:
    run = plain_cluster.run_dir("doctor")
    path, site = written_profile(plain_cluster, run, "--partition", "preempt", "--gpu-partition", "preempt")
    assert (site.account, site.max_array_size, site.max_submit_jobs, site.preemption_notice_s) == (None, 10, 60, 30)
    assert "account: null # not seen: this cluster has no accounting" in path.read_text()
    status, found = examine(plain_cluster, run, path)
    assert status == 0, found
    assert found["preemption in partition preempt"]["verdict"] == "doubtful"
    assert "not queued again" in found["preemption in partition preempt"]["evidence"]
    assert "every job of a run asks (--requeue)" in found["requeue"]["evidence"]
    assert found["node of preempt: signals"]["verdict"] == "ok"
