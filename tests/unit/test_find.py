"""Recipes and site profiles are found by path and by name, from any working directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from mrt_hpc.cli.main import main
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.find import RECIPES, SITES, Kind, find, folders

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
    assert "mrt-hpc plan quickstart" in message


def test_a_missing_path_names_its_nearest_neighbour(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").touch()
    with pytest.raises(UserError, match=r"mine\.yaml is the nearest"):
        find(RECIPES, str(tmp_path / "mime.yaml"))


@pytest.mark.parametrize("name", ["", " ", ".", "..", "/", "small_world"])
@pytest.mark.parametrize("kind", [RECIPES, SITES])
def test_what_is_no_name_of_a_file_is_refused_like_one_that_is_not_there(kind: Kind, name: str) -> None:
    with pytest.raises(UserError) as caught:
        find(kind, name)
    assert f"no such {kind.word}" in caught.value.what
    assert str(caught.value.advice).startswith("mrt-hpc ")


def test_a_folder_that_is_not_there_yet_is_named_among_the_places(tmp_path: Path) -> None:
    (tmp_path / "work" / "recipes").mkdir()
    with pytest.raises(UserError) as caught:
        find(RECIPES, "quikstart")
    where = str(caught.value.where).splitlines()
    mine = tmp_path / "config" / "mrt-hpc" / "recipes"
    assert any(str(mine) in line and "not there" in line for line in where)
    assert any(str(tmp_path / "work" / "recipes") in line and "holds none" in line for line in where)
    (of_checkout,) = [line for line in where if str(ROOT / "recipes") in line]
    assert "small_world/grpo" in of_checkout


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["plan", "quikstart"], "next:     mrt-hpc plan quickstart"),
        (["plan", "quickstart", "--site", "exampel"], "next:     mrt-hpc plan RECIPE --site example"),
        (["plan", "zzzz"], "next:     mrt-hpc plan NAME, NAME being one of these"),
    ],
)
def test_the_refusal_of_a_name_ends_with_what_to_type(arguments: list[str], advice: str) -> None:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert advice in done.stderr.splitlines()[-1]


def test_a_command_says_which_file_it_took() -> None:
    done = CliRunner().invoke(main, ["plan", "quickstart"])
    assert done.exit_code == 0
    assert f"recipe: {ROOT / 'recipes' / 'quickstart.yaml'}" in done.stderr
