"""Takes each mechanism out of a copy of the project, and checks that a test notices.

    python tests/chaos/mechanisms.py                 all
    python tests/chaos/mechanisms.py lease heart     those whose name holds one of the words

A mechanism is an expression or some statements of one function, or a part of a shell script. Python code is compared as
a syntax tree, so that comments and layout do not matter. The command ends with 1 when no test notices a mechanism.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ruamel.yaml import YAML

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    """The behaviour that is promised."""
    name: str
    where: str
    """``module:function``, ``module:Class.method``, ``module:`` for what stands in none, or the path of a script."""
    code: str
    """What stands there once."""
    instead: str
    tests: tuple[str, ...]

    @property
    def file(self) -> str:
        """The path of its file."""
        module, colon, _ = self.where.partition(":")
        return f"{module.replace('.', '/')}.py" if colon else self.where

    def taken_out(self, source: str) -> str:
        """The text of its file without it.

        Raises:
            ValueError: its code does not stand there exactly once.
        """
        _, colon, function = self.where.partition(":")
        found = places(source, function, self.code) if colon else text_places(source, self.code)
        if len(found) != 1:
            raise ValueError(f"{self.name}: {self.code!r} stands {len(found)} times in {self.where}")
        return found[0].replaced(source, self.instead)


@dataclass(frozen=True)
class Place:
    """A part of a file, in bytes."""

    start: int
    end: int
    indent: int
    """Columns before the first line of code that takes its place."""

    def replaced(self, source: str, text: str) -> str:
        """The file with other code there."""
        data = source.encode()
        lines = textwrap.indent(text.rstrip("\n"), " " * self.indent).lstrip(" ") if self.indent else text
        return (data[: self.start] + lines.encode() + data[self.end :]).decode()


def text_places(source: str, code: str) -> list[Place]:
    """Where a text stands in a script."""
    starts = [n for n in range(len(source)) if source.startswith(code, n)]
    return [Place(len(source[:n].encode()), len(source[: n + len(code)].encode()), 0) for n in starts]


def places(source: str, function: str, code: str) -> list[Place]:
    """Where an expression, or some statements, stand in a function.

    Args:
        source: of the module.
        function: its name, behind those of the classes and functions that it stands in, with dots between.
        code: what is looked for.

    Raises:
        ValueError: there is no such function.
    """
    body: ast.AST = ast.parse(source)
    for name in filter(None, function.split(".")):
        named = [n for n in ast.walk(body) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
        body = next((n for n in named if n.name == name), ast.Pass())
    if isinstance(body, ast.Pass):
        raise ValueError(f"no function {function}")
    wanted = ast.parse(code).body
    offsets = [0]
    for line in source.encode().splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    return [_place(first, last, offsets) for first, last in _matches(body, wanted)]


def _matches(body: ast.AST, wanted: list[ast.stmt]) -> Iterator[tuple[ast.AST, ast.AST]]:
    """The first and the last node of each match."""
    if len(wanted) == 1 and isinstance(wanted[0], ast.Expr):
        expression = ast.dump(wanted[0].value)
        statements = [n for n in ast.walk(body) if isinstance(n, ast.Expr)]
        yield from ((n, n) for n in statements if ast.dump(n.value) == expression)
        inner = {id(n.value) for n in statements}
        others = (n for n in ast.walk(body) if isinstance(n, ast.expr) and id(n) not in inner)
        yield from ((n, n) for n in others if ast.dump(n) == expression)
        return
    dumps = [ast.dump(statement) for statement in wanted]
    for node in ast.walk(body):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None) or []
            for n in range(len(block) - len(dumps) + 1) if isinstance(block, list) else ():
                if [ast.dump(statement) for statement in block[n : n + len(dumps)]] == dumps:
                    yield block[n], block[n + len(dumps) - 1]


def _place(first: ast.AST, last: ast.AST, offsets: list[int]) -> Place:
    start = offsets[first.lineno - 1] + first.col_offset  # type: ignore[attr-defined]
    end = offsets[last.end_lineno - 1] + last.end_col_offset  # type: ignore[attr-defined]
    return Place(start, end, first.col_offset if isinstance(first, ast.stmt) else 0)


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
    file.write_text(mechanism.taken_out(before))
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
