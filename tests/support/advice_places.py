"""The places of the package that advise a command, and those of them that have made what a command printed."""

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import mrt_hpc
from mrt_hpc import errors
from mrt_hpc.cli.main import main
from mrt_hpc.errors import Advice, line_of

PACKAGE = Path(mrt_hpc.__file__).parent
COMMAND = re.compile(rf"(?<![\w.-])mrt-hpc (?:{{\w+}}|(?:{'|'.join(sorted(main.commands))})(?![\w`-]))")
"""The name of the package with that of a command, or with a value that is one. A command alone in backticks is only
mentioned.
"""
SHOWN = re.compile(r"\s+")


class Place(NamedTuple):
    """A text of the package that names a command to type."""

    file: str
    function: str
    text: str  # the template; a value of an f-string is {}
    lines: range  # of the statement that holds it
    is_advice: bool  # whether the text stands within a call that makes advice, which tells the place by its lines

    @property
    def name(self) -> str:
        return f"{self.file} {self.function}: {self.text}"

    @property
    def pattern(self) -> re.Pattern[str]:
        """What the text looks like with its values, however its lines are broken."""
        parts = re.split(r"\{\w*\}", self.text.replace("{{", "\0").replace("}}", "\1"))
        words = (r"\s+".join(map(re.escape, SHOWN.split(part))) for part in parts)
        return re.compile(".*?".join(words).replace("\0", r"\{").replace("\1", r"\}"), re.DOTALL)


def text_of(node: ast.JoinedStr | ast.Constant) -> str:
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)


def places_in(tree: ast.Module, file: str) -> Iterator[Place]:
    above = {below: node for node in ast.walk(tree) for below in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr | ast.Constant) or isinstance(above[node], ast.JoinedStr):
            continue
        text, holder, scope, is_advice = text_of(node), above[node], [], False
        if not COMMAND.search(text) or isinstance(holder, ast.Expr):  # a docstring
            continue
        is_said = True
        while not isinstance(holder, ast.stmt):
            is_said &= not (isinstance(holder, ast.keyword) and holder.arg in ("expected", "where", "help"))
            is_advice |= isinstance(holder, ast.keyword) and holder.arg == "advice"
            is_advice |= isinstance(holder, ast.Call) and ast.unparse(holder.func) == "Advice"
            holder = above[holder]
        if not is_said:
            continue
        over: ast.AST | None = holder
        while over is not None:
            scope += [over.name] if isinstance(over, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else []
            over = above.get(over)
        name = ".".join(reversed(scope)) or ast.unparse(getattr(holder, "targets", [holder])[0]).partition(" ")[0]
        yield Place(file, name, text, range(holder.lineno, (holder.end_lineno or holder.lineno) + 1), is_advice)


@cache
def places() -> list[Place]:
    """The places of the whole package, in the order of its files."""
    return [
        place
        for path in sorted(PACKAGE.rglob("*.py"))
        if "mrt-hpc " in (source := path.read_text())
        for place in places_in(ast.parse(source), str(path.relative_to(PACKAGE)))
    ]


class Made(NamedTuple):
    """Advice that was made while a command ran."""

    text: str
    frames: frozenset[tuple[str, int]]  # file of the package and line

    def is_made_at(self, place: Place) -> bool:
        return any(file == place.file and line in place.lines for file, line in self.frames)


@contextmanager
def recorded() -> Iterator[list[Made]]:
    """All advice that is made meanwhile, with where."""
    made: list[Made] = []
    fill = Advice.__new__

    def filled(cls: type[Advice], template: str, **values: Any) -> Advice:
        advice = fill(cls, template, **values)
        frames, frame = [], sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename.startswith(str(PACKAGE)):
                frames.append((str(Path(frame.f_code.co_filename).relative_to(PACKAGE)), frame.f_lineno))
            frame = frame.f_back
        made.append(Made(advice, frozenset(frames)))
        return advice

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(errors.Advice, "__new__", filled)
        yield made


def printed_by(printed: str, made: list[Made]) -> list[tuple[Place, str]]:
    """The places whose advice is in what a command printed, each with the lines there that hold it."""
    found = []
    for place in places():
        own = [one for one in made if one.is_made_at(place)]
        if place.is_advice and not own:  # patterns take long
            continue
        matches = list(place.pattern.finditer(printed))
        if matches and (not place.is_advice or any(is_of(place, one, printed) for one in own)):
            ends = [(printed.rfind("\n", 0, m.start()) + 1, printed.find("\n", m.end())) for m in matches]
            found.append((place, "\n".join(printed[begin : end if end >= 0 else None] for begin, end in ends)))
    return found


def is_of(place: Place, made: Made, printed: str) -> bool:
    """Whether advice that was made at a place was printed."""
    return place.pattern.search(made.text) is not None and (made.text in printed or line_of(made.text) in printed)
