r"""Defines a verifier: a section of the recipe that finds the answer in a text, and decides whether it is right.

Add a verifier: one module with a subclass of ``Verifier``, and its name in :data:`mrt_hpc.recipe.registry.VERIFIERS`;
or a class of your own anywhere, named in the recipe as ``verifier: {type: my_module:MyVerifier}`` of ``data`` or of the
``problems`` of a benchmark.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from mrt_hpc.domains.boxed import THOUGHT_END, extract_answer
from mrt_hpc.recipe.verifier import VerifierSettings

if TYPE_CHECKING:
    from mrt_hpc.recipe.schema import Grading


@dataclass(frozen=True)
class Judgement:
    """The judgement of a verifier on one answer."""

    correct: bool
    readable: bool
    """False if the verifier cannot read the answer."""


class Verifier(VerifierSettings):
    """Finds the answer in a completion, and compares it with the gold answer."""

    preload: ClassVar[tuple[str, ...]] = ()
    """Modules that the grader processes import before the first answer."""

    def extract(
        self, text: str, *, thinking: bool = False, thought_end: str = THOUGHT_END, cut: bool = False
    ) -> str | None:
        r"""The answer in a text: as a rule the content of the last ``\boxed{}`` after the thought; None without one.

        Runs in the task, so it must be quick whatever the text.

        Args:
            text: a completion; for a branch, the forced start of the answer and the completion together.
            thinking: whether the text begins inside a thought.
            thought_end: the closing tag of the thought.
            cut: whether the token limit cut the text off.
        """
        return extract_answer(text, thinking=thinking, thought_end=thought_end, cut=cut)

    def certain(self, answer: str, gold: str) -> bool | None:  # noqa: ARG002 - some know more
        """The verdict where it is known at once; None leaves it to ``judge``. Runs in the task, so it must be quick."""
        return None

    def reads(self, gold: str) -> bool | None:  # noqa: ARG002 - some can tell
        """Whether a gold answer can be read, where that is known at once; None asks ``judge``. Runs in the task."""
        return None

    @abstractmethod
    def judge(self, answer: str, gold: str) -> Judgement:
        """Whether an answer is right. Runs in a process of its own that is killed at the time or memory limit: it may
        hang, raise anything or exhaust the memory, and the answer then scores 0.
        """

    def may_take_long(self, answer: str) -> bool:  # noqa: ARG002 - some can tell
        """Whether an answer looks as if judging it took long: others then do not wait for it."""
        return False

    def with_defaults(self, grading: Grading) -> Self:  # noqa: ARG002 - some take over more
        """The verifier with the settings that it takes from the recipe's ``grading``."""
        return self


def after_thought(text: str, *, thinking: bool, thought_end: str) -> str | None:
    """The part of a text after its thought; None if the thought has not ended."""
    _, ended, rest = text.partition(thought_end)
    return rest if ended else None if thinking else text
