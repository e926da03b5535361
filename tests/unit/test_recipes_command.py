"""Recipes, suites and site profiles are found by path and by name from any directory, listed, and copied."""

import json
from pathlib import Path

import pytest
from basics import ROOT
from commands import refusal, typed

from mrt_hpc.cli.recipes import copy_of
from mrt_hpc.recipe.find import KINDS, RECIPES, SITES, entries, find, folders
from mrt_hpc.recipe.load import load_recipe, load_site

EXAMPLE = ROOT / "slurm" / "sites" / "example.yaml"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, and the user's configuration below it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_first_of_the_folders_is_taken_and_before_all_the_path_that_was_typed(folder: Path) -> None:
    for name in ("quickstart", "quickstart.yaml", "recipes/quickstart.yaml"):
        assert find(RECIPES, name) == ROOT / "recipes" / "quickstart.yaml"
    assert find(RECIPES, "small_world/grpo") == ROOT / "recipes" / "small_world" / "grpo.yaml"
    below = write(folder / "recipes" / "quickstart.yaml")
    assert find(RECIPES, "quickstart") == below
    mine = write(folder / "configuration" / "mrt-hpc" / "recipes" / "quickstart.yaml", "# Mine.\nextends: grpo\n")
    assert find(RECIPES, "quickstart") == mine
    rows = listed()
    assert rows["recipe", "quickstart"] == {"kind": "recipe", "name": "quickstart", "about": "Mine.", "path": str(mine)}
    assert all(find(kind, entry.name) == entry.path for kind in KINDS for entry in entries(kind))
    write(folder / "quickstart.yaml")
    assert find(RECIPES, "quickstart.yaml") == Path("quickstart.yaml")


def test_a_name_that_is_not_there_is_refused_with_the_nearest_and_the_folders_that_are_there(folder: Path) -> None:
    write(folder / "mine.yaml")
    (folder / "recipes").mkdir()
    refused = refusal(find, RECIPES, "quikstart")
    assert str(refused.where).split(", ") == [str(folder), *(str(f) for f in folders(RECIPES) if f.is_dir())]
    assert str(refused.advice).startswith("mrt-hpc plan quickstart; ")
    assert str(refusal(find, RECIPES, str(folder / "mime.yaml")).expected).endswith("mine.yaml is the nearest")
    for kind in (RECIPES, SITES):
        for name in ("", " ", ".", "..", "/", "small_world"):
            assert refusal(find, kind, name).value == name, "no name of a file"


def listed() -> dict[tuple[str, str], dict[str, str]]:
    return {(row["kind"], row["name"]): row for row in json.loads(typed("recipes", "list", "--json").stdout)}


def test_all_that_comes_with_the_package_is_listed_with_its_first_line() -> None:
    rows = listed()
    files = {path.relative_to(ROOT / "recipes").with_suffix("") for path in (ROOT / "recipes").rglob("*.yaml")}
    folders_of = {"suite": "suites/", "shape": "shapes/"}
    names = {f"{folders_of.get(kind, '')}{name}" for kind, name in rows if kind != "site profile"}
    assert names == {str(file) for file in files if "bases" not in file.parts}
    assert rows["site profile", "example"]["path"] == str(EXAMPLE)
    shown = typed("recipes", "list").stdout
    for row in rows.values():
        assert row["about"] and row["about"] in shown and row["name"] in shown, "a pipe gets whole lines"


@pytest.mark.parametrize("name", ["mrt_online", "recipes/small_world/mrt.yaml"])
def test_a_copy_is_the_same_recipe_under_its_name_and_its_paths_start_at_its_folder(name: str, folder: Path) -> None:
    typed("recipes", "copy", name)
    place = folder / "recipes" / f"{name.removeprefix('recipes/').removesuffix('.yaml')}.yaml"
    original = ROOT / place.relative_to(folder)
    assert place.read_bytes() == original.read_bytes()
    assert find(RECIPES, str(place.relative_to(folder / "recipes").with_suffix(""))) == place
    assert load_recipe(place).algorithm == load_recipe(original).algorithm
    if name == "mrt_online":
        data = load_recipe(place).data.model_dump()["path"]
        assert Path(data).resolve() == folder.resolve() / "data" / "numina_math_4000.jsonl"


def test_a_suite_takes_the_files_beside_it_along_and_a_profile_gets_another_name(folder: Path) -> None:
    shown = typed("recipes", "copy", "paper_few_shot").stdout
    suites = folder / "recipes" / "suites"
    assert sorted(path.name for path in suites.iterdir()) == ["paper_few_shot.yaml", "solved_problems.jsonl"]
    assert "--suite recipes/suites/paper_few_shot.yaml --plan" in shown
    shown = typed("recipes", "copy", "example", "slurm/sites/mycluster.yaml").stdout
    assert "mrt-hpc plan quickstart --site slurm/sites/mycluster.yaml" in shown
    assert find(SITES, "mycluster") == folder / "slurm" / "sites" / "mycluster.yaml"
    assert load_site(find(SITES, "mycluster")).model_dump() == load_site(EXAMPLE).model_dump()


def test_an_example_is_copied_and_nothing_is_replaced_without_force(folder: Path) -> None:
    typed("recipes", "copy", "example:my_method")
    assert (folder / "my_method.py").read_bytes() == (ROOT / "recipes" / "examples" / "my_method.py").read_bytes()
    assert "recipes copy example:my_method" in typed("recipes", "copy", "example:my_metod", exits=2).output
    mine = write(folder / "mine.yaml", "precious")
    assert "--force" in typed("recipes", "copy", "grpo", "mine.yaml", exits=2).stderr
    assert mine.read_text() == "precious"
    typed("recipes", "copy", "grpo", "mine.yaml", "--force")
    assert load_recipe(mine).name == load_recipe(ROOT / "recipes" / "grpo.yaml").name
    typed("recipes", "copy", mine, "mine.yaml", "--force", exits=2)
    assert refusal(copy_of, "mrt_onlin", None).advice == "mrt-hpc recipes copy mrt_online"
