"""Takes each mechanism out of a copy of the project, and sees that a test notices.

    python tests/chaos/mechanisms.py                 all
    python tests/chaos/mechanisms.py lease heart     those whose name holds one of the words

Ends with 1 when a mechanism is missed by nobody.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_suffix(".yaml")
IGNORED = shutil.ignore_patterns(".git", ".venv", "runs", "__pycache__", "*.egg-info", ".*_cache")
DEADLINE_S = 600
NOTICED = 1
"""pytest's exit code where tests failed; others are of tests that did not run."""


@dataclass(frozen=True)
class Mechanism:
    """What it is for, how it is taken out, and which tests must notice."""

    row: str
    """Of the behaviour that is promised."""
    name: str
    file: str
    code: str
    """Stands there once."""
    instead: str
    tests: tuple[str, ...]


def mechanisms() -> list[Mechanism]:
    """Those of the table."""
    table = YAML(typ="safe").load(TABLE)
    return [Mechanism(row, **{**m, "tests": tuple(m["tests"])}) for row, entries in table.items() for m in entries]


def noticed(mechanism: Mechanism, copy: Path) -> bool:
    """Whether a test fails without it.

    Raises:
        ValueError: the code is not what the mechanism says, or the tests did not run.
    """
    file = copy / mechanism.file
    before = file.read_text()
    if before.count(mechanism.code) != 1:
        raise ValueError(f"{mechanism.name}: {mechanism.code!r} stands {before.count(mechanism.code)} times in {file}")
    file.write_text(before.replace(mechanism.code, mechanism.instead))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout=300", *mechanism.tests],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    finally:
        file.write_text(before)
    if done.returncode not in (0, NOTICED) and done.returncode >= 0:
        raise ValueError(f"{mechanism.name}: the tests did not run:\n{done.stdout[-2000:]}")
    return done.returncode != 0


def main(words: list[str]) -> int:
    """A line a mechanism."""
    missed = []
    with tempfile.TemporaryDirectory(prefix="mrt-hpc-mechanisms-") as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=IGNORED)
        copy.parent.chmod(0o755)  # the ordinary user of a cluster has to read it
        for mechanism in mechanisms():
            if words and not any(word in f"{mechanism.row} {mechanism.name}" for word in words):
                continue
            began = time.monotonic()
            found = noticed(mechanism, copy)
            missed += [] if found else [mechanism]
            word = "noticed" if found else "NOT NOTICED"
            print(f"{word:12s} {time.monotonic() - began:5.0f} s  {mechanism.row}: {mechanism.name}", flush=True)
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
