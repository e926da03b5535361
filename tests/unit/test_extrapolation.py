"""Accuracy past the budget of the training, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from evaluated import boundary, model, trace

from mrt_hpc.analysis.extrapolation import AccuracyAt, analyse_extrapolation, extrapolation_of
from mrt_hpc.errors import UserError
from mrt_hpc.mrt.votes import RIGHT
from mrt_hpc.recipe.kinds import MODES
from mrt_hpc.run.groups import RolloutOutcome

if TYPE_CHECKING:
    from mrt_hpc.analysis.model_samples import ModelSamples

BUDGETS = (64, 96, 128)


def extrapolated(name: str, **answers: tuple[str, str, str, str]) -> ModelSamples:
    """One trace a problem, whose forced answers at its four boundaries are given, R being right."""
    problems = {
        problem: (trace("R", 128, *(boundary(32 * j, forced) for j, forced in enumerate(mine))),)
        for problem, mine in answers.items()
    }
    return replace(model(problems, name), budgets=BUDGETS)


BETTER = extrapolated("better", a=("XX", "RX", "RX", "RR"), b=("XX", "XX", "RX", "RR"), c=("RX", "RR", "RR", "RR"))
WORSE = extrapolated("worse", a=("XX", "RX", "XX", "XX"), b=("XX", "XX", "XX", "RX"), c=("RX", "RR", "RR", "RX"))


def test_the_accuracy_at_a_budget_is_the_mean_value_of_its_boundary() -> None:
    found = extrapolation_of(BETTER)
    assert found.by_problem == (
        {"a": 0.5, "b": 0.0, "c": 1.0}, {"a": 0.5, "b": 0.5, "c": 1.0}, {"a": 1.0, "b": 1.0, "c": 1.0},
    )  # fmt: skip
    assert [one.mean for one in found.accuracy] == pytest.approx([0.5, 2 / 3, 1.0])
    assert [one.mean for one in found.gain] == pytest.approx([0.0, 1 / 6, 0.5])


def test_several_traces_of_a_problem_count_as_one_problem() -> None:
    both = {"a": (*BETTER.problems["a"], *WORSE.problems["a"]), "b": BETTER.problems["b"]}
    assert AccuracyAt(128, 3).values(replace(BETTER, problems=both)) == {"a": 0.5, "b": 1.0}


def test_the_tables_hold_every_budget_and_the_words_what_can_be_told() -> None:
    found = analyse_extrapolation([BETTER, WORSE])
    accuracy, gains = found.tables
    assert [row[:3] for row in accuracy.rows[:3]] == [("better", 64, 0.5), ("better", 96, 2 / 3), ("better", 128, 1.0)]
    assert [row[:3] for row in gains.rows] == [
        ("better", 96, pytest.approx(1 / 6)), ("better", 128, 0.5), ("worse", 96, pytest.approx(-1 / 6)),
        ("worse", 128, pytest.approx(-1 / 6)),
    ]  # fmt: skip
    assert found.verdicts[0].startswith("better, 128 against 64 tokens: +0.500")
    assert "no gain or loss is shown" in found.verdicts[1]
    assert found.verdicts[2].startswith("accuracy at 128 tokens, worse against better: -0.667")


def test_other_evaluations_are_refused_with_the_command_that_makes_this_one() -> None:
    with pytest.raises(UserError, match="worse was not evaluated by extrapolation") as told:
        analyse_extrapolation([BETTER, replace(WORSE, budgets=())])
    assert told.value.advice == "mrt-hpc eval runs/worse --suite paper_extrapolation"
    with pytest.raises(UserError, match="other budgets than the first model"):
        analyse_extrapolation([BETTER, replace(WORSE, budgets=(64, 96, 127))])


def test_the_way_of_evaluating_says_what_boundaries_stand_for() -> None:
    found = MODES.classes
    extrapolation = next(kind for kind in found if kind.model_fields["type"].default == "extrapolation")
    assert extrapolation(type="extrapolation").boundary_budgets(16384) == (16384, 20480, 24576, 28672, 32768)
    direct = next(kind for kind in found if kind.model_fields["type"].default == "direct")
    assert direct(type="direct").boundary_budgets(16384) == ()


def test_of_several_rounds_the_last_one_is_the_result() -> None:
    rounds = [RolloutOutcome("p", n, "7", RIGHT, [0], 3, stage=n, stages=3) for n in range(3)]
    assert [one.counts for one in rounds] == [False, False, True]
