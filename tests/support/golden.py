"""Texts that are compared whole with files of ``tests/data/golden``, so that a reviewer reads what a change alters in
them. With ``MRT_HPC_TEST_UPDATE=1`` the tests write the files anew.
"""

from __future__ import annotations

import os
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
UPDATE = "MRT_HPC_TEST_UPDATE"


def assert_golden(name: str, text: str) -> None:
    """Compare a text with the file of this name."""
    path = GOLDEN / name
    if os.environ.get(UPDATE):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs; {UPDATE}=1 writes it anew"
