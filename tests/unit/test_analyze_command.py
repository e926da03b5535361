"""``mrt-hpc analyze`` on a run directory as the evaluation writes it."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result
from evaluated import commit_all, commit_shard, commit_traces, evaluated_run, evaluation_directory, run_directory

from mrt_hpc.analysis.model_samples import EvaluatedBoundary, EvaluatedTrace
from mrt_hpc.cli.main import main
from mrt_hpc.run.data import read_problems

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.run.layout import RunLayout

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


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    """A run with samples of the weights versions 0 and 2."""
    return evaluated_run(tmp_path / "run", 0, 2)


@pytest.mark.parametrize("name", FILES)
def test_every_analysis_has_help_with_examples(name: str) -> None:
    result = analyze(name, "--help")
    assert result.exit_code == 0
    assert f"mrt-hpc analyze {name}" in result.output


@pytest.mark.parametrize("name", FILES)
def test_an_analysis_writes_tables_and_figures_and_the_same_bytes_again(run: RunLayout, name: str) -> None:
    result = analyze(name, run.root)
    assert result.exit_code == 0, result.output
    out = run.root / "analysis" / name
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    assert sorted(n.removesuffix(".csv") for n in first if n.endswith(".csv")) == FILES[name]
    for figure in [n.removesuffix(".png") for n in first if n.endswith(".png")]:
        assert first[f"{figure}.png"].startswith(b"\x89PNG")
        assert b"<svg" in first[f"{figure}.svg"]
    assert all(str(out / n) in result.output.replace("\n", "") for n in first)
    assert analyze(name, run.root, "--out", run.root / "again").exit_code == 0
    assert {path.name: path.read_bytes() for path in (run.root / "again").iterdir()} == first


def test_regret_of_two_versions(run: RunLayout, tmp_path: Path) -> None:
    """Worked out in test_analyses: 0.239583 at 60 tokens."""
    result = analyze("regret", f"{run.root}@0", f"{run.root}@2", "--budgets", "30,60", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "regret@60, run@2 against run@0: +0.000" in result.output.replace("\n", " ")
    found = rows(tmp_path / "out" / "regret.csv")
    assert [(r["model"], r["budget_tokens"]) for r in found] == [
        ("run@0", "30"), ("run@0", "60"), ("run@2", "30"), ("run@2", "60"),
    ]  # fmt: skip
    assert [float(r["difference"]) for r in rows(tmp_path / "out" / "regret_differences.csv")] == [0.0, 0.0]
    assert float(found[1]["regret"]) == pytest.approx((1 - (40 / 60 + 22.5 / 60) / 2) / 2)


def test_scaling_and_efficiency_of_the_last_version(run: RunLayout, tmp_path: Path) -> None:
    assert analyze("scaling", run.root, "--out", tmp_path).exit_code == 0
    four = [r for r in rows(tmp_path / "scaling.csv") if r["way"] == "maj@4 at prefix"]
    assert [float(r["accuracy"]) for r in four] == [1.0, 0.875, 0.75]
    assert analyze("efficiency", run.root, "--accuracy", "0.75, 1", "--out", tmp_path).exit_code == 0
    found = rows(tmp_path / "tokens_to_accuracy.csv")
    assert [(r["model"], r["accuracy"], r["tokens"]) for r in found] == [
        ("run@2", "0.75", "0"), ("run@2", "1", "not reached"),
    ]  # fmt: skip


def test_samples_that_are_missing_name_the_command_that_makes_them(run: RunLayout) -> None:
    commit_shard(run, 4, 0)
    for version in (3, 4):
        result = analyze("regret", f"{run.root}@{version}")
        assert result.exit_code == 2
        assert f"run@{version} has no complete evaluation on held-out" in result.stderr
        assert f"expected: one of {run.root}@0, {run.root}@2\n" in result.stderr
        assert f"mrt-hpc eval {run.root}@{version} --suite SUITE" in result.stderr


def test_the_last_version_is_the_last_one_with_all_samples(run: RunLayout, tmp_path: Path) -> None:
    commit_shard(run, 4, 0)
    assert analyze("regret", run.root, "--out", tmp_path).exit_code == 0
    assert {row["model"] for row in rows(tmp_path / "regret.csv")} == {"run@2"}


def test_samples_without_values_name_the_command_that_makes_them(run: RunLayout, tmp_path: Path) -> None:
    for shard in (0, 1):
        commit_shard(run, 3, shard, valued=False)
    for name in ("regret", "progress", "scaling"):
        result = analyze(name, f"{run.root}@3")
        assert result.exit_code == 2
        assert f"next:     mrt-hpc eval {run.root}@3 --suite paper_regret\n" in result.stderr
    result = analyze("efficiency", f"{run.root}@3", "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert "a trace that is stopped before its end counts as wrong" in result.output


def test_what_cannot_be_analysed_is_refused(run: RunLayout, tmp_path: Path) -> None:
    for arguments, words in (
        (["regret", tmp_path / "nothing"], "not a run directory"),
        (["regret", run.root, run.root], "named twice"),
        (["regret", run.root, "--benchmark", "aime"], "expected: one of held-out"),
        (["regret", f"{run.root}@newest"], "no such weights version"),
        (["regret", run.root, "--budgets", "0,5"], "not of the form 1024,2048"),
        (["efficiency", run.root, "--accuracy", "40"], "not of the form 0.3,0.4"),
        (["regret"], "Missing argument"),
    ):
        result = analyze(*arguments)
        assert result.exit_code == 2, result.output
        assert words in result.stderr
    assert not (run.root / "analysis").exists()


def test_runs_of_the_same_name_are_told_apart_and_those_of_other_problems_refused(tmp_path: Path) -> None:
    first, second = evaluated_run(tmp_path / "x" / "run", 0), evaluated_run(tmp_path / "y" / "run", 0)
    assert analyze("regret", first.root, second.root, "--out", tmp_path / "out").exit_code == 0
    names = {row["model"] for row in rows(tmp_path / "out" / "regret.csv")}
    assert names == {f"{first.root}@0", f"{second.root}@0"}
    other = evaluated_run(tmp_path / "z" / "run", 0, problems=1)
    result = analyze("regret", first.root, other.root)
    assert result.exit_code == 2
    assert "different problems of held-out" in result.stderr


def test_an_evaluation_on_its_own_gives_a_line_for_each_of_its_models(run: RunLayout, tmp_path: Path) -> None:
    alone = evaluation_directory(tmp_path / "alone", run_directory(tmp_path / "grpo"), 0, 20)
    result = analyze("regret", alone.root, f"{run.root}@0", "--budgets", "60")
    assert result.exit_code == 0, result.output
    found = rows(alone.root / "analysis" / "regret" / "regret.csv")
    assert [row["model"] for row in found] == ["grpo@0", "grpo@20", "run@0"]
    assert analyze("scaling", f"{alone.root}@grpo@20", "--out", tmp_path / "out").exit_code == 0
    assert {row["model"] for row in rows(tmp_path / "out" / "scaling.csv")} == {"grpo@20"}


def test_both_commands_say_in_the_same_words_what_they_take_and_how_votes_are_counted(run: RunLayout) -> None:
    helps = [CliRunner().invoke(main, [*words, "--help"]).output for words in (("compare",), ("analyze", "scaling"))]
    first, second = (text[text.index("WHAT is a run") :] for text in helps)
    assert first == second
    compared = CliRunner().invoke(main, ["compare", str(run.root), "--measure", "maj@2"])
    (told,) = (line for line in compared.output.splitlines() if line.startswith("note: votes:"))
    assert told in analyze("scaling", run.root).output.splitlines()


def test_one_of_several_benchmarks_has_to_be_named(tmp_path: Path) -> None:
    problems = "{type: small_world, split: held_out, problems: 2}"
    two = f"evaluation.benchmarks=[{{name: one, problems: {problems}}}, {{name: two, problems: {problems}}}]"
    result = analyze("regret", run_directory(tmp_path / "run", two).root)
    assert result.exit_code == 2
    assert "expected: one of one, two" in result.stderr


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
    result = analyze("regret", run.root, "--tokens", "all")
    assert result.exit_code == 2
    assert "no answers were forced at its prefixes, so their tokens cannot be counted" in result.stderr
