"""Jobs that end before their Python has begun, on a real cluster: explain says why, and doctor sees it beforehand."""

import time

import pytest
from slurm_cluster import Cluster, wait_for_end
from slurm_submissions import SHRUNK, examined, options
from submitted import latest_ids

from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import wait_until

ENDS_S = 240.0


def explained(cluster: Cluster, run: str, fact: str) -> str:
    """What explain says once it says this."""

    def said() -> str | None:
        text = cluster.mrt_hpc("explain", run).stdout
        time.sleep(1.0)
        return text if fact in text else None

    return wait_until(said, reason=fact, deadline_s=ENDS_S)


@pytest.mark.timeout(600)
def test_a_python_that_nodes_lack_and_a_setup_line_that_fails(cluster: Cluster) -> None:
    run = cluster.run_dir("early")
    described = cluster.mrt_hpc(
        "init", "early", "--yes", "--python", "/opt/nowhere/bin/python", "--setup", "nosuch load x"
    )
    assert described.returncode == 0, described.stderr
    sent = cluster.mrt_hpc("submit", "quickstart", *options(SHRUNK), "--run", str(run / "run"), "--site", "early")
    assert sent.returncode == 0, sent.stderr
    wait_for_end({"prepare": latest_ids(RunLayout(run / "run"))["prepare"]})
    text = explained(cluster, str(run / "run"), "exit code 127")
    for fact in ("ended before it began its work", "a command was not found", "`nosuch load x`", "python could not be"):
        assert fact in text, text
    assert any(RunLayout(run / "run").events.glob("prepare.*.script.*.jsonl"))
    (advice,) = [line for line in text.splitlines()[:2] if line.startswith("  next:")]
    assert "correct setup in the site profile" in advice and "--site early" in advice
    _, found = examined(cluster, run, cluster.configuration / "mrt-hpc" / "sites" / "early.yaml", "--on-node")
    assert found["node of cpu: setup"]["verdict"] == "doubtful", found
    assert "nosuch load x" in found["node of cpu: setup"]["evidence"]
