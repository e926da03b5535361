"""Settings for all tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

# Machines that run tests are shared and slow by turns: no test fails for being slow once.
settings.register_profile("mrt-hpc", deadline=None)
settings.load_profile("mrt-hpc")

ROOT = Path(__file__).parents[1]
FIRST = ("slurm", "chaos", "integration", "install")
"""Folders in the order in which their tests begin where several processes share the work: the longest first, and unit
tests last, as they fill what is left.
"""


def pytest_configure() -> None:
    """Commands print to a pipe as they do for users: readline, which pytest loads, sets a width of 80 for the processes
    that share the tests.
    """
    os.environ.pop("COLUMNS", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests begin first."""
    items.sort(key=lambda item: FIRST.index(_folder(item.nodeid)) if _folder(item.nodeid) in FIRST else len(FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Share the tests out among processes by `what_stays_together`."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return what_stays_together(nodeid)

    return Scheduler(config, log)


def what_stays_together(nodeid: str) -> str:
    """Tests on Slurm share a cluster, those of another slow file servers and runs; unit tests share nothing."""
    folder = _folder(nodeid)
    if folder == "slurm":
        return folder
    return nodeid.split("::", 1)[0] if folder in FIRST else nodeid


def _folder(nodeid: str) -> str:
    return Path(nodeid.split("::", 1)[0]).parts[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Benchmarks and training sets beside the checkout; tests that read them are skipped where they are absent."""
    path = ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("no ../shared/data beside this checkout")
    return path
