"""The recipes at the paper's scale: variants state the same method, and every plan fits its time limits."""

import re
import tomllib
from pathlib import Path

import pytest
from commands import RECIPES as FOLDER
from commands import recipe, typed

from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.sites import find_site
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.hours import expected_hours, throughput
from mrt_hpc.recipe.find import RECIPES, find
from mrt_hpc.recipe.lock import differences
from mrt_hpc.recipe.sections import Coupling, HuggingFaceModel

PAPER = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "quickstart")
ON_ONE_GPU = [name for name in PAPER if not name.startswith(("backtracking", "sft_", "star", "mrt_star"))]
"""The recipes whose algorithm samples in every iteration: their inference and trainer can take turns on one GPU."""
VARIED = [*((variant, name) for variant in ("4x8", "preemptible") for name in PAPER)]
VARIED += [("one_gpu", name) for name in ON_ONE_GPU]
ALL = [*PAPER, *(f"{variant}/{name}" for variant, name in VARIED)]
GPUS = {"": 8, "4x8": 32, "preemptible": 8, "one_gpu": 1}
"""The GPUs that a run of each folder may use at a time, its evaluations aside."""
FREE = {
    "schedule.coupling": "which role uses the GPUs when decides no number of the method",
    "schedule.iterations_per_job": "the length of a segment decides where jobs end, and no result",
    "training.checkpoint_every": "how much a lost trainer computes again, which gives the same weights",
    "evaluation.problem_shards": "the number of tasks that share the problems; every sample has the seed of its place",
}
"""The fields besides resources in which a variant may differ from its recipe, with the reason why no number of the
method depends on them.
"""


def folder_of(name: str) -> str:
    return name.rpartition("/")[0]


def changed(*names: str) -> set[str]:
    return {field for field, _, _ in differences(*(recipe(name).model_dump(mode="json") for name in names))}


def test_every_recipe_has_every_variant_and_comes_with_the_package() -> None:
    assert [name for name in PAPER if recipe(name).algorithm.samples_rollouts] == ON_ONE_GPU
    files = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    for variant in ("4x8", "preemptible", "one_gpu"):
        wanted = ON_ONE_GPU if variant == "one_gpu" else PAPER
        assert sorted(path.stem for path in (FOLDER / variant).glob("*.yaml")) == wanted
    for name in ALL:
        assert find(RECIPES, name) == FOLDER / f"{name}.yaml"
        patterns = files[f"share/mrt-hpc/recipes/{folder_of(name)}".rstrip("/")]
        assert any(FOLDER / f"{name}.yaml" in FOLDER.parent.glob(pattern) for pattern in patterns), name


def test_a_variant_differs_in_nothing_that_decides_a_result() -> None:
    for variant, name in VARIED:
        fields = changed(name, f"{variant}/{name}")
        assert fields, f"{variant}/{name} states what differs"
        assert {field for field in fields if not field.startswith("resources.")} <= FREE.keys(), f"{variant}/{name}"


def test_every_job_ends_within_nine_tenths_of_its_limit_and_readme_has_the_hours_that_plan_expects() -> None:
    site, late, hours = find_site("example"), {}, {}
    for name in ALL:
        rates = throughput(recipe(name), site)
        assert rates is not None
        plan = compile_plan(recipe(name), site)
        expected = expected_hours(plan, recipe(name), rates)
        assert expected.keys() == {job.name for job in plan.jobs}, "the hours of every job are known"
        limits = {job.name: 0.9 * job.resources.time_limit_minutes / 60 for job in plan.jobs}
        late |= {(name, job): each.longest for job, each in expected.items() if each.longest > limits[job]}
        hours[name] = f"{sum(each.gpu_hours for each in expected.values()):,.0f}"
    assert late == {}
    assert {name: hours_in_readme(folder_of(name))[name.rpartition("/")[2]] for name in ALL} == hours


def hours_in_readme(folder: str) -> dict[str, str]:
    """The hours of a folder by the names of the recipes; the recipes of a line share a number, or have one each."""
    line = re.compile(r"^\| (`[^|]+) \|.*\| ([\d, ]+) \| ([\d, ]+) \| ([\d, ]+) \| ([\d, ]*)\|$", re.MULTILINE)
    found: dict[str, str] = {}
    for names, *cells in line.findall((FOLDER / "README.md").read_text()):
        recipes = re.findall(r"`(\w+)\.yaml`", names)
        hours = cells[list(GPUS).index(folder)].strip().split(", ")
        found |= dict(zip(recipes, hours if len(hours) == len(recipes) else hours * len(recipes), strict=True))
    return found


@pytest.mark.parametrize("name", ALL)
def test_plan_prints_a_recipe_without_a_doubt(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # no Slurm to ask
    assert "GPU-hours" in typed("plan", name).output
    assert "doubtful" not in typed("plan", name, "--site", "example").output, "this machine need not have the GPUs"


def test_a_run_uses_the_gpus_of_its_folder_and_its_jobs_of_the_preemptible_queue_are_short() -> None:
    for name in ALL:
        one = recipe(name)
        inference, trainer = one.resources.inference, one.resources.trainer
        sampling = min(inference.tasks, inference.max_parallel or inference.tasks) * inference.gpus
        training = trainer.ranks * trainer.gpus
        together = one.algorithm.samples_rollouts and one.schedule.coupling is Coupling.CONCURRENT
        used = sampling + training if together else max(sampling, training)
        assert used <= GPUS[folder_of(name)], name
        assert (trainer.ranks_per_node or trainer.ranks) <= 8, f"{name}: a node has eight GPUs"
        if folder_of(name) == "preemptible":
            assert one.training.checkpoint_every == 1, f"{name}: one update is lost"
            jobs = [job.resources for job in compile_plan(one, LocalSite()).jobs]
            assert max(resources.time_limit_minutes for resources in jobs if resources.gpus) <= 240, name


ROWS = {
    "DeepSeek-R1-Distill-Qwen-1.5B": {"numina_math_4000.jsonl": 4000, "numina_math_10000.jsonl": 10000},
    "DeepScaleR-1.5B-Preview": {"aime_1983_2023.jsonl": 919},
    "Llama-3.1-8B-Instruct": {"numina_math_10000.jsonl": 10000},
    "Qwen2.5-Math-1.5B-Instruct": {"numina_math_4000.jsonl": 4000},
}


@pytest.mark.parametrize("name", PAPER)
def test_a_recipe_is_one_row_of_the_paper_with_its_numbers(name: str) -> None:
    one, training = recipe(name), recipe(name).training
    assert (training.learning_rate, training.schedule) == (1e-6, "cosine")
    assert (training.warmup_ratio, training.weight_decay, training.precision) == (0.1, 0.01, "bf16")
    assert (one.sampling.temperature, one.serving.gpu_memory_utilization) == (0.9, 0.8)
    if one.algorithm.samples_rollouts:
        assert (one.schedule.iterations, one.sampling.problems_per_iteration) == (248, 64)
    else:
        assert one.algorithm.model_dump()["sequences_per_iteration"] == 256
    if not name.startswith("sft_"):
        assert isinstance(one.model, HuggingFaceModel)
        data = one.data.model_dump()
        assert ROWS[Path(one.model.path).name.partition("@")[0]][Path(data["path"]).name] == data["limit"]


def test_both_rows_of_reinforcement_learning_have_the_same_algorithms() -> None:
    of_aime = {name.removesuffix("_deepscaler") for name in PAPER if name.endswith("_deepscaler")}
    assert of_aime == {"grpo", "length_penalty", "mrt", "mrt_online"}
    for name in of_aime:
        sections = {field.split(".")[0] for field in changed(name, f"{name}_deepscaler")}
        assert sections <= {"name", "model", "data", "episodes"}
