"""A real Slurm cluster on this host for the whole session."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from slurm_cluster import Cluster, run_onehost

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ENVIRONMENT_CHECK = "import submitit, pydantic"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running cluster: the one at ONEHOST_ROOT where that is set (it stays up), else one of this session's own."""
    if os.geteuid() != 0:
        pytest.skip("starting a Slurm cluster and changing users needs root")
    if shutil.which("apt-get") is None and shutil.which("slurmctld") is None:
        pytest.skip("Slurm is not installed, and without apt-get it cannot be")
    own = "ONEHOST_ROOT" not in os.environ
    settings = own_settings() if own else {}
    installed = run_onehost(settings, "install")
    if installed.returncode:
        pytest.skip(f"Slurm cannot be installed here: {installed.stderr.strip()}")
    try:
        started = run_onehost(settings, "start")
        assert started.returncode == 0, started.stderr
        yield from prepared(settings)
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
    """The first of so many neighbouring ports that nobody listens on."""

    def free(port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) != 0

    for first in range(18000, 30000, 50):
        if all(free(port) for port in range(first, first + count)):
            return first
    raise RuntimeError(f"no {count} neighbouring ports are free between 18000 and 30000")


def prepared(settings: Mapping[str, str]) -> Iterator[Cluster]:
    """The cluster with Slurm's commands of this process pointed at it, and a folder for run directories."""
    conf = run_onehost(settings, "env").stdout.strip().removeprefix("export SLURM_CONF=")
    user = {**os.environ, **settings}.get("ONEHOST_USER", "researcher")
    home = Path(tempfile.mkdtemp(prefix="mrt-hpc-slurm-runs-"))
    account = pwd.getpwnam(user)
    os.chown(home, account.pw_uid, account.pw_gid)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", conf)
        yield Cluster(settings, user, user_python(settings), home)
    shutil.rmtree(home)


def user_python(settings: Mapping[str, str]) -> str:
    """A Python with the package's requirements that the ordinary user may run.

    MRT_HPC_TEST_PYTHON names one; otherwise it is the one that runs the tests. A Python under root's home cannot be it.
    """
    python = os.environ.get("MRT_HPC_TEST_PYTHON", sys.executable)
    check = run_onehost(settings, "run", python, "-c", ENVIRONMENT_CHECK)
    if check.returncode:
        pytest.skip(
            f"the ordinary user cannot run {python} ({check.stderr.strip().splitlines()[-1:]}); "
            "set MRT_HPC_TEST_PYTHON to a Python with mrt-hpc's requirements that every user may read"
        )
    return python
