"""The report and its figures."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

import pytest

from mrt_hpc.analysis.figures import Line, LineFigure, Panel, draw, moving_average
from mrt_hpc.analysis.intervals import IntervalEstimate
from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics, Phase, RunCost, RunFile, RunSummary
from mrt_hpc.analysis.number_formats import cell, duration, number, percent, points, share_text
from mrt_hpc.analysis.report.content import RunRecord
from mrt_hpc.analysis.report.plots import progress_stages
from mrt_hpc.analysis.report.render import write_markdown
from mrt_hpc.analysis.rows import mean_of, mean_rows, sample, summarise_evaluation, without_interval

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.analysis.figures import Kind


def iteration(index: int, **changes: object) -> IterationMetrics:
    values: dict[str, object] = {
        "iteration": index,
        "reward_mean": 0.3 + 0.01 * index,
        "tokens_per_rollout": 100.0,
        "seconds": {Phase.GENERATION: 3.0, Phase.OPTIMISATION: 1.0},
        "progress_by_episode": (0.1, 0.05),
        "quality": {"well_formed": 0.9},
        "loss": 0.0123,
    }
    return IterationMetrics.model_validate(values | changes)


def evaluation(version: int, benchmark: str, right: int) -> EvaluationSummary:
    return summarise_evaluation(version, benchmark, {f"p{i}": [float(i < right), 0.0] for i in range(20)})


RUN = RunSummary(
    recipe="tiny|recipe",
    algorithm="mrt_online",
    model="small world",
    prover="forced_answer",
    iterations_planned=40,
    iterations=tuple(iteration(i) for i in range(30)),
    evaluations=tuple(evaluation(v, b, v // 3 + 2) for b in ("held_out", "harder") for v in (0, 30)),
    missing=("metrics of iterations 30-39 of 40",),
    cost=RunCost(hardware="2 cores", wall_seconds=4000, generated_tokens=1234567, gpu_hours=0.0),
    files=(RunFile(what="last weights", path="weights/v000030"),),
    settings={"group size": "8"},
)


def write_report(run: RunSummary, directory: Path) -> Path:
    return write_markdown(directory, [RunRecord(run.recipe, run)])


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def test_the_report_tells_outcome_gaps_cost_and_files(tmp_path: Path) -> None:
    text = write_report(RUN, tmp_path).read_text()
    assert "# tiny\\|recipe" in text
    assert "30 of 40 iterations done" in text
    assert "- held_out: 30.0 % after 30 iterations, +25.0 (" in text
    assert "points against version 0; the 95 % interval excludes zero." in text
    assert "- Mean over benchmarks: 30.0 % after 30 iterations" in text
    assert "- Missing: metrics of iterations 30-39 of 40." in text
    assert "| wall time | 1 h 6 min |" in text
    assert "| tokens generated | 1,234,567 |" in text
    assert "| generation | 1 min 30 s | 75.0 % | – |" in text
    assert "| last weights | weights/v000030 |" in text
    assert "12 of 30 iterations are shown" in text
    assert "None" not in text
    assert "nan" not in text


def test_every_figure_the_report_shows_is_there_and_1200_pixels_wide(tmp_path: Path) -> None:
    text = write_report(RUN, tmp_path).read_text()
    drawn = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert drawn == ["accuracy.png", "progress.png", "quality.png", "reward.png", "time.png", "tokens.png"]
    for name in drawn:
        assert f"(plots/{name})" in text
        assert png_size(tmp_path / "plots" / name) == (1200, 675)


def test_tables_keep_their_columns(tmp_path: Path) -> None:
    """Every row of a table has as many cells as its head."""
    columns = 0
    for line in write_report(RUN, tmp_path).read_text().splitlines():
        bars = line.replace("\\|", "").count("|") if line.startswith("|") else 0
        assert columns == 0 or bars in (0, columns), line
        columns = bars


def test_a_run_that_has_done_nothing_gets_a_report(tmp_path: Path) -> None:
    empty = RunSummary(recipe="r", algorithm="grpo", model="m", iterations_planned=3)
    text = write_report(empty, tmp_path).read_text()
    assert "0 of 3 iterations done" in text
    assert "No two weights versions have been evaluated" in text
    assert not (tmp_path / "plots").exists()


def test_one_iteration_without_the_optional_numbers(tmp_path: Path) -> None:
    bare = IterationMetrics(iteration=0, reward_mean=0.0, tokens_per_rollout=0.0)
    run = RunSummary(recipe="r", algorithm="grpo", model="m", iterations_planned=1, iterations=(bare,))
    assert "| 0 | 0 | 0 | – | – |" in write_report(run, tmp_path).read_text()
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == ["reward.png", "tokens.png"]


def test_regret_is_told_by_budget_with_its_change(tmp_path: Path) -> None:
    before, after = (
        evaluation(version, "held_out", 5).model_copy(
            update={"regret": {64: {f"p{i}": regret + (-1) ** i * spread for i in range(20)}}}
        )
        for version, regret, spread in ((0, 0.75, 0.0), (30, 0.5, 0.1))
    )
    text = write_report(RUN.model_copy(update={"evaluations": (before, after)}), tmp_path).read_text()
    assert "| held_out | 64 | 0 | 0.750 (0.531 to 0.888) | – | sampled |" in text
    assert "| held_out | 64 | 30 | 0.500 (0.421 to 0.579) | −25.0 (−29.8 to −20.2) | sampled |" in text
    assert "lower is better" in text
    counted = after.model_copy(update={"regret_tokens": "all"})
    mixed = write_report(RUN.model_copy(update={"evaluations": (before, counted)}), tmp_path / "mixed").read_text()
    assert "| held_out | 64 | 30 | 0.500 (0.421 to 0.579) | – | all |" in mixed, "other tokens are another measure"
    assert "regret" not in write_report(RUN, tmp_path / "without").read_text()


def test_pass_and_majority_of_each_k_have_their_intervals(tmp_path: Path) -> None:
    """Of 20 problems with two samples, five have one right and one wrong answer: a vote of two ties there."""
    answers = {f"p{i}": ["7", "8"] for i in range(20)}
    rewards = {f"p{i}": [float(i < 5), 0.0] for i in range(20)}
    one = summarise_evaluation(0, "held_out", rewards, answers=answers)
    text = write_report(RUN.model_copy(update={"evaluations": (one,)}), tmp_path).read_text()
    vote = share_text(mean_of({problem: float(i < 5) / 2 for i, problem in enumerate(rewards)}))
    assert f"| held_out | 0 | 1 | 12.5 % ({percent(one.low)} to {percent(one.high)}) | {vote} |" in text
    both = share_text(mean_of({f"p{i}": float(i < 5) for i in range(20)}))
    assert f"| held_out | 0 | 2 | {both} | {vote} |" in text
    assert "maj@k is the chance that a vote of k samples is right" in text


def test_the_mean_over_benchmarks_has_its_interval(tmp_path: Path) -> None:
    both = (evaluation(0, "held_out", 5), evaluation(0, "harder", 3))
    text = write_report(RUN.model_copy(update={"evaluations": both}), tmp_path).read_text()
    assert f"| 0 | {share_text(mean_of(*(one.per_problem for one in both)))} | – |" in text


def test_what_the_page_folds_is_whole_in_the_report(tmp_path: Path) -> None:
    """All versions stand in one table, without the one of the first and the last alone."""
    versions = tuple(evaluation(v, "held_out", 5) for v in (0, 15, 30))
    text = write_report(RUN.model_copy(update={"evaluations": versions}), tmp_path).read_text()
    assert "First and last" not in text
    for version in (0, 15, 30):
        assert text.count(f"| held_out | {version} | 20 × 2 |") == 1


def test_progress_of_a_stage_has_an_interval_over_its_iterations() -> None:
    """Of four iterations 0.1, 0.2, 0.3, 0.4: mean 0.25, standard error 0.0645, and t of three degrees is 3.182."""
    few, many = ([iteration(i, progress_by_episode=(0.1 * (i % 4 + 1),)) for i in range(count)] for count in (5, 20))
    assert {stage.y[0].low for stage in progress_stages(few)} == {-math.inf}
    (first,) = progress_stages(many)[0].y
    assert first.low == pytest.approx(0.25 - 3.1824 * 0.06455, abs=1e-4)
    assert first.high == pytest.approx(0.25 + 3.1824 * 0.06455, abs=1e-4)


def test_versions_on_other_problems_are_not_compared() -> None:
    changed = summarise_evaluation(30, "held_out", {"other": [1.0, 0.0]})
    run = RUN.model_copy(update={"evaluations": (evaluation(0, "held_out", 3), changed)})
    assert mean_rows(run.evaluations) == []
    both = (*run.evaluations, evaluation(0, "harder", 3), evaluation(30, "harder", 4))
    assert [row.version for row in mean_rows(both)] == [0]


def test_a_figure_that_fails_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shape"):
        draw(
            LineFigure("f", (Panel("t", "x", "y", (Line("r", (0.0, 1.0), (without_interval(0.5),)),)),)),
            tmp_path / "f.png",
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["lines", "error bars", "trends", "stack"])
@pytest.mark.parametrize("points", [1, 250])
def test_every_kind_is_drawn_of_one_point_and_of_many(tmp_path: Path, kind: Kind, points: int) -> None:
    lines = tuple(
        Line(name, tuple(map(float, range(points))), (IntervalEstimate(0.5, 0.25, 0.75),) * points) for name in "ab"
    )
    draw(LineFigure("f", (Panel("t", "x", "y", lines, kind),)), tmp_path / "f.png")
    assert png_size(tmp_path / "f.png") == (1200, 675)


def test_moving_average() -> None:
    assert moving_average([0.0, 3.0, 6.0, 9.0], 3) == [1.5, 3.0, 6.0, 7.5]


def test_progress_is_averaged_by_stage_over_traces_that_are_long_enough() -> None:
    iterations = [iteration(0, progress_by_episode=(0.2,)), iteration(1, progress_by_episode=(0.4, 0.1))]
    first, second = progress_stages(iterations)
    assert (first.label, first.means, second.means) == ("iteration 0", [0.2], [0.4, 0.1])
    stages = progress_stages([iteration(i, progress_by_episode=(0.1 * i,) * (1 + i % 2)) for i in range(10)])
    assert [stage.label for stage in stages][:2] == ["iterations 0–1", "iterations 2–3"]
    assert stages[0].means == pytest.approx([0.05, 0.1])


def test_sampled_rows_hold_first_and_last() -> None:
    rows = sample([iteration(i) for i in range(100)], 12)
    assert (len(rows), rows[0].iteration, rows[-1].iteration) == (12, 0, 99)


def test_how_numbers_are_written() -> None:
    assert (percent(0.2814), percent(None), points(-0.013)) == ("28.1 %", "–", "−1.3")
    assert [number(x) for x in (None, 0.0, 1e-6, 0.01234, 12345.6, float("nan"))] == [
        "–", "0", "1.00e-06", "0.0123", "12,346", "nan",
    ]  # fmt: skip
    assert [duration(x) for x in (None, 3.21, 59.99, 61, 3600 * 3 + 720, 86400 * 3 + 3600)] == [
        "–", "3.2 s", "60.0 s", "1 min 1 s", "3 h 12 min", "3 d 1 h",
    ]  # fmt: skip
    assert cell("a|b\nc") == "a\\|b c"
