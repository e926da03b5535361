"""``mrt-hpc validate``: a recipe is valid, or the error says what to change."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mrt_hpc.cli.main import main

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "recipes" / "quickstart.yaml")
RECIPES = sorted(str(path) for path in (ROOT / "recipes").rglob("*.yaml") if not {"bases", "suites"} & set(path.parts))


def validate(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["validate", *arguments])


def test_a_valid_recipe_has_a_summary_of_two_lines() -> None:
    result = validate(QUICKSTART, "--set", "training.learning_rate=2e-6")
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "valid",
        "  quickstart: mrt_online with prover forced_answer on small_world, 20 iterations of 32 problems x 8 rollouts",
        "  held-out (2 samples) of 2 weights versions; 1 segment(s), 5 jobs, 6 tasks",
        f"next: mrt-hpc plan {QUICKSTART} --set training.learning_rate=2e-6",
    ]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: Path(path).stem)
def test_every_recipe_of_the_package_is_valid(recipe: str) -> None:
    result = validate(recipe)
    assert result.exit_code == 0, result.output
    assert "valid" in result.output.splitlines()


def test_what_is_not_there_yet_is_told_and_no_error() -> None:
    result = validate(str(ROOT / "recipes" / "mrt_online.yaml"))
    assert result.exit_code == 0
    assert "not there yet, submit will refuse" in result.output


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.lerning_rate=1", ["learning_rate is the nearest"]),
        ("training.learning_rate=fast", ["training.learning_rate", "'fast'"]),
        ("schedule={iterations: 100000, iterations_per_job: 1}", ["segments"]),
    ],
)
def test_a_recipe_that_is_wrong_gives_the_error(override: str, words: list[str]) -> None:
    result = validate(QUICKSTART, "--set", override)
    assert result.exit_code == 2
    assert "valid" not in result.stdout.split()
    for word in words:
        assert word in result.stderr


def test_a_recipe_that_is_not_there_names_the_nearest() -> None:
    result = validate("quickstrat")
    assert result.exit_code == 2
    assert "quickstart" in result.stderr
