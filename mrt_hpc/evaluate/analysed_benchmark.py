"""The one benchmark of a suite that an analysis is of. An evaluation that does not suit the analysis is refused before
it is submitted: it would take GPU-hours.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrt_hpc.analysis.model_samples import SUITE_WITH
from mrt_hpc.analysis.paper_results import BENCHMARKS
from mrt_hpc.errors import UserError, nearest
from mrt_hpc.recipe.choices import Boundaries

if TYPE_CHECKING:
    from mrt_hpc.recipe.schema import EvaluationRecipe
    from mrt_hpc.recipe.sections import Benchmark

Typed = Callable[[str | None, str], str]
"""The command on a suite (None for the same one) and a benchmark, as the user types it."""


@dataclass(frozen=True)
class Needs:
    """What an analysis needs of an evaluation."""

    values: bool = False
    """A prover."""
    answers: bool = False
    """A prover that samples answers."""
    boundaries: tuple[Boundaries, ...] = tuple(Boundaries)
    """A way of evaluating whose boundaries are at one of these places."""

    @property
    def suite(self) -> str:
        """One that has all this."""
        return SUITE_WITH[self.boundaries[0]]

    def suits(self, benchmark: "Benchmark") -> bool:
        """Whether the way of evaluating of a benchmark is one that the analysis makes sense of."""
        return benchmark.boundaries in self.boundaries


def analysed_benchmark(recipe: "EvaluationRecipe", needs: Needs, name: str | None, typed: Typed) -> "Benchmark":
    """The benchmark of an evaluation that an analysis is of.

    Args:
        recipe: of the evaluation.
        needs: of the analysis.
        name: of the benchmark; None where the user named none.
        typed: gives the commands that errors advise.

    Raises:
        UserError: the evaluation has no prover that the analysis needs, it has several benchmarks and none is named,
            there is no such benchmark, or it is sampled in a mode that the analysis cannot use.
    """
    advice = typed(needs.suite, name if name in BENCHMARKS else BENCHMARKS[0])
    _require_prover(recipe, needs, advice)
    suiting = [benchmark.name for benchmark in recipe.evaluation.benchmarks if needs.suits(benchmark)]
    if not suiting:
        raise _unsuited(recipe, needs, recipe.evaluation.benchmarks, advice)
    chosen = _chosen(recipe, suiting, name, typed)
    if chosen.name not in suiting:
        raise _unsuited(recipe, needs, [chosen], typed(None, suiting[0]))
    return chosen


def _unsuited(recipe: "EvaluationRecipe", needs: Needs, benchmarks: "Sequence[Benchmark]", advice: str) -> UserError:
    """The error about benchmarks that are sampled in modes that the analysis cannot use."""
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
    """Refuse an evaluation without the values, or without the answers, that an analysis needs.

    Raises:
        UserError: they are not asked for.
    """
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


def _chosen(recipe: "EvaluationRecipe", suiting: Sequence[str], name: str | None, typed: Typed) -> "Benchmark":
    """The benchmark that is named, or the only one.

    Raises:
        UserError: there is no such benchmark, or there are several.
    """
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
