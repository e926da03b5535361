"""Recipes that extend others: what is merged, what is replaced, and where a fault is said to stand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.load import load_recipe, merged, read_recipe_source, without_detour
from mrt_hpc.recipe.lock import lock_text

if TYPE_CHECKING:
    from collections.abc import Callable

RECIPES = Path(__file__).parents[2] / "recipes"
SMALL_WORLD = sorted((RECIPES / "small_world").glob("*.yaml"))
BASE = """\
name: base
model: {type: hugging_face, path: models/one}
data: {type: jsonl, path: problems.jsonl, limit: 9}
algorithm: {type: grpo, divide_by_std: false}
sampling:
  problems_per_iteration: 4
  max_tokens: 64
training: {learning_rate: 1e-3, betas: [0.9, 0.99]}
schedule: {iterations: 2, iterations_per_job: 1}
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    def written(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    written("bases/base.yaml", BASE)
    return written


def test_sections_are_merged_and_lists_and_values_are_replaced(write: Callable[[str, str], Path]) -> None:
    child = write(
        "child.yaml",
        "extends: bases/base.yaml\nname: child\ntraining: {betas: [0.8, 0.9]}\nsampling: {max_tokens: 32}\n",
    )
    recipe = load_recipe(child)
    assert (recipe.name, recipe.training.betas, recipe.training.learning_rate) == ("child", (0.8, 0.9), 1e-3)
    assert (recipe.sampling.max_tokens, recipe.sampling.problems_per_iteration) == (32, 4)


def test_a_section_of_another_type_replaces_the_whole_section(write: Callable[[str, str], Path]) -> None:
    child = write("child.yaml", "extends: bases/base.yaml\nalgorithm: {type: length_penalty}\n")
    assert load_recipe(child).algorithm.model_dump()["coefficient"] == 0.2
    same = write("same.yaml", "extends: bases/base.yaml\nalgorithm: {type: grpo}\n")
    assert not load_recipe(same).algorithm.model_dump()["divide_by_std"]


def test_null_removes_what_the_base_has_set(write: Callable[[str, str], Path]) -> None:
    child = write("child.yaml", "extends: bases/base.yaml\ndata: {limit: null}\n")
    assert load_recipe(child).data.limit is None


def test_relative_paths_start_at_the_file_that_names_them(write: Callable[[str, str], Path], tmp_path: Path) -> None:
    child = write("child.yaml", "extends: bases/base.yaml\ndata: {type: jsonl, path: mine.jsonl}\n")
    recipe = load_recipe(child)
    assert recipe.model.path == str(tmp_path / "bases" / "models" / "one")
    assert recipe.data.path == str(tmp_path / "mine.jsonl")


def test_an_option_comes_last(write: Callable[[str, str], Path]) -> None:
    child = write("child.yaml", "extends: bases/base.yaml\nsampling: {max_tokens: 32}\n")
    assert load_recipe(child, ("sampling.max_tokens=16",)).sampling.max_tokens == 16


def test_a_chain_of_three(write: Callable[[str, str], Path]) -> None:
    write("middle.yaml", "extends: bases/base.yaml\nname: middle\nseed: 3\n")
    last = load_recipe(write("last.yaml", "extends: middle\nname: last\n"))
    assert (last.name, last.seed, last.sampling.max_tokens) == ("last", 3, 64)


def test_a_base_is_found_by_the_name_of_a_recipe_too(write: Callable[[str, str], Path]) -> None:
    assert load_recipe(write("mine.yaml", "extends: quickstart\nname: mine\n")).algorithm.type == "mrt_online"


@pytest.mark.parametrize(
    ("child", "words", "file", "line"),
    [
        ("name: child\nsampling: {max_tokens: much}\n", "sampling.max_tokens", "child.yaml", 3),
        ("name: child\nsampling: {max_toknes: 3}\n", "max_tokens is the nearest", "child.yaml", 3),
        ("name: child\n", "training.learning_rate", "base.yaml", 8),
        ("name: child\nalgorithm: {type: star, alpha: 1}\n", "algorithm.sequences_per_iteration", "child.yaml", 3),
    ],
)
def test_a_fault_is_told_where_it_stands(
    write: Callable[[str, str], Path], child: str, words: str, file: str, line: int
) -> None:
    write("bases/base.yaml", BASE.replace("1e-3", "0") if file == "base.yaml" else BASE)
    with pytest.raises(UserError) as refusal:
        load_recipe(write("child.yaml", f"extends: bases/base.yaml\n{child}"))
    assert words in str(refusal.value)
    assert str(refusal.value.where).endswith(f"{file}, line {line}")
    assert str(refusal.value.advice).endswith(file)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("extends: nowhere.yaml\n", "there is no such recipe"),
        ("extends: [a, b]\n", "the path or the name of another recipe"),
        ("extends: ''\n", "the path or the name of another recipe"),
        ("name: a\nextends: other.yaml\n", "in a circle"),
        ("extends: child.yaml\n", "in a circle"),
    ],
)
def test_a_base_that_cannot_be_used_is_refused_with_file_and_line(
    write: Callable[[str, str], Path], text: str, words: str
) -> None:
    write("other.yaml", "extends: child.yaml\n")
    with pytest.raises(UserError) as refusal:
        load_recipe(write("child.yaml", text))
    assert words in str(refusal.value)
    assert ", line " in str(refusal.value.where)
    assert "edit " in str(refusal.value.advice)


def test_the_lock_holds_the_resolved_recipe(write: Callable[[str, str], Path], tmp_path: Path) -> None:
    child = load_recipe(write("child.yaml", "extends: bases/base.yaml\nseed: 5\n"))
    whole = load_recipe(write("bases/whole.yaml", f"{BASE}seed: 5\n"))
    assert lock_text(child) == lock_text(whole)
    assert "extends" not in lock_text(child)
    assert str(tmp_path / "bases" / "problems.jsonl") in lock_text(child)


@pytest.mark.parametrize("path", SMALL_WORLD, ids=lambda path: path.stem)
def test_recipes_of_the_small_world_differ_in_their_method_alone(path: Path) -> None:
    recipe, quickstart = load_recipe(path), load_recipe(RECIPES / "quickstart.yaml")
    assert len(path.read_text().splitlines()) <= 20, "a recipe shows what makes it what it is"
    for section in ("model", "prompt", "serving", "evaluation", "resources"):
        assert getattr(recipe, section) == getattr(quickstart, section), section


SECTIONS = st.recursive(
    st.integers() | st.none() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b", "type"]), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=8,
)
DATA = st.dictionaries(st.sampled_from(["a", "b", "c"]), SECTIONS, max_size=3)


@given(DATA)
def test_a_recipe_without_differences_is_its_base(data: dict[str, Any]) -> None:
    assert merged(data, {}) == data
    assert merged(data, data) == data


@given(DATA, DATA)
def test_what_a_recipe_says_holds(base: dict[str, Any], own: dict[str, Any]) -> None:
    found = merged(base, own)
    assert found.keys() == base.keys() | own.keys()
    for name, value in own.items():
        if not isinstance(value, dict):
            assert found[name] == value
    assert merged(found, own) == found


def test_places_are_ordered_as_a_reader_meets_them(write: Callable[[str, str], Path]) -> None:
    source = read_recipe_source(write("child.yaml", "extends: bases/base.yaml\nseed: 1\n"), advice="")
    own, below = source.places["seed",], source.places["training",]
    assert own < below
    assert (below.depth, below.path.name) == (1, "base.yaml")
    assert "extends" not in source.data


def test_a_base_in_another_folder_names_its_files_as_it_does_alone(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(f"extends: {RECIPES}/grpo.yaml\nmodel: {{path: models/small}}\n")
    (tmp_path / "variants").mkdir()
    variant = tmp_path / "variants" / "base.yaml"
    variant.write_text("extends: ../base\n")
    assert load_recipe(variant) == load_recipe(tmp_path / "base.yaml")


def test_a_folder_behind_a_symbolic_link_keeps_its_detour(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "variants").mkdir(parents=True)
    (tmp_path / "variants").symlink_to(tmp_path / "elsewhere" / "variants")
    detour = tmp_path / "variants" / ".."
    assert without_detour(detour) == detour
    assert without_detour(tmp_path / "elsewhere" / "variants" / "..") == tmp_path / "elsewhere"
