"""Settings for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# Machines that run tests are shared and slow by turns: no test fails for being slow once.
settings.register_profile("mrt-hpc", deadline=None)
settings.load_profile("mrt-hpc")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Benchmarks and training sets beside the checkout; tests that read them are skipped where they are absent."""
    path = ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("no ../shared/data beside this checkout")
    return path
