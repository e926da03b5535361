"""Makes the verifier of a recipe's section."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrt_hpc.domains.base import Verifier
from mrt_hpc.domains.math.verifier import MathVerifier
from mrt_hpc.recipe.base import as_kind

if TYPE_CHECKING:
    from mrt_hpc.recipe.schema import Grading, ProblemSource


def verifier_of(problems: ProblemSource, grading: Grading) -> Verifier:
    """Return the verifier of a set of problems, with the settings that it takes from ``grading``.

    Raises:
        TypeError: the class that the recipe names is no verifier.
    """
    return as_kind(problems.verifier or MathVerifier(), Verifier).with_defaults(grading)
