"""How a task's processes reach each other: by loopback on one machine, else by the interface that leads to the other
node.
"""

import fcntl
import os
import socket
import struct
from collections.abc import Sequence

from mrt_hpc.errors import Advice, UserError, retryable_error

LOOPBACK = "127.0.0.1"
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
"""A site's choice of gloo's interface between nodes."""
ON_LOOPBACK = {GLOO_INTERFACE: "lo", "NCCL_SOCKET_IFNAME": "=lo"}
"""For processes of one node: gloo and NCCL listen on loopback only, whatever a site set for several."""
_ADDRESS_OF_INTERFACE = 0x8915


def gloo_interface(hosts: Sequence[str]) -> str:
    """A rank's interface for gloo: the site's choice, loopback where all ``hosts`` are this machine, else the one
    towards another rank.
    """
    others = [host for host in hosts if host != socket.gethostname()]
    if not others:
        return ON_LOOPBACK[GLOO_INTERFACE]
    return os.environ.get(GLOO_INTERFACE) or interface_of(address_towards(others[0]))


def address_towards(other: str) -> str:
    """This node's IPv4 address towards another one. Nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((other, 9))
            address = str(probe.getsockname()[0])
    except OSError as error:
        raise _no_way(other, str(error)) from error
    if address.startswith("127.") and other not in (LOOPBACK, socket.gethostname()):
        raise _no_way(other, f"its name leads to {address}, which is this node")
    return address


def _no_way(other: str, why: str) -> UserError:
    return retryable_error(
        f"this node has no way by IPv4 to another node of its task: {why}",
        value=other,
        where=socket.gethostname(),
        expected="nodes whose names lead to an IPv4 address that other nodes reach (getent ahostsv4 NAME)",
        advice=Advice(
            "for a trainer name the interface between nodes (environment: {{{gloo_interface}: ib0}} "
            "in the site profile); or use one node (resources.inference.nodes, "
            "resources.trainer.ranks_per_node)",
            gloo_interface=GLOO_INTERFACE,
        ),
    )


def interface_of(address: str) -> str:
    """The interface with this IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            asked = struct.pack("256s", name.encode())
            try:
                answer = fcntl.ioctl(probe, _ADDRESS_OF_INTERFACE, asked)
            except OSError:  # it has no IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    raise _no_way(address, "no interface of this node has the address")


def free_port(address: str) -> int:
    """A TCP port that is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def answers(head: str) -> bool:
    """Whether HOST:PORT accepts connections."""
    host, _, port = head.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1.0).close()
    except OSError:
        return False
    return True
