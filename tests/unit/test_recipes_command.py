"""Recipes, suites and site profiles are listed by their names, and copied to be edited."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mrt_hpc.cli.main import main
from mrt_hpc.cli.recipes import copy_of
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.recipe.find import KINDS, RECIPES, SITES, SUITES, entries, find
from mrt_hpc.recipe.load import load_recipe, load_site

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, and the user's configuration beside it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["recipes", *map(str, arguments)])


def listed() -> dict[tuple[str, str], dict[str, str]]:
    return {(row["kind"], row["name"]): row for row in json.loads(invoke("list", "--json").stdout)}


def test_all_that_comes_with_the_package_is_listed_with_its_first_line() -> None:
    rows = listed()
    files = {path.relative_to(ROOT / "recipes").with_suffix("") for path in (ROOT / "recipes").rglob("*.yaml")}
    names = {name for kind, name in rows if kind == "recipe"} | {
        f"suites/{name}" for kind, name in rows if kind == "suite"
    }
    assert names == {str(file) for file in files if "bases" not in file.parts}
    assert rows["recipe", "small_world/star"]["about"].startswith("STaR: the starting policy's right traces")
    assert rows["suite", "small_world"]["about"].startswith("The held-out problems of the embedded small world")
    assert rows["site profile", "example"]["path"] == str(ROOT / "slurm" / "sites" / "example.yaml")
    assert all(row["about"] for row in rows.values())


def test_a_pipe_gets_whole_lines() -> None:
    told = invoke("list").stdout
    for row in listed().values():
        assert row["about"] in told
        assert row["name"] in told
    assert "next: mrt-hpc plan NAME" in told


def test_the_users_own_take_the_place_of_the_packages(folder: Path) -> None:
    mine = folder.parent / "configuration" / "mrt-hpc" / "recipes" / "grpo.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("# Mine.\nextends: mrt_online\n")
    (folder / "slurm" / "sites").mkdir(parents=True)
    (folder / "slurm" / "sites" / "lab.yml").write_text("type: local\n")
    rows = listed()
    assert rows["recipe", "grpo"] == {"kind": "recipe", "name": "grpo", "about": "Mine.", "path": str(mine)}
    assert rows["site profile", "lab"]["about"] == ""
    for kind in KINDS:
        for entry in entries(kind):
            assert find(kind, entry.name) == entry.path


@pytest.mark.parametrize("name", ["mrt_online", "small_world/mrt", "recipes/small_world/mrt.yaml", "4x8/mrt_online"])
def test_a_copy_is_the_same_recipe_under_its_name(name: str, folder: Path) -> None:
    assert invoke("copy", name).exit_code == 0
    place = folder / "recipes" / f"{name.removeprefix('recipes/').removesuffix('.yaml')}.yaml"
    original = ROOT / place.relative_to(folder)
    assert place.read_bytes() == original.read_bytes()
    assert find(RECIPES, str(place.relative_to(folder / "recipes").with_suffix(""))) == place
    assert load_recipe(place).algorithm == load_recipe(original).algorithm


def test_the_paths_of_a_copy_start_at_its_folder(folder: Path) -> None:
    assert invoke("copy", "mrt_online").exit_code == 0
    data = load_recipe(folder / "recipes" / "mrt_online.yaml").data.model_dump()["path"]
    assert Path(data).resolve() == folder.resolve() / "data" / "numina_math_4000.jsonl"


def test_a_suite_takes_the_files_beside_it_along(folder: Path) -> None:
    told = invoke("copy", "paper_few_shot")
    suites = folder / "recipes" / "suites"
    assert sorted(path.name for path in suites.iterdir()) == ["paper_few_shot.yaml", "solved_problems.jsonl"]
    assert "wrote recipes/suites/solved_problems.jsonl" in told.stdout
    assert "--suite recipes/suites/paper_few_shot.yaml --plan" in told.stdout
    assert find(SUITES, "paper_few_shot") == suites / "paper_few_shot.yaml"


def test_a_site_profile_is_copied_under_another_name(folder: Path) -> None:
    told = invoke("copy", "example", "slurm/sites/mycluster.yaml")
    assert "next: edit it, then mrt-hpc plan quickstart --site slurm/sites/mycluster.yaml" in told.stdout
    copied, original = find(SITES, "mycluster"), ROOT / "slurm" / "sites" / "example.yaml"
    assert load_site(copied).model_dump() == load_site(original).model_dump()
    assert (folder / "slurm" / "sites" / "mycluster.yaml").is_file()


def test_nothing_is_replaced_without_force(folder: Path) -> None:
    (folder / "mine.yaml").write_text("precious")
    refused = invoke("copy", "grpo", "mine.yaml")
    assert refused.exit_code == ExitCode.FATAL
    assert "--force" in refused.stderr
    assert (folder / "mine.yaml").read_text() == "precious"
    assert invoke("copy", "grpo", "mine.yaml", "--force").exit_code == 0
    assert load_recipe(folder / "mine.yaml").name == load_recipe(ROOT / "recipes" / "grpo.yaml").name
    own = invoke("copy", folder / "mine.yaml", "mine.yaml", "--force")
    assert "would replace the original" in own.stderr


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match="no recipe, suite or site profile") as caught:
        copy_of("mrt_onlin", None)
    assert caught.value.advice == "mrt-hpc recipes copy mrt_online"


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "mrt_hpc", "--version"]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("mrt-hpc, version")
