"""`mrt-hpc init` and `mrt-hpc doctor --on-node` on a real cluster, as the ordinary user: what is written is what the
cluster has, and faults of nodes and partitions are found.
"""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from slurm_cluster import Cluster
from slurm_submissions import SHRUNK, examined, options, site_file, written_profile
from tables import tables

OF_A_NODE = ("", ": versions", ": visibility of files", ": clock", ": signals", ": Slurm's commands")
SHORTEST_WAIT = "0.5"  # the minutes that the doctor waits for a node, the fewest that it takes
PLANTED = {tuple(words.split(", ")): faults for words, faults in tables("slurm_doctor")["planted"].items()}


@pytest.mark.timeout(600)
def test_new_profiles_and_nodes_that_answer(cluster: Cluster) -> None:
    run, preempted = cluster.folder("doctor"), cluster.folder("doctor")
    path, site = written_profile(cluster, run)
    assert (site.account, site.partitions.cpu, site.max_array_size) == ("lab", "cpu", 1001)
    other, site = written_profile(cluster, preempted, "--partition", "preempt", "--gpu-partition", "preempt")
    assert site.preemption_notice_s == 25
    status, found = examined(cluster, run, path, "--on-node")
    assert status == 0, found
    assert {found[f"node of cpu{name}"]["verdict"] for name in OF_A_NODE} == {"ok"}, found
    assert "SIGUSR2 and SIGTERM" in found["node of cpu: signals"]["evidence"]
    assert list(run.glob(".*")) == [], "what was tried is removed"
    status, found = examined(cluster, preempted, other)
    assert status == 0, found
    assert "is queued again" in found["preemption in partition preempt"]["evidence"]


def test_the_plain_command_goes_to_the_cluster(cluster: Cluster) -> None:
    run = cluster.folder("plain-command")
    words = ("submit", "quickstart", *options(SHRUNK), "--run", str(run / "run"))
    shutil.rmtree(cluster.configuration, ignore_errors=True)
    refused = cluster.mrt_hpc(*words)
    assert refused.returncode == 2
    assert "mrt-hpc init" in refused.stderr
    assert not (run / "run").exists()
    described = cluster.mrt_hpc("init", "onehost", "--yes", "--python", cluster.python)
    assert described.returncode == 0, described.stderr
    sent = cluster.mrt_hpc(*words)
    assert sent.returncode == 0, sent.stderr
    shutil.rmtree(cluster.configuration)
    again = cluster.mrt_hpc(*words)
    cancelled = cluster.mrt_hpc("cancel", str(run / "run"))
    assert again.returncode == 0, again.stderr
    assert "0 job(s) submitted" in again.stdout, "the run has its own site"
    assert cancelled.returncode == 0, cancelled.stderr


@pytest.mark.timeout(600)
def test_nodes_that_do_not_answer(cluster: Cluster) -> None:
    """Three doctors at once: with a Python that nodes lack, an account that Slurm refuses, a partition that is down."""
    python, refused, down = (cluster.folder("doctor") for _ in range(3))
    (python / "python").write_text(
        f'#!/bin/bash\n[ "$SLURM_JOB_ID" ] || exec {cluster.python} "$@"\necho no such library >&2; exit 1\n'
    )
    (python / "python").chmod(0o755)
    profiles = {
        python: site_file(cluster, python / "x", python=str(python / "python")),
        refused: site_file(cluster, refused / "x", account="nobodys"),
        down: site_file(cluster, down / "x", partitions={"cpu": "preempt"}),
    }
    update = ["scontrol", "update", "PartitionName=preempt"]
    subprocess.run([*update, "State=DOWN"], check=True)
    try:
        with ThreadPoolExecutor(len(profiles)) as pool:
            asked = {
                run: pool.submit(
                    examined, cluster, run, path, "--on-node", *(("--wait", SHORTEST_WAIT) if run is down else ())
                )
                for run, path in profiles.items()
            }
    finally:
        subprocess.run([*update, "State=UP"], check=True)
    status, found = asked[python].result()
    assert (status, found["Python"]["verdict"]) == (2, "ok"), "here it works"
    assert "ended without an answer" in found["node of cpu"]["evidence"]
    assert "no such library" in found["node of cpu"]["evidence"]
    status, found = asked[refused].result()
    assert (status, found["account"]["verdict"]) == (2, "fails")
    assert "sbatch refused" in found["node of cpu"]["evidence"]
    status, found = asked[down].result()
    assert status == 0, "it may start later"
    assert found["partition of cpu jobs"]["verdict"] == "doubtful"
    assert found["node of preempt"]["verdict"] == "not checked"
    assert "PartitionDown" in found["node of preempt"]["evidence"]
    queue = ["squeue", "--noheader", "--format=%j", "--name=doctor-cpu"]
    assert "doctor" not in subprocess.run(queue, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("words", PLANTED)
def test_faults_planted_on_the_cluster(cluster: Cluster, words: tuple[str, ...]) -> None:
    run = cluster.folder("doctor")
    try:
        for command, value, _ in PLANTED[words]:
            subprocess.run(command.format(value).split(), check=True, capture_output=True)
        status, checks = examined(cluster, run, site_file(cluster, run / "x"))
    finally:
        for command, _, undone in PLANTED[words]:
            subprocess.run(command.format(undone).split(), check=True, capture_output=True)
    assert status == 2
    found = [one for one in checks.values() if one["verdict"] in ("fails", "doubtful")]
    assert [word for word in words if not any(word in one["evidence"] for one in found)] == [], found
    assert all(one["remedy"] for one in found)
