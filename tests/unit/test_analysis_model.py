"""What roles write is what the report reads back."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest

from mrt_hpc.analysis.collect import as_ranges, read_measurements
from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics, Phase, RunCost, RunFile, RunSummary
from mrt_hpc.analysis.rows import summarise_evaluation
from mrt_hpc.errors import UserError
from mrt_hpc.run.layout import RunLayout

if TYPE_CHECKING:
    from pathlib import Path

METRICS = IterationMetrics(
    iteration=3,
    reward_mean=0.5,
    tokens_per_rollout=120.5,
    seconds={Phase.GENERATION: 1.5, Phase.OPTIMISATION: 2.0},
    progress_by_episode=(0.1, -0.05),
    loss=0.25,
    quality={"well_formed": 0.9},
    trainer={"padding_share": 0.1},
)
EVALUATION = summarise_evaluation(3, "held_out", {"a": [1.0, 0.0], "b": [0.0, 0.0]}, quality={"right_checks": 0.8})


def test_records_survive_their_files(tmp_path: Path) -> None:
    METRICS.write(tmp_path / "deep" / "metrics.json")
    EVALUATION.write(tmp_path / "summary.json")
    run = RunSummary(
        recipe="r",
        algorithm="grpo",
        model="m",
        iterations_planned=4,
        iterations=(METRICS,),
        evaluations=(EVALUATION,),
        cost=RunCost(gpu_hours=1.5),
        files=(RunFile(what="weights", path="weights"),),
    )
    run.write(tmp_path / "run.json")
    assert IterationMetrics.read(tmp_path / "deep" / "metrics.json") == METRICS
    assert EvaluationSummary.read(tmp_path / "summary.json") == EVALUATION
    assert RunSummary.read(tmp_path / "run.json") == run
    assert json.loads((tmp_path / "summary.json").read_text())["per_problem"] == {"a": 0.5, "b": 0.0}


def test_a_loss_that_is_not_a_number_is_not_lost(tmp_path: Path) -> None:
    METRICS.model_copy(update={"loss": math.nan, "grad_norm": math.inf}).write(tmp_path / "metrics.json")
    again = IterationMetrics.read(tmp_path / "metrics.json")
    assert again.loss is not None
    assert math.isnan(again.loss)
    assert again.grad_norm == math.inf


def test_a_misspelt_field_and_a_broken_file_are_told(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    path.write_text('{"iteration": 1, "reward_mean": 0.5, "tokens_per_rollout": 3, "reward_meen": 1}')
    with pytest.raises(UserError, match="IterationMetrics") as refused:
        IterationMetrics.read(path)
    assert str(path) in str(refused.value)
    path.write_text('{"iteration": ')
    with pytest.raises(UserError, match="run the task that writes it again"):
        IterationMetrics.read(path)


def test_measurements_are_collected_and_gaps_are_named(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    for number in (0, 1, 4):
        METRICS.model_copy(update={"iteration": number}).write(layout.metrics(number))
    for version in (0, 5):
        EVALUATION.model_copy(update={"version": version}).write(layout.evaluation_summary(version, "held_out"))
    found = read_measurements(layout, 6, versions=[0, 5], benchmarks=["held_out", "harder"])
    assert [metrics.iteration for metrics in found.iterations] == [0, 1, 4]
    assert [evaluation.version for evaluation in found.evaluations] == [0, 5]
    assert found.missing == (
        "metrics of iterations 2-3, 5 of 6",
        "evaluation on harder of weights versions 0, 5",
    )


@pytest.mark.parametrize(("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 5], "0-2, 5"), ([1, 3, 4], "1, 3-4")])
def test_numbers_in_short(numbers: list[int], text: str) -> None:
    assert as_ranges(numbers) == text
