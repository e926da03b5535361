"""After every step of every protocol, whatever a crash leaves on the disk: what was promised is there, and the next
attempt ends as if nothing had happened.
"""

from collections.abc import Iterator
from functools import cache

import pytest
from explore import Found, damaged, explored, over_a_network
from protocols import Protocol
from protocols_of_runs import DAMAGED, PROTOCOLS
from sites import change_sites, excused
from tiny_training import tiny_engines

STATES = 10_000


@pytest.fixture(scope="module", autouse=True)
def _engines() -> Iterator[None]:
    with tiny_engines():
        yield


@cache
def found(protocol: type[Protocol]) -> Found:
    return explored(protocol(), states=protocol.states)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_every_crash_state_is_resumed(protocol: type[Protocol]) -> None:
    assert found(protocol).violations == []


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_mistakes_of_a_network_filesystem_are_survived(protocol: type[Protocol]) -> None:
    assert over_a_network(protocol()).violations == []


@pytest.mark.parametrize("protocol", DAMAGED, ids=lambda protocol: protocol.name)
def test_damage_is_mended_or_refused(protocol: type[Protocol]) -> None:
    assert damaged(protocol()).violations == []


def test_there_are_enough_states() -> None:
    states = {protocol.name: len(found(protocol).states) for protocol in PROTOCOLS}
    assert sum(states.values()) >= STATES, states


def test_every_change_of_a_file_was_crashed_before_and_after() -> None:
    crashed = {site.split(" ")[0] for protocol in PROTOCOLS for site in found(protocol).sites}
    never = {place: name for place, name in change_sites().items() if place not in crashed and not excused(place, name)}
    assert never == {}, "no protocol of tests/crash comes there, and no exception in sites.py says why"
