"""The recipes at the paper's scale: their variants for other resources state the same method, and every plan of them
fits its time limits.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.sites import find_site
from mrt_hpc.cli.main import main
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.hours import expected_hours, throughput
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.find import RECIPES, find
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import differences, lock_text
from mrt_hpc.recipe.sections import Coupling, HuggingFaceModel
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.submit.changes import changes

if TYPE_CHECKING:
    from mrt_hpc.recipe.schema import Recipe

FOLDER = Path(__file__).parents[2] / "recipes"
PAPER = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "quickstart")
VARIANTS = ("4x8", "preemptible")
ON_ONE_GPU = [name for name in PAPER if not name.startswith(("backtracking", "sft_", "star", "mrt_star"))]
"""The recipes whose algorithm samples in every iteration: their inference and trainer can take turns on one GPU."""
VARIED = [*((variant, name) for variant in VARIANTS for name in PAPER), *(("one_gpu", name) for name in ON_ONE_GPU)]
ALL = [*PAPER, *(f"{variant}/{name}" for variant, name in VARIED)]
GPUS = {"": 8, "4x8": 32, "preemptible": 8, "one_gpu": 1}
"""The GPUs that a run of each folder may use at a time, its evaluations aside."""
FREE = {
    "resources": "what each job asks for",
    "schedule.coupling": "which role uses the GPUs when decides no number of the method",
    "schedule.iterations_per_job": "the length of a segment decides where jobs end, and no result",
    "training.checkpoint_every": "how much a lost trainer computes again, which gives the same weights",
    "evaluation.problem_shards": "the number of tasks that share the problems; every sample has the seed of its place",
}
"""The fields in which a variant may differ from its recipe, with the reason why no number of the method depends on
them.
"""


def recipe(name: str) -> Recipe:
    return load_recipe(FOLDER / f"{name}.yaml")


def folder_of(name: str) -> str:
    return name.rpartition("/")[0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_recipe_has_every_variant(variant: str) -> None:
    assert sorted(path.stem for path in (FOLDER / variant).glob("*.yaml")) == PAPER


def test_every_recipe_that_samples_in_each_iteration_has_a_variant_for_one_gpu() -> None:
    assert sorted(path.stem for path in (FOLDER / "one_gpu").glob("*.yaml")) == ON_ONE_GPU
    assert [name for name in PAPER if recipe(name).algorithm.samples_rollouts] == ON_ONE_GPU


@pytest.mark.parametrize(("variant", "name"), VARIED)
def test_a_variant_differs_in_nothing_that_decides_a_result(variant: str, name: str) -> None:
    changed = differences(*(recipe(one).model_dump(mode="json") for one in (name, f"{variant}/{name}")))
    fields = {field for field, _, _ in changed}
    assert fields, "a variant states what differs"
    assert {field for field in fields if not field.startswith("resources.")} <= FREE.keys() - {"resources"}


@pytest.mark.parametrize("name", ALL)
def test_every_job_is_expected_to_end_within_nine_tenths_of_its_time_limit(name: str) -> None:
    one, site = recipe(name), find_site("example")
    rates = throughput(one, site)
    assert rates is not None
    plan = compile_plan(one, site)
    expected = expected_hours(plan, one, rates)
    assert expected.keys() == {job.name for job in plan.jobs}, "the hours of every job are known"
    limits = {job.name: 0.9 * job.resources.time_limit_minutes / 60 for job in plan.jobs}
    assert {job: hours.longest for job, hours in expected.items() if hours.longest > limits[job]} == {}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("site", [None, "example"])
def test_plan_prints_a_recipe_without_a_doubt(
    name: str, site: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # no Slurm to ask
    printed = CliRunner().invoke(main, ["plan", name, *(["--site", site] if site else [])], catch_exceptions=False)
    assert printed.exit_code == 0
    assert "GPU-hours" in printed.output
    assert "is expected to reach its time limit" not in printed.output
    if site is not None:  # this machine need not have the GPUs
        assert "doubtful" not in printed.output


@pytest.mark.parametrize("name", ALL)
def test_a_run_uses_the_gpus_of_its_folder(name: str) -> None:
    one = recipe(name)
    inference, trainer = one.resources.inference, one.resources.trainer
    sampling = min(inference.tasks, inference.max_parallel or inference.tasks) * inference.gpus
    training = trainer.ranks * trainer.gpus
    together = one.algorithm.samples_rollouts and one.schedule.coupling is Coupling.CONCURRENT
    assert (sampling + training if together else max(sampling, training)) <= GPUS[folder_of(name)]
    assert (trainer.ranks_per_node or trainer.ranks) <= 8, "a node has eight GPUs"


@pytest.mark.parametrize("name", [name for name in ALL if folder_of(name) == "preemptible"])
def test_jobs_of_the_preemptible_queue_are_short_and_lose_one_update(name: str) -> None:
    one = recipe(name)
    assert one.training.checkpoint_every == 1
    minutes = {job.resources.time_limit_minutes for job in compile_plan(one, LocalSite()).jobs if job.resources.gpus}
    assert max(minutes) <= 240


ROWS = {
    "DeepSeek-R1-Distill-Qwen-1.5B": {"numina_math_4000.jsonl": 4000, "numina_math_10000.jsonl": 10000},
    "DeepScaleR-1.5B-Preview": {"aime_1983_2023.jsonl": 919},
    "Llama-3.1-8B-Instruct": {"numina_math_10000.jsonl": 10000},
    "Qwen2.5-Math-1.5B-Instruct": {"numina_math_4000.jsonl": 4000},
}


@pytest.mark.parametrize("name", [name for name in PAPER if not name.startswith("sft_")])
def test_a_recipe_is_one_row_of_the_paper(name: str) -> None:
    one = recipe(name)
    assert isinstance(one.model, HuggingFaceModel)
    data = one.data.model_dump()
    assert ROWS[Path(one.model.path).name.partition("@")[0]][Path(data["path"]).name] == data["limit"]


@pytest.mark.parametrize("name", PAPER)
def test_the_numbers_of_the_method_are_the_papers(name: str) -> None:
    """Section "Reference hyper-parameters" of the method."""
    one = recipe(name)
    training = one.training
    assert (training.learning_rate, training.schedule) == (1e-6, "cosine")
    assert (training.warmup_ratio, training.weight_decay, training.precision) == (0.1, 0.01, "bf16")
    assert (one.sampling.temperature, one.serving.gpu_memory_utilization) == (0.9, 0.8)
    if one.algorithm.samples_rollouts:
        assert one.schedule.iterations == 248
        assert one.sampling.problems_per_iteration == 64
    else:
        assert one.algorithm.model_dump()["sequences_per_iteration"] == 256


def test_both_rows_of_reinforcement_learning_have_the_same_algorithms() -> None:
    of_aime = {name.removesuffix("_deepscaler") for name in PAPER if name.endswith("_deepscaler")}
    assert of_aime == {"grpo", "length_penalty", "mrt", "mrt_online"}
    for name in of_aime:
        changed = differences(*(recipe(one).model_dump(mode="json") for one in (name, f"{name}_deepscaler")))
        sections = {field.split(".")[0] for field, _, _ in changed}
        assert sections <= {"name", "model", "data", "episodes"}


@pytest.mark.parametrize("name", ALL)
def test_a_recipe_is_found_by_its_name_and_comes_with_the_package(name: str) -> None:
    assert find(RECIPES, name) == FOLDER / f"{name}.yaml"
    files = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    target = f"share/mrt-hpc/recipes/{folder_of(name)}".rstrip("/")
    assert any(FOLDER / f"{name}.yaml" in FOLDER.parent.glob(pattern) for pattern in files[target])


@pytest.mark.parametrize("name", ALL)
def test_readme_tells_the_hours_that_plan_expects(name: str) -> None:
    one, site = recipe(name), find_site("example")
    rates = throughput(one, site)
    assert rates is not None
    hours = sum(each.gpu_hours for each in expected_hours(compile_plan(one, site), one, rates).values())
    assert told_hours(folder_of(name))[name.rpartition("/")[2]] == f"{hours:,.0f}"


def told_hours(folder: str) -> dict[str, str]:
    """The hours of a folder by the names of the recipes; the recipes of a line share a number, or have one each."""
    line = re.compile(r"^\| (`[^|]+) \|.*\| ([\d, ]+) \| ([\d, ]+) \| ([\d, ]+) \| ([\d, ]*)\|$", re.MULTILINE)
    told: dict[str, str] = {}
    for names, *cells in line.findall((FOLDER / "README.md").read_text()):
        found = re.findall(r"`(\w+)\.yaml`", names)
        hours = cells[list(GPUS).index(folder)].strip().split(", ")
        told |= dict(zip(found, hours if len(hours) == len(found) else hours * len(found), strict=True))
    return told


def test_the_inference_array_runs_so_many_tasks_at_a_time() -> None:
    plan = compile_plan(recipe("backtracking"), LocalSite())
    collection = next(job for job in plan.jobs if job.role is Role.INFERENCE)
    assert (collection.tasks, collection.max_parallel) == (32, 8)
    assert {job.max_parallel for job in plan.jobs if job.role is Role.TRAINER} == {None}
    limited = load_recipe(FOLDER / "grpo.yaml", ("resources.inference.max_parallel=2",))
    assert {j.max_parallel for j in compile_plan(limited, LocalSite()).jobs if j.role is Role.INFERENCE} == {2}


@pytest.mark.parametrize("name", PAPER)
def test_a_run_continues_with_other_nodes_and_not_with_other_segments(name: str, tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    layout.recipe_lock.write_text(lock_text(recipe(name)))
    assert [change.field for change in changes(layout, recipe(f"4x8/{name}")) if change.refused] == []
    refused = [change.field for change in changes(layout, recipe(f"preemptible/{name}")) if change.refused]
    assert refused == ["training.checkpoint_every", "schedule.iterations_per_job"]
