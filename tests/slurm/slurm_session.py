"""Starts a cluster for the length of a block, and finds a Python and a checkout that its ordinary user may read."""

import compileall
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest.mock import patch

from slurm_cluster import REPOSITORY, Cluster, run_onehost


class NoClusterHereError(Exception):
    """Why there can be none on this machine."""


@contextmanager
def running_cluster(wanted: Mapping[str, str], *, own: bool) -> Iterator[Cluster]:
    """A running cluster, with Slurm's commands of this process pointed at it, and a folder for run directories. Jobs of
    a cluster that stays up may still write there, so what cannot be removed is left.

    Args:
        wanted: settings of ``onehost``.
        own: a fresh one that ends with the block; else the one at ONEHOST_ROOT, which stays up.

    Raises:
        NoClusterHereError: it needs root, and Slurm or the means to install it.
    """
    if os.geteuid() != 0:
        raise NoClusterHereError("starting a Slurm cluster and changing users needs root")
    if shutil.which("apt-get") is None and shutil.which("slurmctld") is None:
        raise NoClusterHereError("Slurm is not installed, and without apt-get it cannot be")
    settings = {**wanted, **own_settings()} if own else dict(wanted)
    installed = run_onehost(settings, "install")
    if installed.returncode:
        raise NoClusterHereError(f"Slurm cannot be installed here: {installed.stderr.strip()}")
    home = Path(tempfile.mkdtemp(prefix="mrt-hpc-slurm-runs-"))
    try:
        started = run_onehost(settings, "start")
        assert started.returncode == 0, started.stderr
        conf = run_onehost(settings, "env").stdout.strip().removeprefix("export SLURM_CONF=")
        user = {**os.environ, **settings}.get("ONEHOST_USER", "researcher")
        account = pwd.getpwnam(user)
        os.chown(home, account.pw_uid, account.pw_gid)
        with patch.dict(os.environ, SLURM_CONF=conf):
            yield Cluster(settings, user, home, *readable_by(user, home))
    finally:
        if own:
            wiped = run_onehost(settings, "wipe")
            assert wiped.returncode == 0, wiped.stderr
        shutil.rmtree(home, ignore_errors=True)


def own_settings() -> dict[str, str]:
    """A folder, ports and node names of its own, so that sessions do not meet (nodes name control groups). Processes
    begin their search of free ports at different places, as two that look at the same moment find the same ports free.
    """

    def is_free(port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) != 0

    places = range(18000, 30000, 50)
    begin = os.getpid() % len(places)
    port = next(first for first in [*places[begin:], *places[:begin]] if all(map(is_free, range(first, first + 8))))
    root = tempfile.mkdtemp(prefix="mrt-hpc-slurm-test-")
    Path(root).rmdir()  # onehost makes it: a folder that it did not make, it would not remove
    return {"ONEHOST_ROOT": root, "ONEHOST_PORT": str(port), "ONEHOST_NODE_PREFIX": f"t{port}n"}


@cache
def import_check(user: str, python: str, checkout: Path) -> subprocess.CompletedProcess[str]:
    """Import what tasks need as a user. A user who may write no bytecode would compile the package at each start of a
    task, so this is done before.
    """
    for folder in ("mrt_hpc", "tests/slurm", "tests/support"):
        compileall.compile_dir(checkout / folder, quiet=2)
    needs = "import submitit, torch, mrt_hpc.plan.jobs"
    return run_onehost({"ONEHOST_USER": user}, "run", "env", f"PYTHONPATH={checkout}", python, "-c", needs)


def readable_by(user: str, home: Path) -> tuple[str, Path]:
    """A Python and a checkout that a user may read: those of the tests, or else copies in the user's folder.

    Neither a checkout nor a virtual environment below root's home is within reach of others.
    """
    found = import_check(user, sys.executable, REPOSITORY)
    if not found.returncode:
        return sys.executable, REPOSITORY
    checkout, venv = home / "checkout", home / "venv"
    ignored = shutil.ignore_patterns(".git", ".venv", "runs", "__pycache__", "*.egg-info")
    shutil.copytree(REPOSITORY, checkout, ignore=ignored)
    environment = {**os.environ, "MRT_HPC_VENV": str(venv)}
    made = subprocess.run([checkout / "env/setup", "cpu"], env=environment, capture_output=True, text=True, check=False)
    python = str(venv / "bin/python")
    if made.returncode or import_check(user, python, checkout).returncode:
        raise NoClusterHereError(
            f"the ordinary user cannot use {sys.executable} ({found.stderr.strip().splitlines()[-1:]}), "
            f"and no second environment could be made: {made.stderr.strip()[-500:]}"
        )
    return python, checkout
