"""``mrt-hpc analyze`` on a run directory as the evaluation writes it, and with ``--suite``, which evaluates before."""

import csv
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import Result
from commands import typed
from evaluated import commit_all, commit_shard, commit_traces, evaluated_run, evaluation_directory, run_directory
from small_weights import publish_models
from tables import tables

from mrt_hpc.analysis.model_samples import EvaluatedBoundary, EvaluatedTrace
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.evaluate import evaluation_alone
from mrt_hpc.plan.compile import evaluation_plan
from mrt_hpc.recipe.schema import EvaluationRecipe
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task
from mrt_hpc.submit.create import create_or_open

TABLES = tables("analyze_command")

FILES = TABLES["files"]
"""The CSV files of each analysis."""


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as stream:
        return list(csv.DictReader(stream))


def analyze(*arguments: object, exits: int = 0) -> Result:
    return typed("analyze", *arguments, exits=exits)


def refused(arguments: Sequence[object], *facts: str) -> None:
    shown = analyze(*arguments, exits=2).stderr
    assert [fact for fact in facts if fact not in shown] == []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    """A run with samples of the weights versions 0 and 2, without values of 3, and with half of those of 4."""
    run = evaluated_run(tmp_path_factory.mktemp("analyze") / "run", 0, 2)
    for version, shard, valued in ((3, 0, False), (3, 1, False), (4, 0, True)):
        commit_shard(run, version, shard, valued=valued)
    return run


@pytest.mark.parametrize("name", FILES)
def test_an_analysis_writes_tables_and_figures_and_the_same_bytes_again(run: RunLayout, name: str) -> None:
    what = f"{run.root}@2"
    shown = analyze(name, what).output.replace("\n", "")
    out = run.root / "analysis" / name
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    assert sorted(n.removesuffix(".csv") for n in first if n.endswith(".csv")) == FILES[name]
    for figure in [n.removesuffix(".png") for n in first if n.endswith(".png")]:
        assert first[f"{figure}.png"].startswith(b"\x89PNG") and b"<svg" in first[f"{figure}.svg"]
    assert all(str(out / n) in shown for n in first)
    analyze(name, what, "--out", run.root / "again" / name)
    assert {path.name: path.read_bytes() for path in (run.root / "again" / name).iterdir()} == first


def test_regret_scaling_and_efficiency_of_versions(run: RunLayout, tmp_path: Path) -> None:
    """To 60 tokens, first problem: 0.5 to 0.75 over 40 and 0.75 held over 20; 0.5 held over 30, 0.5 to 0 over 30.
    Second problem: 1 throughout. To 30 tokens the first trace rises to 0.5 + 0.25 * 30 / 40.
    """
    analyze("regret", f"{run.root}@0", f"{run.root}@2", "--budgets", "30,60", "--out", tmp_path)
    found = rows(tmp_path / "regret.csv")
    models = [(r["model"], r["budget_tokens"]) for r in found]
    assert models == [(f"run@{version}", budget) for version in (0, 2) for budget in ("30", "60")]
    assert [float(r["difference"]) for r in rows(tmp_path / "regret_differences.csv")] == [0.0, 0.0]
    areas = ((0.5 + 0.6875) / 2 + 0.5) / 2, (40 / 60 + 22.5 / 60) / 2
    assert [float(r["regret"]) for r in found[:2]] == pytest.approx([(1 - area) / 2 for area in areas])
    analyze("scaling", f"{run.root}@2", "--out", tmp_path)
    for way, accuracy, tokens in (
        # one voter: 1/2 and 1; 3/4, 1/2 and 1; a trace of one episode stays at 3/4
        ("maj@1 at prefix", [0.75, (0.625 + 1) / 2, (0.375 + 1) / 2], [2, (37 + 12) / 2, (52 + 12) / 2]),
        # of four voters, RRXY is right, XXRR a tie, RRRX right, XXXX wrong
        ("maj@4 at prefix", [1.0, 0.875, 0.75], [8]),
        ("maj@k", [0.75, 0.75], [40, 80]),  # of the first problem one sample is right: as one voter, and as a tie
        ("pass@k", [0.75, 1.0], [40, 80]),
    ):
        of_way = [row for row in rows(tmp_path / "scaling.csv") if row["way"] == way]
        assert [float(row["accuracy"]) for row in of_way] == pytest.approx(accuracy), way
        assert [float(row["tokens"]) for row in of_way][: len(tokens)] == pytest.approx(tokens), way
    assert "within 5 points" in analyze("scaling", f"{run.root}@2", "--margin", "5", "--out", tmp_path).output
    refused(["scaling", f"{run.root}@2", "--margin", "5", "--by-episodes"], "leave out --by-episodes")
    analyze("efficiency", f"{run.root}@2", "--accuracy", "0.75, 1", "--out", tmp_path)
    first, never = rows(tmp_path / "tokens_to_accuracy.csv")
    assert 2 <= float(first["tokens"]) < 2 + 70 / 256, "the first answers take 2 tokens, and 256 steps are looked at"
    assert (never["accuracy"], never["tokens"]) == ("1", "not reached")
    shown = analyze("efficiency", f"{run.root}@2", "--accuracy", "0.75", "--tokens", "all", "--out", tmp_path).output
    assert "tokens counted: prompt" in shown.replace("\n", " ")
    assert float(rows(tmp_path / "tokens_to_accuracy.csv")[0]["tokens"]) == pytest.approx(12, abs=0.4)


def test_an_earlier_version_never_stands_for_the_last_one(run: RunLayout, tmp_path: Path) -> None:
    """The last version is 20, of which nothing was evaluated."""
    fact = "weights version 20, the last one of this run, has no complete evaluation"
    for what in (run.root, f"{run.root}@last"):
        refused(["efficiency", what], fact, f"a version that has one: {run.root}@3\n", f"mrt-hpc status {run.root},")
    analyze("efficiency", f"{run.root}@first", "--out", tmp_path)
    assert {row["model"] for row in rows(tmp_path / "tokens_to_accuracy.csv")} == {"run@0"}
    lacking = evaluated_run(tmp_path / "lacking", 2, 20)
    refused(["efficiency", f"{lacking.root}@first"], "version 0, the first", f"has one: {lacking.root}@2\n")
    lacking.versions_passed_over.write_text("[0]")  # what was pruned before it was evaluated never will be
    assert "lacking@20" in analyze("efficiency", f"{lacking.root}@first", "--out", tmp_path).output


def test_what_cannot_be_analysed_is_refused(run: RunLayout, tmp_path: Path) -> None:
    there = ", ".join(f"{run.root}@{version}" for version in (0, 2, 3))
    for version in (4, 5):
        advice = f"mrt-hpc eval {run.root}@{version} --suite SUITE"
        refused(["regret", f"{run.root}@{version}"], f"expected: one of {there}\n", advice)
    for arguments, fact in (
        (["regret", f"{run.root}@2", "--budgets", "0,5"], "1024,2048"),
        (["efficiency", f"{run.root}@2", "--accuracy", "40"], "0.3,0.4"),
        (["regret", run.root, "--site", "x=1"], "--site"),  # it belongs to the evaluation on a suite
    ):
        refused(arguments, fact)
    problems = "{type: small_world, split: held_out, problems: 2}"
    two = f"evaluation.benchmarks=[{{name: one, problems: {problems}}}, {{name: two, problems: {problems}}}]"
    refused(["regret", run_directory(tmp_path / "run", two).root], "expected: one of one, two")


def test_an_evaluation_gives_a_line_for_each_of_its_models(run: RunLayout, tmp_path: Path) -> None:
    alone = evaluation_directory(tmp_path / "alone", run_directory(tmp_path / "grpo"), 0, 20).root
    analyze("regret", alone, f"{run.root}@0", "--budgets", "60")
    found = rows(alone / "analysis" / "regret" / "regret.csv")
    assert [row["model"] for row in found] == ["grpo@0", "grpo@20", "run@0"]


def test_the_tokens_of_a_boundary_are_those_of_the_option_or_of_the_recipe(tmp_path: Path) -> None:
    """With all tokens the values of the second problem, which are 1, begin at 12 tokens: 6 and 48 of 60."""
    run = run_directory(tmp_path / "run", "evaluation.regret_tokens=all")
    commit_all(run, 20)
    first = (12 * 0.25 + 40 * 0.625 + 8 * 0.75, 12 * 0.25 + 30 * 0.5 + 18 * (0.5 + 0.2) / 2)
    of_all = 1 - (sum(first) / 2 + 6 + 48) / 60 / 2
    sampled = (1 - (40 / 60 + 22.5 / 60) / 2) / 2
    for options, regret in (((), of_all), (("--tokens", "all"), of_all), (("--tokens", "sampled"), sampled)):
        analyze("regret", run.root, "--budgets", "60", "--out", tmp_path, *options)
        assert float(rows(tmp_path / "regret.csv")[0]["regret"]) == pytest.approx(regret)
    problem, likelihood = read_problems(run.benchmark_data("held-out"))[0].id, EvaluatedBoundary(9, 1.0, ())
    nothing_forced = run_directory(tmp_path / "nothing", problems=1, shards=1)
    commit_traces(nothing_forced, 20, 0, {problem: [EvaluatedTrace(1.0, "R", 9, (likelihood,))]})
    refused(["regret", nothing_forced.root, "--tokens", "all"], "no answers were forced")


SUITE = TABLES["suite"]


@dataclass
class Submissions:
    """Stands in for the submission of evaluations on the suite: makes the run directory, and samples where asked to."""

    suite: Path
    run: Path  # a run whose weights versions 0 and 20 are there
    recipes: list[EvaluationRecipe] = field(default_factory=list)
    sampled: bool = False  # whether all is sampled
    roots: list[Path] = field(default_factory=list)

    def submit(self, recipe: EvaluationRecipe, _awaited: object, _site: object, root: Path, _listener: object) -> None:
        plan = evaluation_plan(recipe, LocalSite())
        layout = create_or_open(root, recipe, plan)
        self.recipes.append(recipe)
        self.roots.append(layout.root)
        for version in range(len(recipe.models) if self.sampled else 0):
            if not layout.evaluation_shard(version, "held-out", 0).exists():
                commit_all(layout, version)
        for job in plan.jobs:
            for index in range(len(job.evaluations) if self.sampled else 0):
                write_task(layout, job.name, index, TaskRecord(TaskState.DONE))

    @property
    def models(self) -> list[list[str]]:
        return [[model.name for model in recipe.models] for recipe in self.recipes]

    def publish(self) -> None:
        publish_models(RunLayout(self.run), 0, 20)


@pytest.fixture
def submissions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Submissions:
    (suite := tmp_path / "mine.yaml").write_text(SUITE)
    found = Submissions(suite, run_directory(tmp_path / "grpo").root)
    found.publish()
    monkeypatch.setattr(evaluation_alone, "submit_evaluation", found.submit)
    monkeypatch.chdir(tmp_path)
    return found


def test_the_same_command_draws_once_a_queued_evaluation_is_done(submissions: Submissions) -> None:
    suite = ("--suite", submissions.suite, "--benchmark", "held-out")
    command = ("regret", f"{submissions.run}@first,last", "--budgets", "60", *suite)
    assert "0 of 4 evaluations" in analyze(*command).output
    assert [b.name for b in submissions.recipes[0].evaluation.benchmarks] == ["held-out"], "no other one is evaluated"
    assert submissions.models == [["grpo@0", "grpo@20"]]
    analyze("extrapolate", submissions.run, "--suite", submissions.suite, "--benchmark", "longer")
    submissions.sampled = True
    analyze(*command)
    first, other, again = submissions.roots
    assert first == again != other, "the same directory, and another benchmark has its own"
    assert [row["model"] for row in rows(first / "analysis" / "regret" / "regret.csv")] == ["grpo@0", "grpo@20"]


@pytest.mark.parametrize(
    ("command", "facts"),
    TABLES["not_suited"],
)  # fmt: skip
def test_what_does_not_suit_the_analysis_is_refused(submissions: Submissions, command: str, facts: list[str]) -> None:
    places = {"RUN": str(submissions.run), "SUITE": str(submissions.suite)}
    expected = [re.sub("RUN|SUITE", lambda place: places[place[0]], fact) for fact in facts]
    refused([places.get(word, word) for word in shlex.split(command)], *expected)
    assert not submissions.recipes, "nothing is submitted"


def test_the_suites_that_are_advised_suit_their_analyses(submissions: Submissions, tmp_path: Path) -> None:
    lines = (f'{{"id": "{n}", "problem": "{n} + 1", "answer": "{n + 1}"}}\n' for n in range(30))
    (tmp_path / "aime24.jsonl").write_text("".join(lines))
    for analysis, advised in (
        *((name, "paper_regret") for name in ("regret", "scaling", "progress")),
        *(("efficiency", "paper_20"), ("extrapolate", "paper_extrapolation")),
    ):
        analyze(analysis, submissions.run, "--suite", advised, "--benchmark", "aime24", "--data", tmp_path)
    assert len(submissions.recipes) == 5


def test_a_prover_that_is_set_makes_the_suite_fit(submissions: Submissions) -> None:
    small = (submissions.run, "--suite", "small_world", "--set", "evaluation.regret_budgets=[128, 256]")
    analyze("regret", *small, "--set", "evaluation.prover={type: forced_answer, branches: 8}")
    likelihood = "evaluation.prover={type: gold_likelihood, max_tokens: 8}"
    for analysis, more in (("scaling", ()), ("regret", ("--tokens", "all"))):
        refused([analysis, *small, "--set", likelihood, *more], "samples no answers")
    assert len(submissions.recipes) == 1


def test_the_models_of_an_evaluation_on_its_own_are_evaluated(submissions: Submissions, tmp_path: Path) -> None:
    alone = evaluation_directory(tmp_path / "alone", RunLayout(submissions.run), 0, 20).root
    submissions.publish()
    held_out = ("--suite", submissions.suite, "--benchmark", "held-out")
    for what in (alone, f"{alone}@grpo@20", f"{submissions.run}@first"):
        analyze("regret", what, *held_out)
    assert submissions.models == [["grpo@0", "grpo@20"], ["grpo@20"], ["grpo@0"]]
    refused(["regret", f"{alone}@grpo@21", *held_out], "one of grpo@0, grpo@20")
