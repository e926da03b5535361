"""Texts that are compared whole with files of ``tests/golden``, so that a reviewer reads what a change alters in them.
``env/test --update`` writes the files.
"""

import os

from basics import ROOT

GOLDEN = ROOT / "tests" / "golden"


def assert_golden(name: str, text: str) -> None:
    """Compare a text with the file of this name, or write the file where an update is asked for."""
    path = GOLDEN / name
    if os.environ.get("MRT_HPC_TEST_UPDATE"):
        path.write_text(text)
    assert text == path.read_text(), "type: env/test --update, and read the difference"
