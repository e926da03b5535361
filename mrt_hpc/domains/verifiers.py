"""Makes the verifier of a recipe's section."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrt_hpc.domains.base import Verifier
from mrt_hpc.domains.math.verifier import MathVerifier

if TYPE_CHECKING:
    from mrt_hpc.recipe.schema import Grading, ProblemSource


def verifier_of(problems: ProblemSource, grading: Grading) -> Verifier:
    """Return the verifier of a set of problems, with the settings that it takes from ``grading``.

    Raises:
        TypeError: the class that the recipe names is no verifier.
    """
    chosen = problems.verifier or MathVerifier()
    if not isinstance(chosen, Verifier):
        raise TypeError(f"{type(chosen).__name__} is no subclass of mrt_hpc.domains.base.Verifier")
    return chosen.with_defaults(grading)
