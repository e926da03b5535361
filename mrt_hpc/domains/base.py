r"""Defines a verifier: a section of the recipe that finds the answer in a text, and decides whether it is right.

Add a verifier: one module with a subclass of ``Verifier``, and its name in :data:`mrt_hpc.recipe.kinds.VERIFIERS`;
or a class of your own anywhere, named in the recipe as ``verifier: {type: my_module:MyVerifier}`` of ``data`` or of the
``problems`` of a benchmark.
"""

import ast
import hashlib
import json
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from pydantic import PrivateAttr

import mrt_hpc.domains
from mrt_hpc.domains.extraction import RULES, THOUGHT_END
from mrt_hpc.domains.extraction import after_thought as after_thought  # verifiers of the user's own import it from here
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.choices import DEFAULT_EXTRACTION, Extraction
from mrt_hpc.recipe.kinds import VerifierSettings
from mrt_hpc.recipe.sections import Grading
from mrt_hpc.recipe.user_code import code_files


class NoVerdictError(TypeError):
    """A verifier returned something that is no verdict, which it does on every machine."""


@dataclass(frozen=True)
class Judgement:
    """The judgement of a verifier on one answer."""

    correct: bool
    readable: bool
    """False if the verifier cannot read the answer."""
    error: str | None = None
    """What the verifier raised, in a line; None where it raised nothing."""


class Verifier(VerifierSettings):
    """Finds the answer in a completion, and compares it with the gold answer."""

    preload: ClassVar[tuple[str, ...]] = ()
    """Modules that the grader processes import before the first answer."""
    _extraction: Extraction = PrivateAttr(default=DEFAULT_EXTRACTION)

    def extract(
        self, text: str, *, thinking: bool = False, thought_end: str = THOUGHT_END, cut: bool = False
    ) -> str | None:
        r"""The answer in a text, by the rule of the problems (``extraction``); None without one. By default it is the
        content of the last ``\boxed{}`` after the thought.

        Runs in the task, so it must be quick whatever the text. A verifier that overrides it finds answers by a rule of
        its own; it says ``reads_boxes = False`` unless that rule is about boxes.

        Args:
            text: a completion; for a branch, the forced start of the answer and the completion together.
            thinking: whether the text begins inside a thought.
            thought_end: the closing tag of the thought.
            cut: whether the token limit cut the text off.
        """
        return RULES[self._extraction](text, thinking=thinking, thought_end=thought_end, cut=cut)

    @property
    def extraction(self) -> Extraction:
        """The rule by which answers are found; a verifier with an ``extract`` of its own makes no use of it."""
        return self._extraction

    def certain(self, answer: str, gold: str) -> bool | None:  # noqa: ARG002 - some know more
        """The verdict where it is known at once; None leaves it to ``judge``. Runs in the task, so it must be quick."""
        return None

    def reads(self, gold: str) -> bool | None:  # noqa: ARG002 - some verifiers know
        """Whether a gold answer can be read, where that is known at once; None asks ``judge``. Runs in the task."""
        return None

    @abstractmethod
    def judge(self, answer: str, gold: str) -> Judgement:
        """Whether an answer is right. Runs in a process of its own that is killed at the time or memory limit: it may
        hang, raise anything or exhaust the memory, and the answer then scores 0.
        """

    @property
    def longest_wall_s(self) -> float:
        """The seconds on the clock that a judgement may take by limits of the verifier's own; 0 where it has none. The
        grader process is not ended before.
        """
        return 0.0

    def may_take_long(self, answer: str) -> bool:  # noqa: ARG002 - some verifiers know
        """Whether an answer looks as if judging it took long: others then do not wait for it."""
        return False

    def refusal(self) -> UserError | None:
        """The reason why nothing can be judged on this machine, where the verifier needs something that it lacks. It
        tries the real thing, in seconds at most: ``plan`` and ``doctor`` show the reason, and a task stops with it.
        """
        return None

    def with_defaults(self, grading: Grading) -> Self:  # noqa: ARG002 - some take over more
        """The verifier with the settings that it takes from the recipe's ``grading``."""
        return self

    def with_extraction(self, rule: Extraction) -> Self:
        """The verifier, which finds answers by a rule; one with an ``extract`` of its own keeps that."""
        verifier = self.model_copy()
        verifier._extraction = rule
        return verifier


# -- grader digest -----------------------------------------------------------------------------------------------------
# The digest of a grader: of everything that may change a verdict, so that a changed grader is noticed.


PACKAGES = ("math-verify", "latex2sympy2_extended", "sympy", "antlr4-python3-runtime")
"""The packages that read and compare answers."""


def grader_digest(verifier: Verifier, time_limit_s: float, memory_limit_gib: float) -> str:
    """SHA-256 of the verifier's fields, its rule of extraction and its code, of the packages that it uses, and of the
    limits of its processes. Comments and docstrings are no code.

    Args:
        verifier: with the settings that it takes from the recipe.
        time_limit_s: processor seconds for one answer.
        memory_limit_gib: of a grader process.
    """
    from mrt_hpc.recipe.lock import installed_version  # it imports what processes of graders do without

    described = {
        "verifier": {"type": verifier.type, **verifier.model_dump(mode="json")},
        "extraction": verifier.extraction,
        "packages": {name: installed_version(name) for name in PACKAGES},
        "limits": [time_limit_s, memory_limit_gib],
        "code": [hashlib.sha256(_syntax(path).encode()).hexdigest() for path in _code(verifier)],
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def _code(verifier: Verifier) -> list[Path]:
    """The modules of the package that judge answers, and the code of the user's own class or function."""
    folder = Path(mrt_hpc.domains.__file__).parent
    modules = [path for path in sorted(folder.rglob("*.py")) if "small_world" not in path.parts]
    return [*modules, *(code_files(verifier.type) if ":" in verifier.type else [])]


def _syntax(path: Path) -> str:
    """The syntax tree of a module as text, without its docstrings; the content of a file that is no Python."""
    content = path.read_bytes()
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):
        return repr(content)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [line for line in body if not _is_text(line)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(line: ast.stmt) -> bool:
    """Whether a statement is a text alone: a docstring, of a field too."""
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
