"""A function of the user's own as a verifier: it compares an answer with the gold answer."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import numpy as np
from pydantic import field_validator
from pydantic_core import PydanticCustomError

from mrt_hpc.domains.base import Judgement, Verifier
from mrt_hpc.recipe.registry import imported

if TYPE_CHECKING:
    from collections.abc import Callable


class FunctionVerifier(Verifier):
    """A final answer in a box that a function of the user's own takes for right.

    The function gets the answer and the gold answer, and returns true or false. It runs in the grader processes, so it
    may hang or crash: the answer then scores 0.
    """

    type: str
    """The function as ``module:function``; the module may lie beside the recipe."""

    @field_validator("type")
    @classmethod
    def _takes_two_texts(cls, name: str) -> str:
        try:
            inspect.signature(imported(name)).bind("answer", "gold")
        except TypeError as error:
            raise PydanticCustomError(
                "wrong_arguments",
                "a function of two texts, the answer and the gold answer; of {name} Python says: {reason}",
                {"name": name, "reason": str(error)},
            ) from error
        return name

    @property
    def function(self) -> Callable[[str, str], object]:
        """The function itself."""
        found: Callable[[str, str], object] = imported(self.type)
        return found

    def judge(self, answer: str, gold: str) -> Judgement:
        """What the function returns.

        Raises:
            TypeError: it returns something else than true or false, of Python or numpy.
        """
        correct = self.function(answer, gold)
        if isinstance(correct, np.bool_):
            correct = bool(correct)
        if not isinstance(correct, bool):
            raise TypeError(f"{self.type} returned {correct!r}, which is neither true nor false")
        return Judgement(correct=correct, readable=True)
