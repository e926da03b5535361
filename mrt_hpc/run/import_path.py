"""Where a process that this one starts finds this package."""

from __future__ import annotations

import os
from pathlib import Path


def import_path() -> dict[str, str]:
    """The environment variable with which a child imports the package from where this process has it."""
    mine, given = str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([mine, given] if given else [mine])}
