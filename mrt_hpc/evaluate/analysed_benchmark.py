"""The one benchmark of a suite that an analysis is of. Unsuited evaluations are refused before submission: they would
take GPU-hours.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrt_hpc.analysis.model_samples import BENCHMARKS, SUITE_WITH
from mrt_hpc.errors import UserError, nearest
from mrt_hpc.recipe.choices import Boundaries

if TYPE_CHECKING:
    from mrt_hpc.recipe.schema import EvaluationRecipe
    from mrt_hpc.recipe.sections import Benchmark

Typed = Callable[[str | None, str], str]
"""The command on a suite (None for the same) and benchmark, as typed."""


@dataclass(frozen=True)
class Needs:
    """An analysis's needs of an evaluation."""

    values: bool = False
    """A prover."""
    answers: bool = False
    """A prover that samples answers."""
    boundaries: tuple[Boundaries, ...] = tuple(Boundaries)
    """Boundaries at one of these places."""

    @property
    def suite(self) -> str:
        """One that meets all needs."""
        return SUITE_WITH[self.boundaries[0]]


def analysed_benchmark(recipe: "EvaluationRecipe", needs: Needs, name: str | None, typed: Typed) -> "Benchmark":
    """The benchmark to analyse; refuses a missing prover, an unsuited mode, and an unknown or ambiguous name.

    Args:
        name: None where the user named none.
        typed: commands that errors advise.
    """
    advice = typed(needs.suite, name if name in BENCHMARKS else BENCHMARKS[0])
    _require_prover(recipe, needs, advice)
    suiting = [one.name for one in recipe.evaluation.benchmarks if one.boundaries in needs.boundaries]
    if not suiting:
        raise _unsuited_error(recipe, needs, recipe.evaluation.benchmarks, advice)
    chosen = _choose_benchmark(recipe, suiting, name, typed)
    if chosen.name not in suiting:
        raise _unsuited_error(recipe, needs, [chosen], typed(None, suiting[0]))
    return chosen


def _unsuited_error(
    recipe: "EvaluationRecipe", needs: Needs, benchmarks: "Sequence[Benchmark]", advice: str
) -> UserError:
    """The error for modes that the analysis cannot use."""
    ways = dict.fromkeys("direct" if benchmark.mode is None else benchmark.mode.type for benchmark in benchmarks)
    names = ", ".join(benchmark.name for benchmark in benchmarks)
    return UserError(
        f"this analysis cannot use samples of mode {', '.join(ways)}, which {names} would give",
        value=", ".join(ways),
        where=_suite(recipe),
        expected=f"a mode whose boundaries are {' or '.join(needs.boundaries)}",
        advice=advice,
    )


def _require_prover(recipe: "EvaluationRecipe", needs: Needs, advice: str) -> None:
    """Refuse an evaluation without the needed values or answers."""
    prover = recipe.evaluation.prover
    if prover is None and needs.values:
        raise UserError(
            "this evaluation has no prover, so the prefixes of its samples would not be valued",
            where=_suite(recipe),
            expected="a suite that names a prover, or --set 'evaluation.prover={type: forced_answer, branches: 8}'",
            advice=advice,
        )
    if prover is not None and needs.answers and not prover.samples_answers:
        raise UserError(
            "the prover of this evaluation samples no answers",
            value=prover.type,
            where=_suite(recipe),
            expected="a prover that draws branches, as forced_answer or boxed_answer does",
            advice=advice,
        )


def _choose_benchmark(
    recipe: "EvaluationRecipe", suiting: Sequence[str], name: str | None, typed: Typed
) -> "Benchmark":
    """The named benchmark, or the only one."""
    benchmarks = {benchmark.name: benchmark for benchmark in recipe.evaluation.benchmarks}
    if name is None and len(benchmarks) > 1:
        raise UserError(
            "the suite has several benchmarks, and an analysis is of one",
            where=_suite(recipe),
            expected=f"--benchmark with one of {', '.join(suiting)}",
            advice=typed(None, suiting[0]),
        )
    if name is not None and name not in benchmarks:
        raise UserError(
            "the suite has no such benchmark",
            value=name,
            where="--benchmark",
            expected=f"one of {', '.join(suiting)}",
            advice=typed(None, nearest(name, suiting) or suiting[0]),
        )
    return next(iter(benchmarks.values())) if name is None else benchmarks[name]


def _suite(recipe: "EvaluationRecipe") -> str:
    return f"suite {recipe.evaluation.suite}"
