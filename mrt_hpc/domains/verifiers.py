"""Makes the verifiers of a recipe's sections, and asks them whether they can judge on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from mrt_hpc.domains.base import Verifier
from mrt_hpc.domains.math.verifier import MathVerifier
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.base import as_kind
from mrt_hpc.recipe.choices import DEFAULT_EXTRACTION
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.recipe.sections import Grading, ProblemSource

if TYPE_CHECKING:
    from mrt_hpc.domains.grader_queue import GraderPool


def verifier_of(problems: ProblemSource, grading: Grading) -> Verifier:
    """Return the verifier of a set of problems, with their rule of extraction and what it takes from ``grading``.

    Raises:
        TypeError: the class that the recipe names is no verifier.
    """
    verifier = as_kind(problems.verifier or MathVerifier(), Verifier).with_defaults(grading)
    return verifier.with_extraction(problems.extraction or DEFAULT_EXTRACTION)


def verifiers_of(recipe: Experiment) -> list[Verifier]:
    """The verifiers of all problems of a recipe, each once."""
    sources = [recipe.data, *(benchmark.problems for benchmark in recipe.evaluation.benchmarks)]
    problems = [source for source in sources if isinstance(source, ProblemSource)]
    return list(dict.fromkeys(verifier_of(source, recipe.grading) for source in problems))


def refusals(recipe: Experiment) -> list[UserError]:
    """The reasons why answers to problems of a recipe cannot be judged on this machine; most have none."""
    refused = (verifier.refusal() for verifier in verifiers_of(recipe))
    return [refusal for refusal in refused if refusal is not None]


def unreadable_answers(
    answers: Sequence[str], verifier: Verifier, open_pool: Callable[[], AbstractContextManager[GraderPool]]
) -> set[str]:
    """The answers that the verifier cannot read.

    Where all answers can be read at once, as numbers can, no grader process is started.

    Args:
        answers: gold answers.
        verifier: that of the pool.
        open_pool: starts the grader processes, which are killed when an answer hangs.

    Raises:
        UserError: the grader processes cannot be started.
    """
    known = {answer: verifier.reads(answer) for answer in answers}
    unknown = [answer for answer, readable in known.items() if readable is None]
    if unknown:
        with open_pool() as pool:
            known |= dict(zip(unknown, pool.readable_all(unknown), strict=True))
    return {answer for answer, readable in known.items() if not readable}
