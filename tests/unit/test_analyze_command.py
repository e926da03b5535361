"""``mrt-hpc analyze`` on a run directory as the evaluation writes it."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result
from evaluated import commit_shard, evaluated_run

from mrt_hpc.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.run.layout import RunLayout

FILES = {
    "regret": ["areas_by_episode", "regret"],
    "scaling": ["scaling"],
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
    result = analyze("regret", f"{run.root}@0", f"{run.root}@v2", "--budgets", "30,60", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "run v2 against run v0 at 60 tokens, paired by problem: +0.000" in result.output.replace("\n", " ")
    found = rows(tmp_path / "out" / "regret.csv")
    assert [(r["model"], r["budget_tokens"]) for r in found] == [
        ("run v0", "30"), ("run v0", "60"), ("run v2", "30"), ("run v2", "60"),
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
        ("run v2", "0.75", "0"), ("run v2", "1", "not reached"),
    ]  # fmt: skip


def test_samples_that_are_missing_name_the_command_that_makes_them(run: RunLayout) -> None:
    commit_shard(run, 4, 0)
    for result, words in (
        (analyze("regret", run.root), "1 of 2 problems of held-out have no samples yet"),
        (analyze("regret", f"{run.root}@3"), "expected: one of the versions 0, 2, 4"),
    ):
        assert result.exit_code == 2
        assert words in result.stderr
        assert f"mrt-hpc eval {run.root}" in result.stderr


def test_samples_without_values_name_the_command_that_makes_them(run: RunLayout, tmp_path: Path) -> None:
    for shard in (0, 1):
        commit_shard(run, 3, shard, valued=False)
    for name in ("regret", "progress", "scaling"):
        result = analyze(name, f"{run.root}@3")
        assert result.exit_code == 2
        assert f"mrt-hpc eval {run.root}@3 --suite SUITE" in result.stderr
    result = analyze("efficiency", f"{run.root}@3", "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert "a trace that is stopped before its end counts as wrong" in result.output


def test_what_cannot_be_analysed_is_refused(run: RunLayout, tmp_path: Path) -> None:
    for arguments, words in (
        (["regret", tmp_path / "nothing"], "not a run directory"),
        (["regret", run.root, run.root], "named twice"),
        (["regret", run.root, "--benchmark", "aime"], "expected: one of held-out"),
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
    assert names == {str(first.root), str(second.root)}
    other = evaluated_run(tmp_path / "z" / "run", 0, problems=1)
    result = analyze("regret", first.root, other.root)
    assert result.exit_code == 2
    assert "different problems of held-out" in result.stderr
