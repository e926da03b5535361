"""Comparisons of models: numbers worked out by hand, verdicts in words, and the samples of a run."""

import csv
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from commands import refusal, typed
from evaluated import commit_traces, evaluated_run, evaluation_directory, run_directory
from synthetic_run import made_up_metrics

from mrt_hpc import ExitCode, RunLayout
from mrt_hpc.analysis import intervals
from mrt_hpc.analysis.comparing import MEAN, Comparison, compare, notes, requirement
from mrt_hpc.analysis.evaluated_run import EvaluatedRun
from mrt_hpc.analysis.intervals import Spread
from mrt_hpc.analysis.model_samples import EvaluatedBoundary, EvaluatedTrace, ModelSamples
from mrt_hpc.analysis.named_models import Arm
from mrt_hpc.analysis.problem_measures import measure_of
from mrt_hpc.analysis.rows import summarise_evaluation
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.run.problems import read_problems


def model(name: str, rewards: Mapping[str, Sequence[float]], benchmark: str = "b") -> ModelSamples:
    """Right answers are ``1``, wrong ones ``0``."""
    problems = {p: tuple(EvaluatedTrace(r, f"{r:.0f}", 10, ()) for r in row) for p, row in rewards.items()}
    return ModelSamples(name, f"runs/{name}", benchmark, problems)


def compared(first: ModelSamples, *others: ModelSamples, measures: Sequence[str] = ("pass@1",)) -> list[Comparison]:
    return compare([Arm.of(first)], [[Arm.of(other)] for other in others], [measure_of(name) for name in measures])


def test_the_smallest_difference_by_hand() -> None:
    """Gains with a standard deviation of 0.2 on 30 problems: 2.899 * 0.2 / sqrt(30) = 0.1059."""
    for degrees, of_tables in ((29, 2.045 + 0.854), (10, 2.228 + 0.879), (math.inf, 1.960 + 0.842)):
        assert intervals.errors_to_show(degrees) == pytest.approx(of_tables, abs=1e-3)
    assert intervals.detectable(0.2 / math.sqrt(30), 29) == pytest.approx(0.1059, abs=1e-4)


def test_problems_and_samples_needed_by_hand() -> None:
    """0.04 (2.8016 / 0.02)^2 = 784.9; with t instead of the normal law two more. 100 problems, 2 points: (0.02 /
    2.8295)^2 * 100 = 0.0049962. Of that problems take 0.004, and samples have 0.0009962 for a variance of 0.3: 301.1.
    """
    assert intervals.problems_needed(0.04, 0.02) == 787
    assert intervals.problems_needed(0.2**2, intervals.detectable(0.2 / math.sqrt(30), 29) + 1e-9) == 30
    assert intervals.problems_needed(1e-12, 0.5) == 2
    assert intervals.errors_to_show(99) == pytest.approx(2.8295, abs=1e-4)
    for between, samples in ((0.004, 302), (0.005, None), (0.0, 61)):  # 0.3 / 0.0049962 = 60.05
        assert intervals.samples_needed(Spread(between=between, within=0.3), 100, 0.02) == samples


def test_the_parts_of_the_variance_by_hand() -> None:
    """Paired gains of ``a`` are 1 and 0, of ``b`` 0 and 0: variances 1/2 and 0, on average 1/4 for one sample and 1/8
    for two. The means 1/2 and 0 have a variance of 1/8, so that nothing is left between problems.

    With other numbers of samples the variances add up. ``a``: 1/2 of two samples and 1/3 of three; the other has none.
    Half of 5/6, and of 1/4 + 1/9, are the means.
    """
    before = {"a": np.array([0.0, 1.0]), "b": np.array([1.0, 1.0])}
    after = {"a": np.array([1.0, 1.0]), "b": np.array([1.0, 1.0])}
    assert intervals.spread_of(before, after) == Spread(between=0.0, within=0.25)
    assert intervals.spread_of({"a": np.array([1.0])}, {"a": np.array([1.0, 0.0])}) is None, "of a single sample"
    before["b"] = np.array([0.0, 0.0])
    spread = intervals.spread_of(before, {"a": np.array([0.0, 0.0, 1.0]), "b": np.array([1.0, 1.0, 1.0])})
    assert spread is not None
    gains = np.var([1 / 3 - 1 / 2, 1.0], ddof=1)
    assert (spread.within, spread.between) == pytest.approx((5 / 12, gains - (1 / 4 + 1 / 9) / 2))


def test_holms_correction_by_hand() -> None:
    """0.01 * 3; 0.03 * 2; 0.04 * 1 is less than the one before it, and becomes that."""
    assert intervals.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert (intervals.holm([0.9, 0.8]), intervals.holm([])) == ([1.0, 1.0], [])


def test_measures_by_hand() -> None:
    answers = ((1.0, "2", 10), (0.0, "3", 30), (0.0, "3.", 20), (0.0, None, 40))
    one = ModelSamples("m", "runs/m", "b", {"p": tuple(EvaluatedTrace(*answer, ()) for answer in answers)})
    boundaries = tuple(EvaluatedBoundary(tokens, value, ()) for tokens, value in ((0, 0.0), (50, 1.0)))
    ramp = ModelSamples("m", "runs/m", "b", {"p": (EvaluatedTrace(1.0, "1", 10, boundaries),)})
    for name, of, value in (
        ("pass@1", one, 0.25), ("pass@2", one, 0.5),  # three of six pairs hold the right one
        ("maj@3", one, (0 + 1 / 2 + 1 / 2 + 0) / 4), ("tokens", one, 25.0),
        ("regret@100", ramp, 1 - 0.75),  # a ramp to 50, then 1
    ):  # fmt: skip
        assert measure_of(name).values(of) == {"p": pytest.approx(value)}
    assert not measure_of("regret@10").more_is_better


def test_unknown_measures_and_those_that_the_samples_do_not_give_are_refused() -> None:
    for name in ("pass", "pass@0", "maj@x", "regret@-1", "accuracy", "tokens@3", "pass@1.5"):
        assert name in refusal(measure_of, name).message()
    for name, rewards, fact in (
        ("pass@3", {"a": [1, 0, 0], "b": [1, 0]}, "m has 2 on b"), ("regret@100", {"a": [1]}, "not valued"),
    ):  # fmt: skip
        assert fact in refusal(measure_of(name).values, model("m", rewards)).what


def test_models_are_paired_by_problem() -> None:
    """Gains 0.5, 0, 0 and 0.5 in spite of another order, whose variance is 1/12: t = 1.732, 3 degrees of freedom."""
    before = model("old", {"a": [0, 0], "b": [1, 1], "c": [0, 1], "d": [0, 0]})
    (found,) = compared(before, model("new", {"d": [1, 0], "c": [1, 0], "b": [1, 1], "a": [0, 1]}))
    expected = intervals.paired_difference({"a": 0, "b": 1, "c": 0.5, "d": 0}, {"a": 0.5, "b": 1, "c": 0.5, "d": 0.5})
    assert (found.gain.interval, found.problems, found.left_out, found.gain.mean) == (expected, 4, 0, 0.25)
    assert found.detectable == pytest.approx((3.182 + 0.978) * math.sqrt(1 / 12 / 4), abs=1e-3)
    assert (found.gain.p_value, found.is_significant) == (pytest.approx(0.1817, abs=1e-3), False)


def test_problems_of_one_model_alone_are_left_out() -> None:
    before, after = model("old", {"a": [0], "b": [1], "x": [1]}), model("new", {"a": [1], "b": [1]})
    (found,) = compared(before, after)
    assert (found.problems, found.left_out, found.gain.mean) == (2, 1, 0.5)
    assert (found.first.mean, found.second.mean) == (0.5, 1.0), "means are over the shared problems, too"
    assert any(note.startswith("1 problems of b ") for note in notes([found], [[Arm.of(before)], [Arm.of(after)]]))
    refused = refusal(compared, before, model("other", {"y": [1]}))
    assert refused.advice == "mrt-hpc eval runs/old runs/other --suite SUITE"


def test_several_comparisons_are_corrected_together() -> None:
    """Gains of 1 in five of 12 problems: t = 2.803, p = 0.017. Among ten comparisons that is 0.17, and the difference
    that was seen is smaller than one that can be shown, with t(11) at 0.0025 and 0.2.
    """
    zero = model("zero", {f"p{i}": [0, 0] for i in range(12)})
    some = model("some", {f"p{i}": [1, 1] if i < 5 else [0, 0] for i in range(12)})
    (alone,), (of_one_problem,) = compared(zero, some), compared(model("old", {"a": [0]}), model("new", {"a": [1]}))
    assert (of_one_problem.corrected_p, of_one_problem.is_significant) == (1.0, False)
    assert alone.corrected_p == alone.gain.p_value == pytest.approx(0.0172, abs=1e-4)
    among, *others = compared(zero, some, *[zero] * 9)
    assert among.corrected_p == pytest.approx(10 * alone.gain.p_value)
    assert [found.is_significant for found in (alone, among, *others)] == [True, *[False] * 10]
    assert among.detectable == pytest.approx((3.497 + 0.876) * alone.gain.error, rel=1e-3)


def test_the_mean_over_benchmarks_is_compared_as_well() -> None:
    rewards = {"b": {f"p{i}": [float(i % 3 == 0)] for i in range(9)}, "c": {f"q{i}": [float(i % 2)] for i in range(8)}}
    first = [Arm.of(model("old", row, benchmark)) for benchmark, row in rewards.items()]
    second = [Arm.of(model("new", {p: [1.0] for p in row}, benchmark)) for benchmark, row in rewards.items()]
    one, two, mean = compare(first, [second], [measure_of("pass@1")])
    assert (one.benchmark, two.benchmark, mean.benchmark, mean.problems) == ("b", "c", MEAN, 17)
    assert mean.gain.mean == pytest.approx((6 / 9 + 1 / 2) / 2)
    assert (mean.first.mean, mean.second.mean) == pytest.approx(((1 / 3 + 1 / 2) / 2, 1.0))
    assert requirement(mean, 0.01) is None


def test_requirements() -> None:
    """The same means of samples that differ, no mean over samples, problems that differ, samples that agree."""
    before = model("old", {f"p{i}": [0, 1] for i in range(50)})
    turned = model("new", {f"p{i}": [1, 0] if i % 2 else [0, 1] for i in range(50)})
    apart = model("new", {f"p{i}": [1, 1] if i % 2 else [0, 0] for i in range(50)})
    never = model("old", {f"p{i}": [0.0, 0.0] for i in range(30)})
    same_means, several = compared(before, turned, measures=("pass@1", "pass@2"))
    (wide,), (alike,) = (compared(a, b) for a, b in ((before, apart), (never, never)))
    needed = [(found, found.needed_size(0.01)) for found in (same_means, several, wide, alike)]
    assert [one is not None and (one[1] is not None, found.spread is not None) for found, one in needed] == [
        (True, True), (False, False), (False, True), (False, False),
    ]  # fmt: skip


def drawn(sample: int, reward: float) -> EvaluatedTrace:
    """A trace with values of 0 at the start, half of its reward in the middle and all of it at the end."""
    boundaries = tuple(EvaluatedBoundary(tokens, reward * tokens / 8, ()) for tokens in (0, 4, 8))
    return EvaluatedTrace(reward, f"{reward:.0f}", 10 + sample, boundaries)


def rewarded_run(root: Path, rewards: Mapping[int, float]) -> RunLayout:
    """A run whose versions have these rewards on ten problems."""
    layout = run_directory(root, problems=10, shards=1)
    ids = [problem.id for problem in read_problems(layout.benchmark_data("held-out"))]
    for version, reward in rewards.items():
        commit_traces(layout, version, 0, {problem: [drawn(0, reward), drawn(1, reward)] for problem in ids})
    return layout


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    """Versions 0 and 20 were evaluated on ten problems: the second is right where the first is not."""
    return rewarded_run(tmp_path_factory.mktemp("compare") / "run", {0: 0.0, 20: 1.0})


def rows_of(*arguments: object) -> list[dict[str, object]]:
    return list(json.loads(typed("compare", *arguments, "--json").stdout)["comparisons"])


def test_a_run_compares_its_first_version_with_its_last_beside_published_results(run: RunLayout) -> None:
    shown = typed("compare", run.root, "--published").output
    assert "run@20 is better: 100 points more" in " ".join(shown.split())
    assert "Holm" not in shown, "there is one comparison"
    assert "MRT-online" in shown and "run@20" in shown.split("published")[-1]


def test_versions_and_measures_are_chosen(run: RunLayout, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    measures = [text for name in ("pass@1", "maj@2", "regret@16", "tokens") for text in ("--measure", name)]
    versions = (f"{run.root}@20", f"{run.root}@first")
    run.metrics(0).parent.mkdir(parents=True)
    made_up_metrics(0, 20, np.random.default_rng(0)).write(run.metrics(0))
    shown = json.loads(typed("compare", *versions, *measures, "--csv", table, "--json", "--published").stdout)
    differences = {row["measure"]: row["difference"] for row in shown["comparisons"]}
    area = (1 + 3 + 8) / 16  # from 0 to a half over four tokens, to one over four more, and eight at one
    assert differences == pytest.approx({"pass@1": -1.0, "maj@2": -1.0, "regret@16": area, "tokens": 0.0})
    assert {row["first"] for row in shown["comparisons"]} == {"run@20"}
    assert any(" 4 comparisons (Holm)" in note for note in shown["notes"])
    cost = "3,750 generated tokens a problem in branches of the prover beside 20,000 in traces (16 %)"
    assert [note.startswith(f"training of {run.root} took {cost}") for note in shown["notes"]].count(True) == 1
    assert [table["results"][0]["accuracy"][0] for table in shown["published"]] == [28.7, 42.8, 27.34]
    with table.open() as stream:
        assert [row["verdict"] for row in csv.DictReader(stream)] == [row["verdict"] for row in shown["comparisons"]]


def test_a_shard_that_was_changed_is_refused_and_one_of_other_settings_does_not_count(tmp_path: Path) -> None:
    run = rewarded_run(tmp_path / "run", {0: 0.0, 20: 1.0})
    recipe = read_recipe_lock(run.recipe_lock)
    hotter = recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update={"temperature": 0.5})})
    assert EvaluatedRun(run, hotter, "run").versions("held-out") == []
    file = run.evaluation_shard(20, "held-out", 0) / "rollouts.parquet"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert "rollouts.parquet" in typed("compare", run.root, exits=ExitCode.RETRYABLE).stderr


@pytest.fixture
def alone(tmp_path: Path) -> RunLayout:
    """An evaluation of the versions 0 and 20 of a run; its directory has the sign before a version in its name."""
    return evaluation_directory(tmp_path / "with@20", run_directory(tmp_path / "grpo"), 0, 20)


def test_an_evaluation_compares_its_first_model_with_the_others_of_those_that_are_whole(alone: RunLayout) -> None:
    (row,) = rows_of(alone.root)
    assert (row["first"], row["second"]) == ("grpo@0", "grpo@20")
    assert (row["first_mean"], row["second_mean"], row["problems"]) == (0.75, 0.75, 2)
    assert rows_of(f"{alone.root}@grpo@20", f"{alone.root}@grpo@0")[0]["first"] == "grpo@20"
    shutil.rmtree(alone.evaluation_shard(1, "held-out", 1))
    for arguments, fact in (
        ((f"{alone.root}@grpo@2", alone.root), "expected: one of grpo@0, grpo@20\n"),
        ((f"{alone.root}@grpo@0",), "two models"),
        ((alone.root, f"{alone.root}@grpo@0"), "named twice"),
        ((alone.root,), f"expected: one of {alone.root}@grpo@0\n"),
    ):
        assert fact in typed("compare", *arguments, exits=ExitCode.FATAL).stderr


def test_status_has_the_names_of_the_models(alone: RunLayout) -> None:
    for number in (0, 1):
        summary = summarise_evaluation(number, "held-out", {"a": [1.0, 0.0], "b": [float(number)]})
        summary.write(alone.evaluation_summary(number, "held-out"))
    shown = typed("status", alone.root).output
    assert "grpo@0 " in shown and "grpo@20 " in shown and "v1 " not in shown
    assert json.loads(typed("status", alone.root, "--json").stdout)["evaluations"]["models"] == ["grpo@0", "grpo@20"]
    alone.recipe_lock.write_text("damaged: [")
    assert "recipe.lock.yaml" in typed("status", alone.root).output, "and the results by number"


def test_runs_and_evaluations_are_mixed(alone: RunLayout, tmp_path: Path) -> None:
    """Models of the same name in different directories have the path that was typed before their names."""
    run, again = (evaluated_run(tmp_path / place, 20) for place in ("other", "again/grpo"))
    for arguments, pairs in (
        ((run.root, alone.root), [("other@20", "grpo@0"), ("other@20", "grpo@20")]),
        ((again.root, f"{alone.root}@grpo@20"), [(f"{again.root}@20", f"{alone.root}@grpo@20")]),
    ):
        assert [(row["first"], row["second"]) for row in rows_of(*arguments)] == pairs
    opened = EvaluatedRun.open(str(alone.root))
    same = opened.recipe.model_copy(update={"models": (opened.models[0],) * 2})
    assert EvaluatedRun(alone, same, "alone").recipe.model_names == ["grpo@0#0", "grpo@0#1"]
