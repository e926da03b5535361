"""Programs: the answer is Python code, the gold answer a text of assertions that it has to pass."""

import ast
import builtins
import importlib.util
import math
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from mrt_hpc.domains.base import Judgement, Verifier, after_thought
from mrt_hpc.domains.extraction import THOUGHT_END
from mrt_hpc.domains.sandbox import START_S, STARTS, Limits, does_not_work, evaluate_apart
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.base import Gib, Seconds

Place = tuple[int, int]
"""Line and column of an assertion."""

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
WALL_FACTOR = 4.0
"""Seconds on the clock for a second of the processor, at most."""
PROBE = """
import os, socket

def escapes(file, process):
    found = []
    def trying(name, action, refusal=OSError):
        try:
            action()
        except refusal:
            return
        except BaseException:
            pass
        found.append(name)
    trying("read your files", lambda: open(file).read())
    trying("see your processes", lambda: os.kill(process, 0), ProcessLookupError)
    trying("start processes", lambda: os.fork() or os._exit(0))
    trying("open sockets", socket.socket)
    trying("write outside of its folder", lambda: open("/escaped", "w"))
    return found
"""
"""An answer that tries to get out of its sandbox, and says what it could do."""
BRANCHES = (ast.If, ast.IfExp, ast.Try, ast.TryStar, ast.While, ast.Match, ast.ClassDef)
"""What is in one of them may be passed over."""
UNSUPPORTED = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)


class PythonVerifier(Verifier):
    """A program in the last fenced code block after the thought, right where it passes the assertions of the gold
    answer. Programs run in a sandbox made by bubblewrap, without which there is no grading.

    A program is right only where this was shown: its code was executed as a module; then each assertion of the gold
    answer that stands in no branch ran and held, in its place; and the gold answer came to its end. The adversary is
    the answer: an optimiser that finds any way to a reward, with all of Python at hand. Its sandbox
    (:mod:`mrt_hpc.domains.sandbox`) has no network, files or processes of yours, and limits on memory, processor time
    and files. The assertions are evaluated in a second sandbox, where no code of the answer runs, and only that one
    holds the nonce and the pipe of the verdict. The two exchange plain values, so an early exit, a class that equals
    everything, changed ``builtins`` or a walk through frames changes nothing there; and the answer never sees the gold
    answer. Faults of the kernel and of bubblewrap are out of scope.

    Gold answers call functions and classes of the answer by their names. They give and get plain values (None, numbers,
    texts, bytes, lists, tuples, sets, dicts, ranges, fractions, decimals, dates; what is changed in place comes back,
    as another object), or objects of the answer, which stay in its sandbox: their methods and attributes can be used,
    they equal no plain value, and have no truth value. What only the answer could say, such as what one of its objects
    contains, is an error of the gold answer. Names of Python's own mean Python's own. A gold answer is not read where
    no assertion depends on the answer, or it has coroutines, catches or derives from classes of the answer, or imports
    what is not installed.
    """

    reads_boxes = False
    type: Literal["python"] = "python"
    time_limit_s: Seconds = 2.0
    """Processor seconds for a program with its assertions."""
    memory_limit_gib: Gib = 1.0
    """Memory of a program, GiB. Its assertions, in a process of their own, may take as much again."""

    def extract(
        self, text: str, *, thinking: bool = False, thought_end: str = THOUGHT_END, cut: bool = False
    ) -> str | None:
        """The last whole block of code after the thought; None where there is none, or the text was cut inside one."""
        searched = after_thought(text, thinking=thinking, thought_end=thought_end)
        if searched is None or (cut and searched.count("```") % 2):
            return None
        blocks = _BLOCK.findall(searched)
        return blocks[-1].strip() or None if blocks else None

    def refusal(self) -> UserError | None:
        """The reason why there is no sandbox here: a program that tries to get out of one is judged."""
        try:
            with tempfile.NamedTemporaryFile() as file:
                held = self.judge(PROBE, f"assert escapes({file.name!r}, {os.getpid()}) == []").correct
        except UserError as error:
            return error
        return None if held else does_not_work("a program in the sandbox could get out of it, or did not run")

    @property
    def longest_wall_s(self) -> float:
        """The seconds after which the sandboxes are ended, however often they are started."""
        return STARTS * (WALL_FACTOR * self.time_limit_s + START_S)

    def reads(self, gold: str) -> bool:
        """Whether the assertions are Python, depend on the answer, and can be evaluated."""
        return bool(assertions(gold))

    def judge(self, answer: str, gold: str) -> Judgement:
        """Whether it was shown that the assertions hold.

        Raises:
            UserError: there is no sandbox, or none starts.
        """
        if not is_python(answer):
            return Judgement(correct=False, readable=False)
        if not (asserted := assertions(gold)):
            return Judgement(correct=False, readable=False, error="the gold answer has no assertion on the answer")
        limits = Limits(math.ceil(self.time_limit_s), int(self.memory_limit_gib * 2**30))
        outcome = evaluate_apart(answer, gold, limits, WALL_FACTOR * self.time_limit_s)
        shown = outcome.finished and asserted.were_all_in(outcome.held)
        return Judgement(correct=shown, readable=outcome.fault is None, error=outcome.fault)


@dataclass(frozen=True)
class Assertions:
    """The assertions of a gold answer that depend on the answer; false where there are none."""

    always: frozenset[Place] = frozenset()
    """Those that run wherever the gold answer comes to its end."""
    in_branches: frozenset[Place] = frozenset()
    """Those that may be passed over."""

    def __bool__(self) -> bool:
        return bool(self.always or self.in_branches)

    def were_all_in(self, held: frozenset[Place]) -> bool:
        """Whether those that held are all that had to, and at least one."""
        return self.always <= held and not held.isdisjoint(self.always | self.in_branches)


def assertions(gold: str) -> Assertions:
    """The assertions of a gold answer; none where it cannot be evaluated."""
    if not is_python(gold):
        return Assertions()
    tree = ast.parse(gold)
    unknown = _names(tree, ast.Load) - _bound(tree) - set(dir(builtins))
    if not unknown or not _can_be_evaluated(tree, unknown):
        return Assertions()
    known = set(dir(builtins)) | _imported(tree)
    asserted = [
        (assertion, branch)
        for assertion, branch in _asserted(tree, _names(tree, ast.Load))
        if _can_fail(assertion, known)
    ]
    places = [((assertion.lineno, assertion.col_offset), branch) for assertion, branch in asserted]
    return Assertions(
        frozenset(place for place, branch in places if not branch),
        frozenset(place for place, branch in places if branch),
    )


def _asserted(node: ast.AST, used: set[str], *, branch: bool = False) -> Iterator[tuple[ast.Assert, bool]]:
    """The assertions below a node, and whether they stand in a branch; those of functions that are never called left
    out.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Assert):
            yield child, branch
        elif not isinstance(child, ast.FunctionDef) or branch or child.name in used:
            yield from _asserted(child, used, branch=branch or isinstance(child, BRANCHES))


def _can_fail(assertion: ast.Assert, known: set[str]) -> bool:
    """Whether what is asserted depends on more than constants and names of Python's own."""
    return not isinstance(assertion.test, ast.Tuple) and bool(_names(assertion.test, ast.Load) - known)


def _can_be_evaluated(tree: ast.Module, unknown: set[str]) -> bool:
    """Whether all that a gold answer does can be done in a process without the answer.

    Args:
        tree: of the gold answer.
        unknown: names that are the answer's.
    """
    for node in ast.walk(tree):
        if isinstance(node, UNSUPPORTED):
            return False
        if isinstance(node, ast.ExceptHandler) and node.type is not None and unknown & _names(node.type, ast.Load):
            return False
        if isinstance(node, ast.ClassDef) and any(unknown & _names(base, ast.Load) for base in node.bases):
            return False
    return all(importlib.util.find_spec(name) for name in _modules(tree))


def _modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0] or "."


def _names(tree: ast.AST, context: type[ast.expr_context]) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, context)}


def _imported(tree: ast.Module) -> set[str]:
    aliases = (a for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for a in node.names)
    return {(alias.asname or alias.name).partition(".")[0] for alias in aliases}


def _bound(tree: ast.Module) -> set[str]:
    """The names that a gold answer gives a meaning to."""
    names = _names(tree, ast.Store) | _imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            names.add(node.name)
    return names


def is_python(text: str) -> bool:
    """Whether a text is a Python program, as far as its grammar says."""
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
