"""Several processes at once, in thousands of orders, with kills and processes that stand still."""

from collections.abc import Iterator
from functools import cache

import pytest
from contests import CONTESTS, Contest
from explore import Found, contested
from tiny_training import tiny_engines

INTERLEAVINGS = 10_000


@pytest.fixture(scope="module", autouse=True)
def _engines() -> Iterator[None]:
    with tiny_engines(noisy=True):
        yield


@cache
def found(contest: type[Contest]) -> Found:
    return contested(contest(), interleavings=contest.interleavings)


@pytest.mark.parametrize("contest", CONTESTS, ids=lambda contest: contest.name)
def test_every_interleaving_keeps_what_must_hold(contest: type[Contest]) -> None:
    assert found(contest).violations == []


def test_there_are_enough_interleavings() -> None:
    counts = {contest.name: len(found(contest).states) for contest in CONTESTS}
    assert sum(counts.values()) >= INTERLEAVINGS, counts
