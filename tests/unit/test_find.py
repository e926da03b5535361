"""Recipes and site profiles are found by path and by name, from any working directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from mrt_hpc.cli.main import main
from mrt_hpc.recipe.errors import UserError
from mrt_hpc.recipe.find import RECIPES, SITES, find, folders

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and an empty home."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return work


@pytest.mark.parametrize("name", ["quickstart", "quickstart.yaml", "recipes/quickstart.yaml"])
def test_a_recipe_of_the_checkout_is_found_from_another_directory(name: str) -> None:
    assert find(RECIPES, name) == ROOT / "recipes" / "quickstart.yaml"


def test_a_recipe_in_a_folder_of_recipes_has_a_name(elsewhere: Path) -> None:
    assert find(RECIPES, "small_world/grpo") == ROOT / "recipes" / "small_world" / "grpo.yaml"
    mine = elsewhere / "recipes" / "quickstart.yaml"
    mine.parent.mkdir()
    mine.touch()
    assert find(RECIPES, "quickstart") == mine


def test_the_path_that_was_typed_comes_first(elsewhere: Path) -> None:
    (elsewhere / "quickstart.yaml").touch()
    assert find(RECIPES, "quickstart.yaml") == Path("quickstart.yaml")


def test_a_profile_of_the_user_comes_before_others(tmp_path: Path) -> None:
    assert find(SITES, "example") == ROOT / "slurm" / "sites" / "example.yaml"
    mine = tmp_path / "config" / "mrt-hpc" / "sites" / "example.yaml"
    mine.parent.mkdir(parents=True)
    mine.touch()
    assert find(SITES, "example") == mine


def test_an_error_names_each_folder_and_what_is_there(elsewhere: Path) -> None:
    (elsewhere / "mine.yaml").touch()
    with pytest.raises(UserError) as caught:
        find(RECIPES, "quikstart")
    message = caught.value.message()
    assert all(str(folder) in message for folder in (elsewhere, *folders(RECIPES)))
    assert "quickstart is the nearest" in message
    assert "small_world/grpo" in message
    assert "mine.yaml" in message
    assert "mrt-hpc fields recipe" in message


def test_a_missing_path_names_its_nearest_neighbour(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").touch()
    with pytest.raises(UserError, match=r"mine\.yaml is the nearest"):
        find(RECIPES, str(tmp_path / "mime.yaml"))


def test_a_command_says_which_file_it_took() -> None:
    done = CliRunner().invoke(main, ["plan", "quickstart"])
    assert done.exit_code == 0
    assert f"recipe: {ROOT / 'recipes' / 'quickstart.yaml'}" in done.stderr
