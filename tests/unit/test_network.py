"""The interface over which the ranks of several nodes connect."""

import socket

import pytest
from commands import refusal

from mrt_hpc.run import network
from mrt_hpc.run.network import GLOO_INTERFACE, address_towards, gloo_interface, interface_of


def test_ranks_of_one_machine_stay_on_loopback_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GLOO_INTERFACE, "ib0")
    here = socket.gethostname()
    assert gloo_interface([here, here]) == "lo"
    assert gloo_interface([here, "another"]) == "ib0"
    monkeypatch.delenv(GLOO_INTERFACE)
    monkeypatch.setattr(network, "address_towards", lambda _: "127.0.0.1")
    assert gloo_interface([here, "another"]) == interface_of("127.0.0.1") == "lo"


def test_a_node_without_a_way_to_another_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = refusal(address_towards, "nowhere.invalid")
    assert refused.value == "nowhere.invalid" and GLOO_INTERFACE in str(refused.advice)
    assert "no interface" in refusal(interface_of, "192.0.2.1").what
    monkeypatch.setattr(socket, "gethostname", lambda: "node1")
    assert "which is this node" in refusal(address_towards, "localhost").what
    assert address_towards("127.0.0.1") == "127.0.0.1"
