"""What the tests of installation share."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
_NO_REGISTRY = re.compile(r"Connection refused|error sending request|dns error|client error \(Connect\)")


def shell(script: str) -> str:
    """What a script prints, run by bash in the root of the checkout."""
    return subprocess.run(["bash", "-euc", script], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout


def require_registry(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode and _NO_REGISTRY.search(done.stderr):
        pytest.skip(f"the package registry cannot be reached from here: {done.stderr.strip().splitlines()[-1]}")
