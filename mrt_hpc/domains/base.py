r"""A verifier is a section of the recipe that finds the answer in a text, and decides whether it is right.

To add one, write a module with a subclass of ``Verifier`` and add its name to :data:`mrt_hpc.recipe.kinds.VERIFIERS`;
or name a class of any module in the recipe as ``verifier: {type: my_module:MyVerifier}`` of ``data`` or of the
``problems`` of a benchmark.
"""

import ast
import hashlib
import json
import sys
from abc import abstractmethod
from dataclasses import dataclass
from numbers import Real
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


VERDICTS = "true, false, a number from 0 to 1, or None for what cannot be judged"


@dataclass(frozen=True)
class Judgement:
    correct: bool | float | None
    """Or a reward in [0, 1]; None where the answer cannot be judged."""
    readable: bool
    error: str | None = None
    """The verifier's exception, in a line."""
    parts: tuple[float, ...] = ()
    """The rewards that ``correct`` is the weighted sum of, if it is one."""


@dataclass(frozen=True)
class Solution:
    """Everything that a verdict may depend on."""

    answer: str | None
    """None where a trace has none."""
    gold: str
    problem: str
    trace: str
    """All text after the problem; of a branch also the prefix and the prover's text."""


def reward_of(said: object, name: str) -> float | None:
    """Raises NoVerdictError where ``said`` is no verdict."""
    numpy = sys.modules.get("numpy")  # its truth values come from a verifier that has loaded it
    if numpy is not None and isinstance(said, numpy.bool_):
        said = bool(said)
    if said is None:
        return None
    if isinstance(said, Real) and 0.0 <= float(said) <= 1.0:
        return float(said)
    raise NoVerdictError(f"{name} returned {said!r:.80}, which is none of {VERDICTS}")


class Verifier(VerifierSettings):
    """Finds the answer in a completion, and compares it with the gold answer."""

    preload: ClassVar[tuple[str, ...]] = ()
    """Imported by the grader processes before the first answer."""
    _extraction: Extraction = PrivateAttr(default=DEFAULT_EXTRACTION)

    def extract(
        self, text: str, *, thinking: bool = False, thought_end: str = THOUGHT_END, cut: bool = False
    ) -> str | None:
        r"""The answer in a text, by the rule of the problems (``extraction``), by default the content of the last
        ``\boxed{}`` after the thought.

        Runs in the task, so it must be quick whatever the text. A verifier that overrides it finds answers by its own
        rule; it says ``reads_boxes = False`` unless that is about boxes.

        Args:
            text: a completion; for a branch, the forced start of the answer and the completion together.
            thinking: whether the text begins inside a thought.
            cut: whether the token limit cut the text off.
        """
        return RULES[self._extraction](text, thinking=thinking, thought_end=thought_end, cut=cut)

    @property
    def extraction(self) -> Extraction:
        """A verifier with an ``extract`` of its own ignores it."""
        return self._extraction

    @property
    def sees_trace(self) -> bool:
        return type(self).judge_trace is not Verifier.judge_trace

    @property
    def members(self) -> "tuple[Verifier, ...]":
        """Itself and its parts."""
        return (self,)

    def certain(self, answer: str, gold: str) -> bool | None:  # noqa: ARG002 - some know more
        """The verdict where it is known at once; None leaves it to ``judge``. Runs in the task, so it must be quick."""
        return None

    def reads(self, gold: str) -> bool | None:  # noqa: ARG002 - some verifiers know
        """Whether a gold answer can be read, where known at once; None asks ``judge``. Runs in the task."""
        return None

    def probes(self, gold: str) -> dict[str, bool]:  # noqa: ARG002 - some verifiers know
        """Answers that show whether a gold answer can be reached, and whether each must be right. Those that must be
        wrong count only together: one may be right by chance.
        """
        return {}

    @abstractmethod
    def judge(self, answer: str, gold: str) -> Judgement:
        """Whether an answer is right. Runs in its own process, which is killed at the time or memory limit: it may
        hang, raise anything or exhaust the memory, and the answer then scores 0.
        """

    def judge_trace(self, solution: Solution) -> Judgement:
        """In the place of ``judge`` and ``certain`` where problem or trace matter; asked without an answer too."""
        return self.judge(solution.answer or "", solution.gold)

    @property
    def longest_wall_s(self) -> float:
        """Clock seconds of a judgement by the verifier's own limits, 0 without. The grader process is not ended
        before.
        """
        return 0.0

    def may_take_long(self, answer: str) -> bool:  # noqa: ARG002 - some verifiers know
        """Whether judging looks long: others then do not wait for it."""
        return False

    def refusal(self) -> UserError | None:
        """The reason why nothing can be judged on this machine. It tries the real thing, in seconds at most: ``plan``
        and ``doctor`` show the reason, and a task stops with it.
        """
        return None

    def with_defaults(self, grading: Grading) -> Self:  # noqa: ARG002 - some take over more
        """With its settings from the recipe's ``grading``."""
        return self

    def with_extraction(self, rule: Extraction) -> Self:
        """A verifier with an ``extract`` of its own keeps that."""
        verifier = self.model_copy()
        verifier._extraction = rule
        return verifier


# -- grader digest -----------------------------------------------------------------------------------------------------
# The digest of a grader: of everything that may change a verdict, so that a changed grader is noticed.


PACKAGES = ("math-verify", "latex2sympy2_extended", "sympy", "antlr4-python3-runtime")


def grader_digest(verifier: Verifier, time_limit_s: float, memory_limit_gib: float) -> str:
    """SHA-256 of the verifier's fields, rule of extraction and code (without comments and docstrings), of its packages,
    and of the limits of its processes.
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
    """Of the package, and of the user's own class or function."""
    folder = Path(mrt_hpc.domains.__file__).parent
    modules = [path for path in sorted(folder.rglob("*.py")) if "small_world" not in path.parts]
    return [*modules, *(path for one in verifier.members if ":" in one.type for path in code_files(one.type))]


def _syntax(path: Path) -> str:
    """The syntax tree without docstrings; the content of a file that is no Python."""
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
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
