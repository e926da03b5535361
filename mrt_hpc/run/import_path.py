"""Where a process that this one starts finds this package."""

from __future__ import annotations

import os
from pathlib import Path


def import_path() -> dict[str, str]:
    """The environment variables with which a child imports the package from where this process has it, and nothing from
    the folder that the command was typed in, which may be another user's.
    """
    mine, given = str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([mine, given] if given else [mine]), "PYTHONSAFEPATH": "1"}
