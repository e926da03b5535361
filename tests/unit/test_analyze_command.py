"""``mrt-hpc analyze`` on a run directory as the evaluation writes it, and with ``--suite``, which evaluates before."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result
from evaluated import commit_all, commit_shard, commit_traces, evaluated_run, evaluation_directory, run_directory

from mrt_hpc.analysis.model_samples import EvaluatedBoundary, EvaluatedTrace
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.cli.main import main
from mrt_hpc.evaluate import evaluation_alone
from mrt_hpc.plan.compile import evaluation_plan
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task
from mrt_hpc.submit import create
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mrt_hpc.recipe.schema import EvaluationRecipe

FILES = {
    "regret": ["areas_by_episode", "regret"],
    "scaling": ["earlier_votes", "equal_tokens", "scaling"],
    "progress": ["progress"],
    "efficiency": ["accuracy_by_tokens", "tokens_to_accuracy"],
}
"""The CSV files of each analysis."""


def analyze(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["analyze", *map(str, arguments)])


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as stream:
        return list(csv.DictReader(stream))


def refused(arguments: Sequence[object], *told: str) -> None:
    """An analysis is refused, and this stands in the message."""
    result = analyze(*arguments)
    assert result.exit_code == 2, result.output
    for words in told:
        assert words in result.stderr


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
    result = analyze(name, what)
    assert result.exit_code == 0, result.output
    out = run.root / "analysis" / name
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    assert sorted(n.removesuffix(".csv") for n in first if n.endswith(".csv")) == FILES[name]
    for figure in [n.removesuffix(".png") for n in first if n.endswith(".png")]:
        assert first[f"{figure}.png"].startswith(b"\x89PNG")
        assert b"<svg" in first[f"{figure}.svg"]
    assert all(str(out / n) in result.output.replace("\n", "") for n in first)
    assert analyze(name, what, "--out", run.root / "again" / name).exit_code == 0
    assert {path.name: path.read_bytes() for path in (run.root / "again" / name).iterdir()} == first


def test_regret_of_two_versions(run: RunLayout, tmp_path: Path) -> None:
    """Worked out in test_analyses: 0.239583 at 60 tokens."""
    result = analyze("regret", f"{run.root}@0", f"{run.root}@2", "--budgets", "30,60", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    found = rows(tmp_path / "out" / "regret.csv")
    assert [(r["model"], r["budget_tokens"]) for r in found] == [
        ("run@0", "30"), ("run@0", "60"), ("run@2", "30"), ("run@2", "60"),
    ]  # fmt: skip
    assert [float(r["difference"]) for r in rows(tmp_path / "out" / "regret_differences.csv")] == [0.0, 0.0]
    assert float(found[1]["regret"]) == pytest.approx((1 - (40 / 60 + 22.5 / 60) / 2) / 2)


def test_scaling_and_efficiency_of_a_version(run: RunLayout, tmp_path: Path) -> None:
    what = f"{run.root}@2"
    assert analyze("scaling", what, "--out", tmp_path).exit_code == 0
    four = [r for r in rows(tmp_path / "scaling.csv") if r["way"] == "maj@4 at prefix"]
    assert [float(r["accuracy"]) for r in four] == [1.0, 0.875, 0.75]
    assert analyze("efficiency", what, "--accuracy", "0.75, 1", "--out", tmp_path).exit_code == 0
    found = rows(tmp_path / "tokens_to_accuracy.csv")
    assert [(r["model"], r["accuracy"], r["tokens"]) for r in found] == [
        ("run@2", "0.75", "0"), ("run@2", "1", "not reached"),
    ]  # fmt: skip


def test_the_last_version_is_the_last_one_with_all_samples(run: RunLayout, tmp_path: Path) -> None:
    """It has no values, which efficiency does without."""
    assert analyze("efficiency", run.root, "--out", tmp_path).exit_code == 0
    assert {row["model"] for row in rows(tmp_path / "tokens_to_accuracy.csv")} == {"run@3"}
    for name in ("regret", "progress", "scaling"):
        refused([name, run.root], f"next:     mrt-hpc eval {run.root}@3 --suite paper_regret\n")


def test_what_cannot_be_analysed_is_refused(run: RunLayout, tmp_path: Path) -> None:
    there = ", ".join(f"{run.root}@{version}" for version in (0, 2, 3))
    for arguments, told in (
        (["regret", f"{run.root}@4"], [f"expected: one of {there}\n", f"mrt-hpc eval {run.root}@4 --suite SUITE"]),
        (["regret", f"{run.root}@5"], [f"expected: one of {there}\n", f"mrt-hpc eval {run.root}@5 --suite SUITE"]),
        (["regret", tmp_path / "nothing"], [str(tmp_path / "nothing")]),
        (["regret", run.root, run.root], ["named twice"]),
        (["regret", run.root, "--benchmark", "aime"], ["expected: one of held-out"]),
        (["regret", f"{run.root}@newest"], ["newest"]),
        (["regret", run.root, "--budgets", "0,5"], ["1024,2048"]),
        (["efficiency", run.root, "--accuracy", "40"], ["0.3,0.4"]),
        (["regret"], ["WHAT"]),
    ):
        refused(arguments, *told)
    for option in ("--site", "--set", "--results", "--data"):  # they belong to the evaluation on a suite
        refused(["regret", run.root, option, "x=1"], option)


def test_runs_of_the_same_name_are_told_apart_and_those_of_other_problems_refused(tmp_path: Path) -> None:
    first, second = evaluated_run(tmp_path / "x" / "run", 0), evaluated_run(tmp_path / "y" / "run", 0)
    assert analyze("regret", first.root, second.root, "--out", tmp_path / "out").exit_code == 0
    names = {row["model"] for row in rows(tmp_path / "out" / "regret.csv")}
    assert names == {f"{first.root}@0", f"{second.root}@0"}
    other = evaluated_run(tmp_path / "z" / "run", 0, problems=1)
    refused(["regret", first.root, other.root], "different problems of held-out", f"eval {first.root}")


def test_an_evaluation_on_its_own_gives_a_line_for_each_of_its_models(run: RunLayout, tmp_path: Path) -> None:
    alone = evaluation_directory(tmp_path / "alone", run_directory(tmp_path / "grpo"), 0, 20)
    result = analyze("regret", alone.root, f"{run.root}@0", "--budgets", "60")
    assert result.exit_code == 0, result.output
    found = rows(alone.root / "analysis" / "regret" / "regret.csv")
    assert [row["model"] for row in found] == ["grpo@0", "grpo@20", "run@0"]
    assert analyze("scaling", f"{alone.root}@grpo@20", "--out", tmp_path / "out").exit_code == 0
    assert {row["model"] for row in rows(tmp_path / "out" / "scaling.csv")} == {"grpo@20"}


def test_one_of_several_benchmarks_has_to_be_named(tmp_path: Path) -> None:
    problems = "{type: small_world, split: held_out, problems: 2}"
    two = f"evaluation.benchmarks=[{{name: one, problems: {problems}}}, {{name: two, problems: {problems}}}]"
    refused(["regret", run_directory(tmp_path / "run", two).root], "expected: one of one, two")


def test_the_tokens_of_a_boundary_are_those_of_the_option_or_of_the_recipe(tmp_path: Path) -> None:
    """With all tokens the values of the second problem, which are 1, begin at 12 tokens: 6 and 48 of 60."""
    run = run_directory(tmp_path / "run", "evaluation.regret_tokens=all")
    commit_all(run, 0)
    regrets = {}
    for options in ((), ("--tokens", "all"), ("--tokens", "sampled")):
        out = tmp_path / "out"
        assert analyze("regret", run.root, "--budgets", "60", "--out", out, *options).exit_code == 0
        regrets[options] = float(rows(out / "regret.csv")[0]["regret"])
    assert regrets[()] == regrets["--tokens", "all"]
    first = (12 * 0.25 + 40 * 0.625 + 8 * 0.75, 12 * 0.25 + 30 * 0.5 + 18 * (0.5 + 0.2) / 2)
    assert regrets[()] == pytest.approx(1 - (sum(first) / 2 + 6 + 48) / 60 / 2)
    assert regrets["--tokens", "sampled"] == pytest.approx((1 - (40 / 60 + 22.5 / 60) / 2) / 2)


def test_forced_tokens_cannot_be_counted_where_nothing_was_forced(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", problems=1, shards=1)
    problem = read_problems(run.benchmark_data("held-out"))[0].id
    valued = EvaluatedTrace(1.0, "R", 9, (EvaluatedBoundary(0, 0.5, ()), EvaluatedBoundary(9, 1.0, ())))
    commit_traces(run, 0, 0, {problem: [valued]})
    assert analyze("regret", run.root).exit_code == 0
    refused(["regret", run.root, "--tokens", "all"], "no answers were forced")


# -- with --suite


SUITE = r"""
prompt: {instruction: ""}
prover: {type: forced_answer, branches: 4, max_tokens: 4, temperature: 1.0}
episodes: {markers: [Wait], min_paragraphs: 1, max_episodes: 6}
benchmarks:
  - {name: longer, problems: {type: small_world, split: held_out, problems: 2}, samples: 2, mode: {type: extrapolation}}
  - {name: held-out, problems: {type: small_world, split: held_out, problems: 2}, samples: 2}
max_tokens: 64
problem_shards: 2
regret_budgets: [64]
"""


@dataclass
class Submissions:
    """Stands in for the submission: makes the run directory, and samples what it is told."""

    recipes: list[EvaluationRecipe] = field(default_factory=list)
    sampled: bool = False
    """Whether all is sampled."""
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


@pytest.fixture
def submissions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Submissions:
    found = Submissions()
    monkeypatch.setattr(evaluation_alone, "submit_evaluation", found.submit)
    monkeypatch.setattr(create, "check_model", lambda _: None)  # these models are a file without content
    monkeypatch.chdir(tmp_path)
    return found


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(SUITE)
    return path


@pytest.fixture
def grpo(tmp_path: Path) -> Path:
    """A run whose weights versions 0 and 20 are there."""
    layout = run_directory(tmp_path / "grpo")
    publish(layout)
    return layout.root


def publish(layout: RunLayout) -> None:
    for version in (0, 20):
        layout.weights_version(version).mkdir(parents=True)
        (layout.weights_version(version) / "config.json").write_text("{}")


def test_a_queued_evaluation_is_told_and_the_same_command_draws_once_it_is_done(
    submissions: Submissions, suite: Path, grpo: Path
) -> None:
    command = ("regret", f"{grpo}@first,last", "--suite", suite, "--benchmark", "held-out", "--budgets", "60")
    queued = analyze(*command)
    assert queued.exit_code == 0, queued.output
    assert "0 of 4 evaluations" in queued.output
    assert [b.name for b in submissions.recipes[0].evaluation.benchmarks] == ["held-out"], "no other one is evaluated"
    assert [model.name for model in submissions.recipes[0].models] == ["grpo@0", "grpo@20"]
    submissions.sampled = True
    done = analyze(*command)
    assert done.exit_code == 0, done.output
    assert submissions.roots[0] == submissions.roots[1], "the same directory"
    drawn = (submissions.roots[0] / "analysis" / "regret" / "regret.csv").read_text()
    assert [line.split(",")[0] for line in drawn.splitlines()] == ["model", "grpo@0", "grpo@20"]


def test_a_benchmark_has_a_directory_of_its_own(submissions: Submissions, suite: Path, grpo: Path) -> None:
    for analysis, benchmark in (("regret", "held-out"), ("scaling", "held-out"), ("extrapolate", "longer")):
        result = analyze(analysis, grpo, "--suite", suite, "--benchmark", benchmark)
        assert result.exit_code == 0, result.output
    same, again, other = submissions.roots
    assert same == again != other
    assert all(root.name.startswith("eval-mine-grpo-") for root in submissions.roots)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [  # the next command has the benchmark that was named, or the first one that suits
        *(
            ([analysis, *where], f"mrt-hpc analyze {analysis} RUN --suite {advised} {benchmark}\n")
            for analysis, advised in (
                ("regret", "paper_regret"), ("scaling", "paper_regret"), ("progress", "paper_regret"),
                ("extrapolate", "paper_extrapolation"),
            )
            for where, benchmark in (
                (("--suite", "paper_20", "--benchmark", "math500"), "--benchmark math500"),
                (("--suite", "paper_20", "--site", "local", "--data", "x y"),
                 "--site local --data 'x y' --benchmark aime24"),
            )
        ),
        (["efficiency", "--suite", "paper_20"], "mrt-hpc analyze efficiency RUN --suite paper_20 --benchmark aime24\n"),
        (["extrapolate", "--suite", "paper_regret"], "--suite paper_extrapolation --benchmark aime24\n"),
        (["scaling", "--suite", "paper_extrapolation"], "--suite paper_regret --benchmark aime24\n"),
        (["regret", "--suite", "SUITE"], "expected: --benchmark with one of held-out\n"),
        (["regret", "--suite", "SUITE"], "mrt-hpc analyze regret RUN --suite SUITE --benchmark held-out\n"),
        (["extrapolate", "--suite", "SUITE"], "mrt-hpc analyze extrapolate RUN --suite SUITE --benchmark longer\n"),
        (["regret", "--suite", "SUITE", "--benchmark", "held_out"], "--suite SUITE --benchmark held-out\n"),
        (["extrapolate", "--suite", "SUITE", "--benchmark", "held-out"], "value:    'direct"),
        (["extrapolate", "--suite", "SUITE", "--benchmark", "held-out"], "--suite SUITE --benchmark longer\n"),
        (["regret", "--suite", "SUITE", "--benchmark", "longer"], "value:    'extrapolation"),
        (["progress", "--suite", "SUITE", "--benchmark", "longer"], "--suite SUITE --benchmark held-out\n"),
    ],
)  # fmt: skip
def test_what_does_not_suit_the_analysis_is_refused_before_anything_is_submitted(
    submissions: Submissions, suite: Path, grpo: Path, arguments: list[str], told: str
) -> None:
    analysis, *options = arguments
    given = [str(suite) if word == "SUITE" else word for word in options]
    refused([analysis, grpo, *given], told.replace("RUN", str(grpo)).replace("SUITE", str(suite)))
    assert not submissions.recipes


def test_the_suites_that_are_advised_suit_their_analyses(submissions: Submissions, grpo: Path, tmp_path: Path) -> None:
    (tmp_path / "aime24.jsonl").write_text("".join(
        f'{{"id": "{n}", "problem": "{n} + 1", "answer": "{n + 1}"}}\n' for n in range(30)
    ))  # fmt: skip
    for analysis, advised in (
        ("regret", "paper_regret"), ("scaling", "paper_regret"), ("progress", "paper_regret"),
        ("efficiency", "paper_20"), ("extrapolate", "paper_extrapolation"),
    ):  # fmt: skip
        result = analyze(analysis, grpo, "--suite", advised, "--benchmark", "aime24", "--data", tmp_path)
        assert result.exit_code == 0, result.output
    assert len(submissions.recipes) == 5


def test_a_prover_that_is_set_makes_the_suite_fit(submissions: Submissions, grpo: Path) -> None:
    """As the error says."""
    small = ("--suite", "small_world", "--set", "evaluation.regret_budgets=[128, 256]")
    result = analyze("regret", grpo, *small, "--set", "evaluation.prover={type: forced_answer, branches: 8}")
    assert result.exit_code == 0, result.output
    assert len(submissions.recipes) == 1
    likelihood = "evaluation.prover={type: gold_likelihood, max_tokens: 8}"
    for analysis, more in (("scaling", ()), ("regret", ("--tokens", "all"))):
        refused([analysis, grpo, *small, "--set", likelihood, *more], "samples no answers")
    assert len(submissions.recipes) == 1


def test_the_models_of_an_evaluation_on_its_own_are_evaluated(
    submissions: Submissions, suite: Path, grpo: Path, tmp_path: Path
) -> None:
    alone = evaluation_directory(tmp_path / "alone", RunLayout(grpo), 0, 20).root
    publish(RunLayout(grpo))
    for what in (alone, f"{alone}@grpo@20", f"{grpo}@first"):
        result = analyze("regret", what, "--suite", suite, "--benchmark", "held-out")
        assert result.exit_code == 0, result.output
    assert [[model.name for model in recipe.models] for recipe in submissions.recipes] == [
        ["grpo@0", "grpo@20"], ["grpo@20"], ["grpo@0"],
    ]  # fmt: skip
    refused(["regret", f"{alone}@grpo@21", "--suite", suite, "--benchmark", "held-out"], "one of grpo@0, grpo@20")
