"""Makes the verifier of a recipe's section."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrt_hpc.domains.base import Verifier
from mrt_hpc.domains.math.verifier import MathVerifier
from mrt_hpc.recipe.base import as_kind
from mrt_hpc.recipe.extraction import DEFAULT_EXTRACTION

if TYPE_CHECKING:
    from mrt_hpc.recipe.sections.data import ProblemSource
    from mrt_hpc.recipe.sections.grading import Grading


def verifier_of(problems: ProblemSource, grading: Grading) -> Verifier:
    """Return the verifier of a set of problems, with their rule of extraction and what it takes from ``grading``.

    Raises:
        TypeError: the class that the recipe names is no verifier.
    """
    verifier = as_kind(problems.verifier or MathVerifier(), Verifier).with_defaults(grading)
    return verifier.with_extraction(problems.extraction or DEFAULT_EXTRACTION)
