"""What a user is asked to type is put together in one place, which quotes each word."""

import ast
import pickle
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from basics import ROOT
from tables import tables

from mrt_hpc.errors import Advice, UserError

PACKAGE = ROOT / "mrt_hpc"
VALUE = "\0"
"""Stands for a value in the text of an f-string."""
IN_A_COMMAND = re.compile(r"mrt-hpc [a-z]+(?:[^;,:()`\n\0.]|\.(?! ))* \S*\0")
"""A value among the words of a command."""


def text_of(node: ast.JoinedStr) -> str:
    return "".join(str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values)


def choices(node: ast.expr) -> list[ast.expr]:
    """What a value may be: the branches of a condition, or the value itself."""
    if not isinstance(node, ast.IfExp | ast.BoolOp):
        return [node]
    below = [node.body, node.orelse] if isinstance(node, ast.IfExp) else node.values
    return [choice for value in below for choice in choices(value)]


def put_together(node: ast.expr) -> bool:
    """Whether a text may be made of others and of values: by an f-string, a sum, or a format."""
    methods = [one.func for one in choices(node) if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute)]
    by_method = any(method.attr in ("format", "join", "replace") for method in methods)
    return by_method or any(isinstance(one, ast.JoinedStr | ast.BinOp) for one in choices(node))


def pairs(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The names that an assignment binds, each with its value."""
    for target in node.targets if isinstance(node, ast.Assign) else []:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from ((ast.unparse(t), v) for t, v in zip(target.elts, node.value.elts, strict=True))
        elif isinstance(target, ast.Name):
            yield target.id, node.value


def unsafe(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for scope in ast.walk(tree):
        if isinstance(scope, ast.Call):
            template = scope.args[0] if scope.args and ast.unparse(scope.func) == "Advice" else None
            if template is not None and put_together(template) and not is_of_the_program(template):
                yield scope.lineno, "the template of advice is put together"
            for keyword in scope.keywords:
                if keyword.arg == "advice" and put_together(keyword.value):
                    yield scope.lineno, "advice is put together"
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            calls = [node for node in ast.walk(scope) if isinstance(node, ast.Call)]
            advised = [k.value for call in calls for k in call.keywords if k.arg == "advice"]
            asked = {one.id for value in advised for one in choices(value) if isinstance(one, ast.Name)}
            for node in ast.walk(scope):
                for name, value in pairs(node):
                    if name in asked and put_together(value):
                        yield value.lineno, f"{name} is put together, and is advice"
        if isinstance(scope, ast.JoinedStr) and IN_A_COMMAND.search(text_of(scope)):
            yield scope.lineno, "a command is put together"


def is_of_the_program(node: ast.expr) -> bool:
    """Whether an f-string only chooses among texts of the program."""
    values = [part.value for part in getattr(node, "values", ()) if isinstance(part, ast.FormattedValue)]
    return isinstance(node, ast.JoinedStr) and all(isinstance(value, ast.IfExp) for value in values)


def test_no_command_is_put_together_but_by_the_one_that_quotes() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}:{line}: {what}"
        for path in PACKAGE.rglob("*.py")
        for line, what in unsafe(ast.parse(path.read_text()))
    }
    assert sorted(found) == [], "Advice('mrt-hpc status {run}', run=run)"


def test_a_command_that_is_put_together_is_found() -> None:
    for wrong in tables("advice")["put_together"]:
        assert [*unsafe(ast.parse(wrong))], wrong


def test_values_are_words_and_advice_stays_as_it_is() -> None:
    run = Path("a b;$(id)")
    inner = Advice("mrt-hpc status {run}", run=run)
    whole = Advice("{inner}, or mrt-hpc plan {words} {{x}}", inner=inner, words=["--set", "a={b: 'c d'}", inner])
    first, _, second = whole.partition(", or ")
    assert shlex.split(first) == ["mrt-hpc", "status", str(run)]
    assert shlex.split(second) == ["mrt-hpc", "plan", "--set", "a={b: 'c d'}", *shlex.split(inner), "{x}"]
    error = pickle.loads(pickle.dumps(UserError("no", advice=whole, where=Path("a\nnext: b"))))
    assert (error.advice, type(error.advice)) == (whole, Advice)
    assert [line for line in error.message().splitlines() if "next:" in line][-1] == f"  next:     {whole}"
    assert len(error.message().splitlines()) == 3
