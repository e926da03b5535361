"""Takes each mechanism out of a copy of the project, and checks that a test notices.

    python tests/chaos/mechanisms.py                 all
    python tests/chaos/mechanisms.py lease heart     those whose name holds one of the words

A mechanism is a part of one function or of a shell script; the indentation of its lines is that of the place where it
stands. The command ends with 1 when no test notices a mechanism.
"""

import ast
import os
import re
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
PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout=300")
NOTICED = 1  # pytest's exit code where tests failed; others are of tests that did not run


@dataclass(frozen=True)
class Mechanism:
    """What it is for, how it is taken out, and which tests must notice."""

    row: str  # the behaviour that is promised
    name: str
    where: str  # ``module:function``, ``module:Class.method``, ``module:`` for the whole module, or a script's path
    code: str  # what stands there once
    tests: str  # with spaces between
    instead: str = "pass"

    @property
    def file(self) -> str:
        module, colon, _ = self.where.partition(":")
        return f"{module.replace('.', '/')}.py" if colon else self.where

    def taken_out(self, source: str) -> str:
        """The text of its file without it."""
        start, end = _extent(source, self.where.partition(":")[2])
        found = []
        for match in re.compile(re.escape(self.code.split("\n")[0])).finditer(source, start, end):
            place = match.start()
            indent = " " * (place - source.rfind("\n", 0, place) - 1)
            code, instead = (text.rstrip("\n").replace("\n", f"\n{indent}") for text in (self.code, self.instead))
            if source.startswith(code, place):
                found.append(source[:place] + instead + source[place + len(code) :])
        if len(found) != 1:
            raise ValueError(f"{self.name}: {self.code!r} stands {len(found)} times in {self.where}")
        return found[0]


def _extent(source: str, function: str) -> tuple[int, int]:
    """Where a function begins and ends, by its name behind those that it stands in; without a name the whole source."""
    if not function:
        return 0, len(source)
    node: ast.AST = ast.parse(source)
    for name in function.split("."):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        named = [inner for inner in ast.walk(node) if isinstance(inner, kinds) and inner.name == name]
        if not named:
            raise ValueError(f"no function {function}")
        node = named[0]
    lines = source.splitlines(keepends=True)
    return sum(map(len, lines[: node.lineno - 1])), sum(map(len, lines[: node.end_lineno]))


def mechanisms() -> list[Mechanism]:
    return [Mechanism(row, **m) for row, entries in YAML(typ="safe").load(TABLE).items() for m in entries]


def noticed(mechanism: Mechanism, copy: Path) -> bool:
    """Whether a test fails without it."""
    file = copy / mechanism.file
    before = file.read_text()
    file.write_text(mechanism.taken_out(before))
    try:
        done = subprocess.run(
            [*PYTEST, *mechanism.tests.split()], cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True,
            timeout=DEADLINE_S, check=False,
        )  # fmt: skip
    finally:
        file.write_text(before)
    if done.returncode not in (0, NOTICED) and done.returncode >= 0:
        raise ValueError(f"{mechanism.name}: the tests did not run:\n{done.stdout[-2000:]}")
    return done.returncode != 0


def main(words: list[str]) -> int:
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
