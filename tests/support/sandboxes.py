"""Whether there is what programs of answers run in; without it their tests are skipped, and fail in CI."""

import os
import shutil

import pytest

REQUIRED = "MRT_HPC_TEST_SANDBOX"

needs_sandbox = pytest.mark.skipif(
    shutil.which("bwrap") is None and os.environ.get(REQUIRED) != "required",
    reason="not installed: bwrap (Debian, Ubuntu and RHEL: bubblewrap)",
)
