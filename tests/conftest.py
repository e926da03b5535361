"""Settings for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

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


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in a hook of the same name
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several processes share the tests, those of one file stay together, as they share servers and runs; those
    on Slurm stay together, as they share a cluster. Unit tests are shared out one by one.
    """
    items.sort(key=lambda item: FIRST.index(_folder(item)) if _folder(item) in FIRST else len(FIRST))
    for item in items:
        if _folder(item) in FIRST:
            together = "slurm" if _folder(item) == "slurm" else str(item.path)
            item.add_marker(pytest.mark.xdist_group(together))


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT / "tests").parts[0]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Benchmarks and training sets beside the checkout; tests that read them are skipped where they are absent."""
    path = ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("no ../shared/data beside this checkout")
    return path
