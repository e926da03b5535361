"""Jobs that only have the ids of a run's: on another cluster that sees the same filesystem, and after a controller has
lost its state and counts again. And a listing of the queue that is older than the jobs which it should have.
"""

import os
import re
import shutil
from pathlib import Path

import pytest
from basics import ROOT
from slurm_cluster import Cluster
from slurm_submissions import SHRUNK, sent
from submitted import age, latest_ids

from mrt_hpc.run.layout import RunLayout

LATER = {"begin": "now+1hour"}
"""Jobs that stay in the queue for the length of a test."""
CACHED = (ROOT / "tests" / "cases" / "slurm_identity.sh").read_text()


def count_again(cluster: Cluster, name: str) -> None:
    """Let the controller lose all that it knows, as the controller of a cluster of this name."""
    root = Path(cluster.settings["ONEHOST_ROOT"])
    assert cluster.onehost("kill-controller").returncode == 0
    for path in (root / "state").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    conf = root / "etc/slurm.conf"
    conf.write_text(re.sub(r"(?m)^ClusterName=.*$", f"ClusterName={name}", conf.read_text()))
    started = cluster.onehost("start-controller")
    assert started.returncode == 0, started.stderr + (root / "log/slurmctld.log").read_text()[-2000:]


def theses(cluster: Cluster, number: int) -> set[str]:
    """The ids of so many jobs of the user's that have nothing to do with a run."""
    words = ("sbatch", "--parsable", "--hold", "--job-name=thesis", "--wrap=true")
    return {cluster.as_user(*words).stdout.strip() for _ in range(number)}


def queued(cluster: Cluster, name: str = "") -> set[str]:
    """The ids of the user's jobs that have this in their names."""
    listed = cluster.as_user("squeue", "--me", "--noheader", "--format=%A %j").stdout.splitlines()
    return {line.split()[0] for line in listed if name in line.split()[1]}


def serve_old(folder: Path, ids: dict[str, str]) -> None:
    """Let the wrapper of squeue have a listing of just before the first of these jobs."""
    (newest := folder / "newest").write_text(f"{min(map(int, ids.values())) - 1}\n")
    newest.chmod(0o666)


def typed_behind_a_cache(cluster: Cluster, folder: Path, *words: str, seconds: int = 10) -> str:
    """What `mrt-hpc` prints where a wrapper of squeue serves old listings."""
    wrapper = folder / "squeue"
    wrapper.write_text(CACHED.format(folder=folder, squeue=shutil.which("squeue"), seconds=seconds))
    wrapper.chmod(0o755)
    command = (cluster.python, "-m", "mrt_hpc", *words)
    done = cluster.as_user("env", f"PATH={folder}:{os.environ['PATH']}", *command, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(600)
@pytest.mark.parametrize("has_accounting", [True, False])
def test_a_listing_that_lacks_new_jobs_doubles_none_and_cancels_all(cluster: Cluster, has_accounting: bool) -> None:
    """Accounting knows the jobs that the listing lacks; without it the next listing is waited for."""
    run = cluster.run_dir("cached") / "run"
    folder = run.parent / "bin"
    before = queued(cluster)
    layout, ids = sent(cluster, run, SHRUNK, sbatch=LATER)
    jobs = queued(cluster) - before
    assert jobs == {*ids.values()}
    folder.mkdir(mode=0o755)
    serve_old(folder, ids)
    if not has_accounting:
        (folder / "sacct").write_text("#!/bin/sh\necho 'Slurm accounting storage is disabled' >&2; exit 1\n")
        (folder / "sacct").chmod(0o755)
    assert "0 job(s) submitted, 5 queued before" in typed_behind_a_cache(cluster, folder, "submit", str(run))
    assert queued(cluster) - before == jobs
    if has_accounting:
        serve_old(folder, ids)
        assert "cancelled 5 job(s)" in typed_behind_a_cache(cluster, folder, "cancel", str(run))
    else:
        assert cluster.mrt_hpc("cancel", str(run)).returncode == 0
    assert (queued(cluster), latest_ids(RunLayout(layout.root))) == (before, ids)


@pytest.mark.timeout(600)
def test_other_jobs_that_have_the_ids_of_a_run_are_left_alone(plain_cluster: Cluster) -> None:
    """The last one here: the cluster of this module ends before that of the session, which has to begin before it."""
    run = plain_cluster.run_dir("identity") / "run"
    layout, ids = sent(plain_cluster, run, SHRUNK, sbatch=LATER)
    newest = max(map(int, ids.values()))
    try:
        count_again(plain_cluster, "second")
        foreign = theses(plain_cluster, newest)
        assert foreign >= {*ids.values()}
        for command, code in (("status", 0), ("explain", 0), ("submit", 2), ("cancel", 2)):
            done = plain_cluster.mrt_hpc(command, str(run))
            words = " ".join((done.stdout + done.stderr).split())
            assert done.returncode == code, words
            assert "submitted on cluster onehost, and this is cluster second" in words, (command, words)
        assert queued(plain_cluster) == foreign
    finally:
        count_again(plain_cluster, "onehost")
    foreign = theses(plain_cluster, newest)
    age(layout)
    assert "stopped" in plain_cluster.mrt_hpc("status", str(run)).stdout
    assert "nothing to cancel" in plain_cluster.mrt_hpc("cancel", str(run)).stdout
    again = plain_cluster.mrt_hpc("submit", str(run))
    assert f"{len(ids)} job(s) submitted, 0 queued before" in again.stdout, again.stdout + again.stderr
    assert foreign.isdisjoint(own := {*latest_ids(layout).values()})
    assert f"cancelled {len(own)} job(s)" in plain_cluster.mrt_hpc("cancel", str(run)).stdout
    assert queued(plain_cluster) == foreign
