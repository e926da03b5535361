"""Recipes are read strictly: what is wrong is named with file, line, field, value and the nearest valid name."""

from __future__ import annotations

from pathlib import Path

import pytest

import mrt_hpc
from mrt_hpc.backends.slurm.site import SlurmSite, unknown_options
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.load import load_recipe, load_site
from mrt_hpc.recipe.lock import as_begun, differences, lock_text, read_recipe_lock
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.sections import Coupling

RECIPES = Path(__file__).parents[2] / "recipes"
PROFILES = [
    *sorted((RECIPES.parent / "slurm" / "sites").glob("*.yaml")),
    RECIPES.parent / "tests" / "slurm" / "onehost.yaml",
]
QUICKSTART = RECIPES / "quickstart.yaml"


def refusal(*overrides: str, recipe: Path = QUICKSTART) -> str:
    with pytest.raises(UserError) as caught:
        load_recipe(recipe, overrides)
    return str(caught.value)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_recipe_of_the_project_is_valid(path: Path) -> None:
    assert isinstance(load_recipe(path), Recipe)


def test_overrides_replace_fields_and_list_items() -> None:
    recipe = load_recipe(
        QUICKSTART, ("training.learning_rate=2e-6", "evaluation.benchmarks.0.samples=7", "schedule.coupling=sequential",
                     "schedule.iterations_per_job=1")
    )  # fmt: skip
    assert recipe.training.learning_rate == 2e-6
    assert recipe.evaluation.benchmarks[0].samples == 7
    assert recipe.schedule.coupling is Coupling.SEQUENTIAL


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.learning_rat=1", ["no such field", "learning_rate is the nearest"]),
        ("algorithm.alpa=2", ["algorithm.alpa", "alpha is the nearest"]),
        ("algorithm.type=grp", ["algorithm.type", "'grp'", "grpo is the nearest"]),
        ("resources.trainer.gpu=1", ["gpus is the nearest"]),
        ("training.learning_rate=fast", ["'fast'", "a number from 1e-12 to 1"]),
        ("sampling.max_tokens=1.5", ["1.5", "a whole number"]),
        ("seed=-1", ["-1", "a whole number from 0 to"]),
        ("sampling.top_p=0.9", ["refused in training"]),
        ("prover=null", ["mrt_online needs a prover"]),
        ("evaluation.benchmarks.0.problems.split=test", ["benchmarks.0.problems.split", "one of train, held_out"]),
        ("evaluation.benchmarks.3.samples=1", ["no such list item", "from 0 to 0"]),
        ("nonsense", ["not an override"]),
        ("name=a b", ["'a b'"]),
        ("training.learning_rate=.inf", ["training.learning_rate"]),
    ],
)
def test_a_wrong_override_is_explained(override: str, words: list[str]) -> None:
    message = refusal(override)
    for word in [*words, override]:
        assert word in message


def test_a_wrong_field_is_named_with_its_line(tmp_path: Path) -> None:
    text = QUICKSTART.read_text().replace("  zero_stage: 0", "  zero_stag: 0")
    path = tmp_path / "r.yaml"
    path.write_text(text)
    line = text.splitlines().index("  zero_stag: 0") + 1
    message = refusal(recipe=path)
    assert f"{path}, line {line}" in message
    assert "zero_stage is the nearest" in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1", ["not YAML", "line"]),
        ("", ["holds no fields"]),
        ("- 1\n- 2", ["holds no fields"]),
        ("name: x\nname: y", ["line 2"]),
    ],
)
def test_what_is_no_recipe_is_refused_in_words(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    message = refusal(recipe=path)
    for word in words:
        assert word in message


def test_combinations_that_do_not_fit_say_why() -> None:
    assert "1 or less" in refusal("schedule.coupling=sequential")
    assert "nothing to do" in refusal("resources.inference.tasks=1000")
    assert "compares the rollouts" in refusal("sampling.rollouts_per_problem=1")
    assert "multiple of ranks_per_node" in refusal("resources.trainer.ranks=5", "resources.trainer.ranks_per_node=2")


def test_relative_paths_start_at_the_recipe() -> None:
    recipe = load_recipe(RECIPES / "mrt_online.yaml", ("prover.model=mu",))
    assert recipe.prover is not None
    assert recipe.prover.model == str(RECIPES / "mu")
    assert str(RECIPES) in recipe.data.path  # type: ignore[union-attr]


def test_the_lock_gives_back_the_recipe(tmp_path: Path) -> None:
    recipe = load_recipe(QUICKSTART, ("training.learning_rate=3e-7",))
    path = tmp_path / "recipe.lock.yaml"
    path.write_text(lock_text(recipe))
    assert read_recipe_lock(path) == recipe


def test_site_profiles(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text("type: slurm\nname: here\npartitions: {cpu: short}\n")
    assert load_site(path).name == "here"
    path.write_text("type: slurm\nname: here\npartition: {cpu: short}\n")
    with pytest.raises(UserError, match="partitions is the nearest"):
        load_site(path)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (r'account: "lab\n#SBATCH --uid=0"', ["account", "without a line break", "line 3"]),
        (r'partitions: {cpu: "short\rx"}', ["partitions.cpu", "without a line break"]),
        (r'sbatch: {constraint: "ib\n"}', ["sbatch.constraint", "without a line break"]),
        (r'container: {image: "a\tb.sif"}', ["container.image", "without a line break"]),
        (r'scratch: "/s\n"', ["scratch", "without a line break"]),
        ("sbatch: {array: 0-3}", ["sbatch.array", "the plan of a run sets it"]),
        ("sbatch: {dependency: singleton}", ["sbatch.dependency", "the plan of a run sets it"]),
        ("sbatch: {time: '5'}", ["sbatch.time", "the plan of a run sets it"]),
    ],
)
def test_a_site_profile_adds_no_lines_to_job_scripts_and_replaces_none(
    tmp_path: Path, field: str, words: list[str]
) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(f"type: slurm\nname: here\n{field}\n")
    with pytest.raises(UserError) as refused:
        load_site(path)
    for word in words:
        assert word in str(refused.value)


def test_an_option_that_sbatch_does_not_know_is_named() -> None:
    site = SlurmSite(name="here", sbatch={"constrain": "ib", "exclusive": "user"})
    (said,) = unknown_options(site)
    assert "--constrain (the nearest is --constraint)" in said


@pytest.mark.parametrize("path", PROFILES, ids=lambda p: p.stem)
def test_every_site_profile_of_the_project_is_valid(path: Path) -> None:
    assert load_site(path).name


def advice(refused: pytest.ExceptionInfo[UserError]) -> str:
    return str(refused.value.advice)


def test_a_fault_in_an_option_says_to_change_the_option() -> None:
    with pytest.raises(UserError) as refused:
        load_recipe(RECIPES / "mrt_online.yaml", ("training.learning_rate=fast",))
    assert advice(refused) == "change the option --set training.learning_rate=fast"


def test_a_fault_in_the_file_says_to_edit_it_and_names_the_options_that_may_be_the_cause(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text((RECIPES / "mrt_online.yaml").read_text().replace("learning_rate: 1e-6", "learning_rate: fast"))
    with pytest.raises(UserError) as refused:
        load_recipe(path)
    assert advice(refused) == f"edit {path}"
    with pytest.raises(UserError) as refused:
        load_recipe(RECIPES / "mrt_online.yaml", ("schedule.max_staleness=9",))
    assert "keep_weights" in refused.value.what
    assert advice(refused).endswith("or change the options --set schedule.max_staleness=9")


def test_a_fault_in_a_lock_names_its_line_and_the_version_that_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "recipe.lock.yaml"
    text = lock_text(load_recipe(RECIPES / "mrt_online.yaml")).replace("learning_rate: 1e-06", "learning_rate: fast")
    path.write_text(text)
    line = text.splitlines().index("    learning_rate: fast") + 1
    with pytest.raises(UserError) as refused:
        read_recipe_lock(path)
    assert refused.value.where == f"{path}, line {line}"
    assert "edit" not in advice(refused)
    assert f"this is {mrt_hpc.__version__}" in advice(refused)


def test_an_unchanged_recipe_goes_on_with_a_run_of_other_defaults() -> None:
    wanted = load_recipe(RECIPES / "length_penalty.yaml", ("resources.inference.tasks=2",))
    changed = wanted.algorithm.model_copy(update={"divide_by_std": True})
    locked = wanted.model_copy(update={"algorithm": changed, "resources": load_recipe(QUICKSTART).resources})
    kept = as_begun(locked, wanted)
    assert kept == wanted.model_copy(update={"algorithm": changed})
    found = list(differences(wanted.model_dump(mode="json"), kept.model_dump(mode="json")))
    assert found == [("algorithm.divide_by_std", False, True)]


def test_what_a_recipe_names_is_never_taken_from_the_lock() -> None:
    locked = load_recipe(RECIPES / "mrt_online.yaml")
    for change in ("training.learning_rate=3e-6", "algorithm={type: grpo}", "evaluation.benchmarks=[]"):
        changes = (change, "prover=null") if "grpo" in change else (change,)
        wanted = load_recipe(RECIPES / "mrt_online.yaml", changes)
        assert as_begun(locked, wanted) == wanted
