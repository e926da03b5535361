"""Recipes and site profiles are read strictly, what does not go together is refused, and recipes extend others."""

import json
import re
from collections.abc import Callable
from functools import reduce
from pathlib import Path

import pytest
from basics import QUICKSTART, RECIPES, ROOT
from commands import recipe, refusal
from tables import tables

import mrt_hpc
from mrt_hpc.recipe.load import load_recipe, load_site, shorten_folder
from mrt_hpc.recipe.lock import differences, keep_lock_values, lock_text, read_recipe_lock
from mrt_hpc.recipe.source import read_source

TABLES = tables("recipe_load")


def test_every_site_profile_of_the_project_is_valid() -> None:
    for path in (*(ROOT / "slurm" / "sites").glob("*.yaml"), ROOT / "tests" / "slurm" / "onehost.yaml"):
        assert load_site(path).name


def test_overrides_replace_fields_and_list_items() -> None:
    changed = recipe("quickstart", "training.learning_rate=2e-6", "evaluation.benchmarks.0.samples=7")
    assert (changed.training.learning_rate, changed.evaluation.benchmarks[0].samples) == (2e-6, 7)
    assert str(RECIPES / "mu") == recipe("mrt_online", "prover.model=mu").prover.model  # type: ignore[union-attr]
    for override in ("nonsense", "evaluation.benchmarks.3.samples=1", "seed=[", "seed.x=1"):
        refused = refusal(recipe, "quickstart", override)
        assert override in refused.message() and "--set" in str(refused.advice)


def test_what_is_no_recipe_is_refused_with_its_place(tmp_path: Path) -> None:
    large, path = "[" + "1, " * 1_200_000 + "1]", tmp_path / "r.yaml"
    texts = {"a: [1": ", line ", "": "", "- 1\n- 2": "", "name: x\nname: y": ", line 2", large: "3,600,003 bytes"}
    for text, fact in texts.items():
        path.write_text(text)
        refused = refusal(load_recipe, path)
        assert str(refused.where).startswith(str(path)) and fact in refused.message() and refused.advice


def test_the_lock_gives_back_the_recipe_and_a_fault_in_it_names_its_line_and_version(tmp_path: Path) -> None:
    path, asked = tmp_path / "recipe.lock.yaml", recipe("mrt_online")
    path.write_text(lock_text(asked))
    assert read_recipe_lock(path) == asked
    text = re.sub(r"learning_rate:\s+1e-06", "learning_rate: fast", lock_text(asked))
    path.write_text(text)
    refused = refusal(read_recipe_lock, path)
    assert refused.where == f"{path}, line {text.partition('learning_rate: fast')[0].count(chr(10)) + 1}"
    assert "edit" not in str(refused.advice) and mrt_hpc.__version__ in str(refused.advice)


@pytest.mark.parametrize(("prover", "section", "field", "value"), TABLES["gone_fields"])
def test_a_field_that_is_gone_does_not_end_a_run_in_which_it_decided_nothing(
    tmp_path: Path, prover: str, section: str, field: str, value: object
) -> None:
    changes = ("data.verifier={type: exact}", f"prover={{type: {prover}, temperature: 1.0}}")
    path, asked = tmp_path / "recipe.lock.yaml", recipe("mrt_online", *changes)
    path.write_text(lock_text(asked))
    lock = read_source(path, advice="").data
    place = reduce(lambda at, step: at[int(step) if step.isdecimal() else step], section.split("."), lock["recipe"])
    place[field] = value
    path.write_text(json.dumps(lock))
    assert read_recipe_lock(path) == asked
    place[field] = "another"
    path.write_text(json.dumps(lock))
    assert f"{section}.{field}" in refusal(read_recipe_lock, path).message()


@pytest.mark.parametrize(("name", "former", "now"), TABLES["former_advantages"])
def test_a_run_that_was_begun_with_divide_by_std_goes_on_with_the_same_advantages(
    tmp_path: Path, name: str, former: dict[str, object], now: dict[str, object]
) -> None:
    path = tmp_path / "recipe.lock.yaml"
    path.write_text(lock_text(recipe(name)))
    lock = read_source(path, advice="").data
    algorithm = lock["recipe"]["algorithm"]
    for field in ("baseline", "normalise", "credit", "budget_tokens"):
        algorithm.pop(field, None)
    algorithm |= former
    path.write_text(json.dumps(lock))
    read = read_recipe_lock(path).algorithm.model_dump()
    assert {field: read[field] for field in now} == now


def test_an_unchanged_recipe_goes_on_with_a_run_of_other_defaults() -> None:
    wanted = recipe("length_penalty", "resources.inference.tasks=2")
    changed = wanted.algorithm.model_copy(update={"normalise": "group_std"})
    locked = wanted.model_copy(update={"algorithm": changed, "resources": load_recipe(QUICKSTART).resources})
    kept = keep_lock_values(locked, wanted)
    assert kept == wanted.model_copy(update={"algorithm": changed})
    found = list(differences(wanted.model_dump(mode="json"), kept.model_dump(mode="json")))
    assert found == [("algorithm.normalise", "none", "group_std")]
    for changes in (["training.learning_rate=3e-6"], ["algorithm={type: grpo}", "prover=null"], ["evaluation.every=9"]):
        wanted = recipe("mrt_online", *changes)
        assert keep_lock_values(recipe("mrt_online"), wanted) == wanted, "what it names is never taken from the lock"


BASE = TABLES["base"]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def written(text: str, name: str = "child.yaml", extends: str = "bases/base.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"extends: {extends}\n{text}\n" if extends else text)
        return path

    written(BASE, "bases/base.yaml", "")
    return written


def test_sections_are_merged_and_all_else_is_replaced(write: Callable[..., Path], tmp_path: Path) -> None:
    child = write("name: child\nepisodes: {markers: [But]}\nsampling: {max_tokens: 32}\ndata: {limit: null}")
    found = load_recipe(child)
    assert (found.name, found.episodes.markers, found.episodes.max_cuts) == ("child", ("But",), 5)
    assert (found.sampling.max_tokens, found.sampling.problems_per_iteration) == (32, 4)
    assert found.data.limit is None, "null removes what the base has set"
    assert load_recipe(child, ("sampling.max_tokens=16",)).sampling.max_tokens == 16, "an option comes last"
    other, same = (load_recipe(write(f"algorithm: {{type: {kind}}}")) for kind in ("length_penalty", "grpo"))
    assert other.algorithm.model_dump()["coefficient"] == 0.2
    assert same.algorithm.model_dump()["normalise"] == "group_std"
    moved = load_recipe(write("data: {type: jsonl, path: mine.jsonl}"))
    assert moved.model.path == str(tmp_path / "bases" / "models" / "one"), "paths start at the file that names them"
    assert moved.data.path == str(tmp_path / "mine.jsonl")
    lock = lock_text(load_recipe(write("seed: 5")))
    assert lock == lock_text(load_recipe(write(f"{BASE}seed: 5\n", "bases/whole.yaml", ""))), "the resolved recipe"
    write("name: middle\nseed: 3", "middle.yaml")
    last = load_recipe(write("name: last", extends="middle"))
    assert (last.name, last.seed, last.sampling.max_tokens) == ("last", 3, 64), "a chain of three"
    assert load_recipe(write("name: mine", extends="quickstart")).algorithm.type == "mrt_online"


def test_a_fault_has_the_place_where_it_stands(write: Callable[..., Path]) -> None:
    for child, field, file, line in TABLES["places"]:
        write(BASE.replace("1e-3", "0") if file == "base.yaml" else BASE, "bases/base.yaml", "")
        refused = refusal(load_recipe, write(child))
        assert refused.what.startswith(field)
        assert str(refused.where).endswith(f"{file}, line {line}") and str(refused.advice).endswith(file)


def test_a_base_that_is_missing_or_extends_the_recipe_is_refused_with_file_and_line(write: Callable[..., Path]) -> None:
    write("", "other.yaml", "child.yaml")
    for extends in ("nowhere.yaml", "[a, b]", "''", "other.yaml", "child.yaml"):
        refused = refusal(load_recipe, write("name: a", extends=extends))
        assert refused.what.startswith("extends: ") and ", line 1" in str(refused.where)


def test_recipes_of_the_small_world_differ_in_their_method_alone() -> None:
    quickstart = recipe("quickstart")
    for path in (*(RECIPES / "small_world").glob("*.yaml"), *(RECIPES / "papers").glob("*.yaml")):
        found = load_recipe(path)
        for section in ("model", "prompt", "serving", "evaluation", "resources"):
            assert getattr(found, section) == getattr(quickstart, section), f"{path.stem}: {section}"


def test_a_base_in_another_folder_names_its_files_as_it_does_alone(write: Callable[..., Path], tmp_path: Path) -> None:
    alone = write("model: {path: models/small}", "base.yaml", f"{RECIPES}/grpo.yaml")
    assert load_recipe(write("", "variants/base.yaml", "../base")) == load_recipe(alone)
    (tmp_path / "variants" / "linked").symlink_to(tmp_path / "bases")
    detour = tmp_path / "variants" / "linked" / ".."
    assert shorten_folder(detour) == detour, "a symbolic link leads elsewhere"
    assert shorten_folder(tmp_path / "bases" / "..") == tmp_path


def test_data_are_found_beside_the_recipe_or_else_in_the_users_folder_and_never_in_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, own = tmp_path / "share" / "mrt-hpc", tmp_path / "xdg" / "mrt-hpc" / "data"
    for folder in (package, tmp_path / "mine"):
        (folder / "recipes").mkdir(parents=True)
        fields = "extends: small_world/grpo\ndata: {type: jsonl, path: ../data/some.jsonl, limit: null}\n"
        (folder / "recipes" / "r.yaml").write_text(fields)
    monkeypatch.setattr("mrt_hpc.recipe.find.installed_folders", lambda: [package])
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    packaged, mine = package / "recipes" / "r.yaml", tmp_path / "mine" / "recipes" / "r.yaml"

    def found(path: Path, data: Path | None = None) -> Path:
        return Path(load_recipe(path, (), data).data.path).resolve()  # type: ignore[union-attr]

    assert found(packaged) == own / "some.jsonl", "where `data fetch` writes it"
    assert found(mine) == tmp_path / "mine" / "data" / "some.jsonl", "none is there yet: the path of the recipe is told"
    own.mkdir(parents=True)
    (own / "some.jsonl").touch()
    assert {found(packaged), found(mine)} == {own / "some.jsonl"}
    (tmp_path / "mine" / "data").mkdir()
    (tmp_path / "mine" / "data" / "some.jsonl").touch()
    assert found(mine) == tmp_path / "mine" / "data" / "some.jsonl"
    assert {found(path, tmp_path / "other") for path in (packaged, mine)} == {tmp_path / "other" / "some.jsonl"}


def test_budgets_of_regret_that_no_recipe_names_follow_the_limit_of_tokens() -> None:
    prover, none = "evaluation.prover={type: forced_answer, max_tokens: 4}", "evaluation.regret_budgets=null"
    for limit, budgets in ((100, (100,)), (9000, (4096, 8192)), (32768, (4096, 8192, 12288, 16384))):
        assert recipe("quickstart", prover, none, f"evaluation.max_tokens={limit}").evaluation.budgets == budgets
    refused = refusal(recipe, "quickstart", prover, "evaluation.regret_budgets=[200]", "evaluation.max_tokens=100")
    assert refused.what.startswith("evaluation.regret_budgets")


@pytest.mark.parametrize(("name", "field", "changes"), TABLES["misfits"])
def test_what_does_not_go_together(name: str, field: str, changes: tuple[str, ...]) -> None:
    refused = refusal(recipe, name if name == "quickstart" else f"small_world/{name}", *changes)
    assert refused.what.startswith(f"{field}: does not fit")


def test_a_misfit_shows_the_value_and_an_option_that_removes_it() -> None:
    for value, fits, *changes in TABLES["mended"]:
        refused = refusal(recipe, "small_world/grpo", *changes)
        assert repr(refused.value) == value
        assert str(refused.advice).startswith(f"--set {fits}, or ")
        recipe("small_world/grpo", *changes, fits)


def test_aliases_of_aliases_are_refused_before_they_fill_the_memory(tmp_path: Path) -> None:
    nines = {n: f"[{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)}
    listed = ["a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]", *(f"a{n}: &a{n} {nine}" for n, nine in nines.items())]
    for lines in (listed, ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: {nine}}}" for n, nine in nines.items())]):
        (tmp_path / "many.yaml").write_text("\n".join(lines))
        assert "100,000 fields" in refusal(load_recipe, tmp_path / "many.yaml").what
