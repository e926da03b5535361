"""Wrong input to a command ends with exit code 2 and what to type next, never with a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mrt_hpc.cli.main import main

QUICKSTART = str(Path(__file__).parents[2] / "recipes" / "quickstart.yaml")


def refusal(*arguments: str) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.output


def last_line(message: str) -> str:
    return message.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sampling.rollouts_per_problem", 10**12),
        ("sampling.problems_per_iteration", 10**12),
        ("schedule.iterations", 10**8),
        ("seed", "fast"),
        ("name", "a b"),
    ],
)
def test_a_wrong_value_of_a_field(field: str, value: object) -> None:
    message = refusal("plan", QUICKSTART, "--set", f"{field}={value}")
    assert field in message
    assert last_line(message).endswith(f"change the option --set {field}={value}")


@pytest.mark.parametrize("text", ["nonsense", "evaluation.benchmarks.3.samples=1", "seed=[", "seed.x=1"])
def test_an_override_that_cannot_be_laid_over_the_recipe(text: str) -> None:
    assert last_line(refusal("plan", QUICKSTART, "--set", text)).startswith("  next:")


def test_a_plan_of_too_many_jobs_is_refused_before_it_is_built() -> None:
    message = refusal(
        "plan", QUICKSTART, "--set", "schedule.iterations=1000000", "--set", "schedule.iterations_per_job=1"
    )
    assert "schedule.iterations_per_job" in last_line(message)


def test_a_recipe_of_megabytes(tmp_path: Path) -> None:
    recipe = tmp_path / "data.json"
    recipe.write_text("[" + "1, " * 1_200_000 + "1]")
    message = refusal("plan", str(recipe))
    assert "3.6 MB" in message
    assert last_line(message).startswith("  next:")


@pytest.mark.parametrize("lines", ["-5", "0", "many"])
def test_a_number_of_lines_that_is_none(lines: str) -> None:
    assert "'-n'" in refusal("logs", "runs/quickstart", "-n", lines)


def test_a_run_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "FILE").write_text("")
    message = refusal("submit", QUICKSTART, "--run", str(tmp_path / "FILE" / "x"))
    assert str(tmp_path / "FILE") in message
    assert last_line(message).startswith("  next:")


def test_an_empty_run_directory() -> None:
    assert "--run" in last_line(refusal("plan", QUICKSTART, "--run", ""))


def test_the_home_directory_in_a_run_directory_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    result = CliRunner().invoke(main, ["plan", QUICKSTART, "--run", "~/x"])
    assert f"Run directory: {tmp_path / 'x'}" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "~no-such-user/mine.yaml"),
        ("plan", QUICKSTART, "--site", "~no-such-user/mine.yaml"),
        ("plan", QUICKSTART, "--run", "~no-such-user/x"),
        ("plan", QUICKSTART, "--set", "data={type: jsonl, path: ~no-such-user/x}"),
    ],
)
def test_the_home_directory_of_a_user_that_is_not_there(arguments: tuple[str, ...]) -> None:
    message = refusal(*arguments)
    assert "~no-such-user" in message
    assert last_line(message) == "  next:     write the path in full"


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    program = "import os; from mrt_hpc.cli.main import main; os.rmdir(os.getcwd()); main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "plan", QUICKSTART],
        cwd=gone,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert last_line(done.stderr).startswith("  next:")
