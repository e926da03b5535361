"""From the recipe's ``verifier`` to one that judges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrt_hpc.domains.base import Verifier
from mrt_hpc.domains.math.verifier import MathVerifier

if TYPE_CHECKING:
    from mrt_hpc.recipe.schema import Grading, ProblemSource


def verifier_of(problems: ProblemSource, grading: Grading) -> Verifier:
    """The verifier of a set of problems, with what it takes over from ``grading``.

    Raises:
        TypeError: the class that the recipe names is none.
    """
    chosen = problems.verifier or MathVerifier()
    if not isinstance(chosen, Verifier):
        raise TypeError(f"{type(chosen).__name__} is no subclass of mrt_hpc.domains.base.Verifier")
    return chosen.with_defaults(grading)
