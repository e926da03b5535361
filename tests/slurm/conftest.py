"""Real Slurm clusters on this host."""

import os
from collections.abc import Iterator

import pytest
from slurm_cluster import Cluster
from slurm_session import NoClusterHereError, running_cluster

QOS_SETTINGS = {"ONEHOST_PREEMPT": "qos", "ONEHOST_PREEMPT_SIGNAL": "0", "ONEHOST_NODES": "2"}
RULES_SETTINGS = {"ONEHOST_RULES": "1", "ONEHOST_NODES": "2"}
PLAIN_SETTINGS = {"ONEHOST_SHAPE": "plain", "ONEHOST_NODES": "2"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(name == "cluster" or name.endswith("_cluster") for name in getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running cluster: the one at ONEHOST_ROOT where that is set (it stays up), else one of this session's own."""
    yield from _cluster({}, own="ONEHOST_ROOT" not in os.environ)


@pytest.fixture(scope="module")
def qos_cluster() -> Iterator[Cluster]:
    """One that preempts by QOS, and does not send preempted jobs the signal that they have asked for."""
    yield from _cluster(QOS_SETTINGS, own=True)


@pytest.fixture(scope="module")
def plain_cluster() -> Iterator[Cluster]:
    """One without accounting, with small limits, on which nothing is queued again by itself and preemption cancels."""
    yield from _cluster(PLAIN_SETTINGS, own=True)


@pytest.fixture(scope="module")
def rules_cluster() -> Iterator[Cluster]:
    """One whose plugin writes comments of its own, lets no job start again and shortens limits."""
    yield from _cluster(RULES_SETTINGS, own=True)


def _cluster(settings: dict[str, str], own: bool) -> Iterator[Cluster]:
    try:
        with running_cluster(settings, own=own) as cluster:
            yield cluster
    except NoClusterHereError as reason:
        pytest.skip(str(reason))
