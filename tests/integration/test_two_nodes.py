"""Ranks on two nodes whose own names lead to themselves, as in the hosts file of Debian and Ubuntu."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mrt_hpc.errors import ExitCode

pytestmark = pytest.mark.timeout(200)
SCRIPT = Path(__file__).with_name("two_nodes.sh")
AS_NODES = ("unshare", "--user", "--net", "--mount", "--uts", "--map-root-user")
LIMIT_S = 15
JOIN = f"""
import os, sys, time
from pathlib import Path
from mrt_hpc.errors import UserError
from mrt_hpc.training.rank_messages import exchange
from mrt_hpc.training.rendezvous import Ranks, join
began, rank = time.monotonic(), int(sys.argv[2]) - 1
try:
    join(Ranks(rank, 2, 0, 2), Path(sys.argv[1]), timeout_s={LIMIT_S})
    print("joined", exchange(rank))
except UserError as error:
    assert time.monotonic() - began < 2 * {LIMIT_S}
    print(error.message(), flush=True)
    os._exit(int(error.exit_code))  # now and then a thread of gloo aborts the process on Python's own way out
"""


def on_two_nodes(folder: Path, **variables: str) -> list[tuple[int, str]]:
    """The exit code and the output of a rank on each node."""
    cable = ("ip", "link", "add", "cable1", "type", "veth", "peer", "name", "cable2")
    if subprocess.run([*AS_NODES, *cable], check=False).returncode:
        pytest.skip("this machine lets nobody but root make network namespaces, or has no ip (Debian: iproute2)")
    command = [*AS_NODES, "bash", str(SCRIPT), str(folder), sys.executable, "-c", JOIN, str(folder / "address.json")]
    environment = {name: value for name, value in os.environ.items() if name != "GLOO_SOCKET_IFNAME"}
    subprocess.run(command, env={**environment, "OMP_NUM_THREADS": "1", **variables}, check=True, timeout=150)
    return [(int((folder / f"code{n}").read_text()), (folder / f"out{n}").read_text()) for n in (1, 2)]


def test_ranks_meet_over_the_interface_that_leads_from_node_to_node(tmp_path: Path) -> None:
    for code, output in on_two_nodes(tmp_path):
        assert code == 0 and "joined [0, 1]" in output, output


def test_each_rank_that_cannot_reach_the_other_ends_in_its_time_and_says_what_to_name(tmp_path: Path) -> None:
    """The site names an interface that leads nowhere: one rank is refused, and the other one waits."""
    for code, output in on_two_nodes(tmp_path, GLOO_SOCKET_IFNAME="lo"):
        assert code == ExitCode.RETRYABLE, output
        assert "environment: {GLOO_SOCKET_IFNAME: ib0}" in output
