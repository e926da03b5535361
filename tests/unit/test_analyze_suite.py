"""``mrt-hpc analyze --suite``: what does not suit the analysis is refused before anything is submitted; one benchmark
is evaluated; the same command draws once it is done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result
from evaluated import commit_all, evaluation_directory, run_directory

from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.cli.main import main
from mrt_hpc.evaluate import evaluation
from mrt_hpc.plan.compile import evaluation_plan
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task
from mrt_hpc.submit import create
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.recipe.schema import EvaluationRecipe

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
    """Stands in for the submission: it makes the run directory, and samples what it is told."""

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
    monkeypatch.setattr(evaluation, "submit_evaluation", found.submit)
    monkeypatch.setattr(create, "check_model", lambda _: None)  # these models are a file without content
    monkeypatch.chdir(tmp_path)
    return found


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(SUITE)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose weights versions 0 and 20 are there."""
    layout = run_directory(tmp_path / "grpo")
    for version in (0, 20):
        layout.weights_version(version).mkdir(parents=True)
        (layout.weights_version(version) / "config.json").write_text("{}")
    return layout.root


def analyze(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["analyze", *map(str, arguments)])


def test_a_queued_evaluation_is_told_and_the_same_command_draws_once_it_is_done(
    submissions: Submissions, suite: Path, run: Path
) -> None:
    command = ("regret", f"{run}@first,last", "--suite", suite, "--benchmark", "held-out", "--budgets", "60")
    queued = analyze(*command)
    assert queued.exit_code == 0, queued.output
    assert "0 of 4 evaluations are done: type the same command again then" in queued.output
    assert [b.name for b in submissions.recipes[0].evaluation.benchmarks] == ["held-out"], "no other one is evaluated"
    assert [model.name for model in submissions.recipes[0].models] == ["grpo@0", "grpo@20"]
    submissions.sampled = True
    done = analyze(*command)
    assert done.exit_code == 0, done.output
    assert submissions.roots[0] == submissions.roots[1], "the same directory"
    drawn = (submissions.roots[0] / "analysis" / "regret" / "regret.csv").read_text()
    assert [line.split(",")[0] for line in drawn.splitlines()] == ["model", "grpo@0", "grpo@20"]


def test_a_benchmark_has_a_directory_of_its_own(submissions: Submissions, suite: Path, run: Path) -> None:
    for analysis, benchmark in (("regret", "held-out"), ("scaling", "held-out"), ("extrapolate", "longer")):
        result = analyze(analysis, run, "--suite", suite, "--benchmark", benchmark)
        assert result.exit_code == 0, result.output
    same, again, other = submissions.roots
    assert same == again != other
    assert all(root.name.startswith("eval-mine-grpo-") for root in submissions.roots)


@pytest.mark.parametrize("analysis", ["regret", "scaling", "progress", "extrapolate"])
def test_a_suite_without_a_prover_is_refused_before_anything_is_submitted(
    submissions: Submissions, run: Path, analysis: str
) -> None:
    advised = "paper_extrapolation" if analysis == "extrapolate" else "paper_regret"
    result = analyze(analysis, run, "--suite", "paper_20", "--site", "local", "--data", "x y")
    assert result.exit_code == 2
    assert "this evaluation has no prover, so the prefixes of its samples would not be valued" in result.stderr
    assert (
        f"next:     mrt-hpc analyze {analysis} {run} --suite {advised} --site local --data 'x y' --benchmark aime24\n"
        in result.stderr
    )
    named = analyze(analysis, run, "--suite", "paper_20", "--benchmark", "math500")
    assert named.stderr.endswith(f"--suite {advised} --benchmark math500\n")
    assert not submissions.recipes
    assert analyze("efficiency", run, "--suite", "paper_20").stderr.startswith(
        "error: the suite has several benchmarks"
    )


def test_the_suites_that_are_advised_suit_their_analyses(submissions: Submissions, run: Path, tmp_path: Path) -> None:
    (tmp_path / "aime24.jsonl").write_text("".join(
        f'{{"id": "{n}", "problem": "{n} + 1", "answer": "{n + 1}"}}\n' for n in range(30)
    ))  # fmt: skip
    for analysis, advised in (
        ("regret", "paper_regret"), ("scaling", "paper_regret"), ("progress", "paper_regret"),
        ("efficiency", "paper_20"), ("extrapolate", "paper_extrapolation"),
    ):  # fmt: skip
        result = analyze(analysis, run, "--suite", advised, "--benchmark", "aime24", "--data", tmp_path)
        assert result.exit_code == 0, result.output
    assert len(submissions.recipes) == 5


def test_a_prover_that_is_set_makes_the_suite_fit(submissions: Submissions, run: Path) -> None:
    """As the error says."""
    small = ("--suite", "small_world", "--set", "evaluation.regret_budgets=[128, 256]")
    result = analyze("regret", run, *small, "--set", "evaluation.prover={type: forced_answer, branches: 8}")
    assert result.exit_code == 0, result.output
    assert len(submissions.recipes) == 1
    likelihood = "evaluation.prover={type: gold_likelihood, max_tokens: 8}"
    result = analyze("scaling", run, *small, "--set", likelihood)
    assert "the prover of this evaluation samples no answers" in result.stderr
    result = analyze("regret", run, *small, "--set", likelihood, "--tokens", "all")
    assert "the prover of this evaluation samples no answers" in result.stderr
    assert len(submissions.recipes) == 1


def test_one_benchmark_of_several_has_to_be_named_before_anything_is_submitted(
    submissions: Submissions, suite: Path, run: Path
) -> None:
    for analysis, suiting in (("regret", "held-out"), ("extrapolate", "longer")):
        result = analyze(analysis, run, "--suite", suite)
        assert result.exit_code == 2
        assert "the suite has several benchmarks, and an analysis is of one" in result.stderr
        assert f"expected: --benchmark with one of {suiting}\n" in result.stderr
        assert f"mrt-hpc analyze {analysis} {run} --suite {suite} --benchmark {suiting}\n" in result.stderr
    result = analyze("regret", run, "--suite", suite, "--benchmark", "held_out")
    assert "the suite has no such benchmark" in result.stderr
    assert f"--suite {suite} --benchmark held-out\n" in result.stderr
    assert not submissions.recipes


@pytest.mark.parametrize(
    ("analysis", "benchmark", "way"),
    [("extrapolate", "held-out", "direct"), ("regret", "longer", "extrapolation"), ("progress", "longer", "extra")],
)
def test_a_way_of_evaluating_that_does_not_suit_is_refused(
    submissions: Submissions, suite: Path, run: Path, analysis: str, benchmark: str, way: str
) -> None:
    result = analyze(analysis, run, "--suite", suite, "--benchmark", benchmark)
    assert result.exit_code == 2
    assert f"which {benchmark} would give" in result.stderr
    assert f"value:    '{way}" in result.stderr
    other = {"held-out": "longer", "longer": "held-out"}[benchmark]
    assert f"--suite {suite} --benchmark {other}\n" in result.stderr
    assert not submissions.recipes


def test_a_suite_without_any_suiting_benchmark_is_refused_with_one_that_has_some(
    submissions: Submissions, run: Path
) -> None:
    for analysis, given, advised in (
        ("extrapolate", "paper_regret", "paper_extrapolation"), ("scaling", "paper_extrapolation", "paper_regret"),
    ):  # fmt: skip
        result = analyze(analysis, run, "--suite", given)
        assert "which aime24, aime25, amc23, minerva, math500 would give" in result.stderr
        assert f"mrt-hpc analyze {analysis} {run} --suite {advised} --benchmark aime24\n" in result.stderr
    assert not submissions.recipes


def test_the_models_of_an_evaluation_on_its_own_are_evaluated(
    submissions: Submissions, suite: Path, run: Path, tmp_path: Path
) -> None:
    alone = evaluation_directory(tmp_path / "alone", RunLayout(run), 0, 20).root
    for version in (0, 20):
        RunLayout(run).weights_version(version).mkdir(parents=True)
        (RunLayout(run).weights_version(version) / "config.json").write_text("{}")
    for what in (alone, f"{alone}@grpo@20", f"{run}@first"):
        result = analyze("regret", what, "--suite", suite, "--benchmark", "held-out")
        assert result.exit_code == 0, result.output
    assert [[model.name for model in recipe.models] for recipe in submissions.recipes] == [
        ["grpo@0", "grpo@20"], ["grpo@20"], ["grpo@0"],
    ]  # fmt: skip
    result = analyze("regret", f"{alone}@grpo@21", "--suite", suite, "--benchmark", "held-out")
    assert "the evaluation has no model of this name" in result.stderr


@pytest.mark.parametrize("option", ["--site", "--set", "--results", "--data"])
def test_options_of_the_evaluation_need_a_suite(run: Path, option: str) -> None:
    result = analyze("regret", run, option, "x=1")
    assert result.exit_code == 2
    assert "--site, --set, --results and --data belong to the evaluation on a suite" in result.stderr
