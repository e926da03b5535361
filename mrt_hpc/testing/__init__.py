"""Functions for your own tests of an algorithm, a prover, a loss, a verifier or a way of evaluating. Each puts the
class into the recipe of a run, and tries it on the run's stored rollouts, without a server or a GPU.

    from mrt_hpc.testing import check_algorithm

    def test_my_algorithm() -> None:
        check_algorithm("my_method:LastEpisode", "runs/quickstart", "algorithm.weight=0.5")

A function fails with AssertionError where the class breaks what a run takes for granted, and returns what is doubtful.
"""

from collections.abc import Callable
from os import PathLike
from typing import Any

from mrt_hpc.errors import Advice, UserError
from mrt_hpc.recipe.find import expand_home
from mrt_hpc.testing.class_in_run import PLACES, ClassInRun
from mrt_hpc.testing.promises import Promise

__all__ = ["Promise", "check_algorithm", "check_loss", "check_mode", "check_prover", "check_verifier"]

Own = str | type | Callable[..., Any]
"""A class, or a function that is a verifier, or its name as a recipe has it: ``module:Class``."""


def check_algorithm(own: Own, run: str | PathLike[str], *overrides: str, iteration: int | None = None) -> list[Promise]:
    """Learn a stored iteration: its advantages must be finite and repeatable, and leave the rollouts as they were.

    Args:
        own: the class, whose module can be imported by its name.
        run: the directory of a run with rollouts.
        overrides: fields of the recipe, each as ``algorithm.weight=0.5``.
        iteration: a stored one; None takes the last.

    Returns:
        What is doubtful, and stops no run.

    Raises:
        AssertionError: the class breaks a promise.
        UserError: there is no such class, run or iteration, or the recipe does not take the class.
    """
    return _check("algorithm", own, run, overrides, iteration)


def check_prover(own: Own, run: str | PathLike[str], *overrides: str, iteration: int | None = None) -> list[Promise]:
    """Value the boundaries of stored rollouts, with stored tokens for the server's answers; otherwise as
    ``check_algorithm``.
    """
    return _check("prover", own, run, overrides, iteration)


def check_loss(own: Own, run: str | PathLike[str], *overrides: str, iteration: int | None = None) -> list[Promise]:
    """Compute the loss of made-up tokens with ratios from e^-30 to e^30; otherwise as ``check_algorithm``."""
    return _check("training.loss", own, run, overrides, iteration)


def check_verifier(own: Own, run: str | PathLike[str], *overrides: str, iteration: int | None = None) -> list[Promise]:
    """Find answers in stored and in odd texts, and judge them in other processes: call it below ``if __name__ ==
    "__main__":``. Otherwise as ``check_algorithm``.
    """
    return _check("data.verifier", own, run, overrides, iteration)


def check_mode(own: Own, run: str | PathLike[str], *overrides: str, iteration: int | None = None) -> list[Promise]:
    """Sample traces of stored problems, with stored tokens for the server's answers; otherwise as
    ``check_algorithm``.
    """
    return _check("evaluation.benchmarks.mode", own, run, overrides, iteration)


def _check(
    section: str, own: Own, run: str | PathLike[str], overrides: tuple[str, ...], iteration: int | None
) -> list[Promise]:
    name = own if isinstance(own, str) else f"{own.__module__}:{own.__qualname__}"
    tried = ClassInRun.of(name, expand_home(str(run)), iteration, overrides)
    if tried.kind != section:
        functions = {place: f"check_{place.rpartition('.')[2]}" for place in PLACES}
        raise UserError(
            "this class is of another kind",
            value=name,
            expected=f"a class of the section {section}",
            advice=Advice("{function} tries it", function=functions[tried.kind]),
        )
    broken = [promise for promise in tried.promises() if promise.broken]
    stops = [f"{promise.text}: {promise.broken}" for promise in broken if promise.stops]
    assert not stops, "\n".join([f"{name} breaks what a run takes for granted:", *stops])
    return broken
