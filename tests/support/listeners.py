"""Where the processes of a run take connections, and another user of the machine who makes some."""

import subprocess
import sys
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import psutil

NOBODY = 65534
RUBBISH = """
import socket, struct, sys
kept = []
for place in sys.argv[1:]:
    for number in range(8):  # the first numbers that gloo expects, and what may be taken for a message
        kept.append(socket.create_connection(place.rsplit(":", 1)))
        kept[-1].sendall(struct.pack("<Q", number) + b"A" * 4096)
print("sent", flush=True)
sys.stdin.read()
"""


def listeners(processes: Iterable[psutil.Process]) -> list[tuple[str, int]]:
    """The addresses and TCP ports at which processes listen, those below them included."""
    found: set[tuple[str, int]] = set()
    for process in processes:
        try:
            family = [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
        for one in family:
            tcp = _connections(one, "tcp")
            found |= {(each.laddr.ip, each.laddr.port) for each in tcp if each.status == psutil.CONN_LISTEN}
    return sorted(found)


def unix_sockets(processes: Iterable[psutil.Process]) -> set[Path]:
    """The paths of the sockets that processes have."""
    connections = [connection for process in processes for connection in _connections(process, "unix")]
    return {Path(one.laddr) for one in connections if str(one.laddr).startswith("/")}


def beyond_loopback(found: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Those that other machines may reach."""
    return [place for place in found if not ip_address(place[0].removeprefix("::ffff:")).is_loopback]


def send_rubbish(places: Iterable[tuple[str, int]]) -> subprocess.Popen[str]:
    """Another user who has connected to some listeners and sent what no rank sends; ends when its input is closed."""
    words = [f"{address}:{port}" for address, port in places]
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", RUBBISH, *words], user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "sent\n"
    return process


def _connections(process: psutil.Process, kind: str) -> list[Any]:
    try:
        return process.net_connections(kind)
    except psutil.Error:  # it has ended
        return []
