"""Starts a cluster for the length of a block, and finds a Python and a checkout that its ordinary user may read."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from slurm_cluster import REPOSITORY, Cluster, run_onehost

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

IMPORT_CHECK = "import submitit, torch, mrt_hpc.plan.jobs"


class NoClusterHereError(Exception):
    """Why there can be none on this machine."""


@contextmanager
def running_cluster(wanted: Mapping[str, str], *, own: bool) -> Iterator[Cluster]:
    """A running cluster.

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
    with folder_of_runs() as home:
        try:
            started = run_onehost(settings, "start")
            assert started.returncode == 0, started.stderr
            yield from prepared(settings, home)
        finally:
            if own:
                wiped = run_onehost(settings, "wipe")
                assert wiped.returncode == 0, wiped.stderr


def own_settings() -> dict[str, str]:
    """A folder, ports and node names of its own, so that sessions do not meet (nodes name control groups)."""
    port = free_ports(8)
    root = tempfile.mkdtemp(prefix="mrt-hpc-slurm-test-")
    Path(root).rmdir()  # onehost makes it: a folder that it did not make, it would not remove
    return {"ONEHOST_ROOT": root, "ONEHOST_PORT": str(port), "ONEHOST_NODE_PREFIX": f"t{port}n"}


def free_ports(count: int) -> int:
    """The first of so many neighbouring ports that are free; every process begins its search elsewhere, as two
    that look at the same moment find the same ports free.
    """

    def free(port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) != 0

    places = range(18000, 30000, 50)
    begin = os.getpid() % len(places)
    for first in [*places[begin:], *places[:begin]]:
        if all(free(port) for port in range(first, first + count)):
            return first
    raise RuntimeError(f"no {count} neighbouring ports are free between 18000 and 30000")


@contextmanager
def folder_of_runs() -> Iterator[Path]:
    """A folder for run directories. It is removed once a cluster that ends has ended; jobs of one that stays up may
    still write, so what cannot be removed is left.
    """
    home = Path(tempfile.mkdtemp(prefix="mrt-hpc-slurm-runs-"))
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def prepared(settings: Mapping[str, str], home: Path) -> Iterator[Cluster]:
    """The cluster with Slurm's commands of this process pointed at it, and a folder for run directories."""
    conf = run_onehost(settings, "env").stdout.strip().removeprefix("export SLURM_CONF=")
    user = {**os.environ, **settings}.get("ONEHOST_USER", "researcher")
    account = pwd.getpwnam(user)
    os.chown(home, account.pw_uid, account.pw_gid)
    with patch.dict(os.environ, SLURM_CONF=conf):
        yield Cluster(settings, user, home, *readable_by_user(settings, home))


def readable_by_user(settings: Mapping[str, str], home: Path) -> tuple[str, Path]:
    """A Python and a checkout that the ordinary user may read: those of the tests, or else copies in the user's folder.

    Neither a checkout nor a virtual environment below root's home is within reach of others.
    """
    check = import_check(settings, sys.executable, REPOSITORY)
    if not check.returncode:
        return sys.executable, REPOSITORY
    checkout, venv = home / "checkout", home / "venv"
    ignored = shutil.ignore_patterns(".git", ".venv", "runs", "__pycache__", "*.egg-info")
    shutil.copytree(REPOSITORY, checkout, ignore=ignored)
    environment = {**os.environ, "MRT_HPC_VENV": str(venv)}
    made = subprocess.run([checkout / "env/setup", "cpu"], env=environment, capture_output=True, text=True, check=False)
    python = str(venv / "bin/python")
    if made.returncode or import_check(settings, python, checkout).returncode:
        raise NoClusterHereError(
            f"the ordinary user cannot use {sys.executable} ({check.stderr.strip().splitlines()[-1:]}), "
            f"and no second environment could be made: {made.stderr.strip()[-500:]}"
        )
    return python, checkout


def import_check(settings: Mapping[str, str], python: str, checkout: Path) -> subprocess.CompletedProcess[str]:
    """Import what tasks need as the ordinary user."""
    return run_onehost(settings, "run", "env", f"PYTHONPATH={checkout}", python, "-c", IMPORT_CHECK)
