"""The recipes at the paper's scale: a shape leaves the method as it is, and every plan fits its time limits."""

import re
from functools import cache
from pathlib import Path

import pytest
from commands import RECIPES as FOLDER
from commands import recipe, typed

from mrt_hpc.backends.sites import find_site
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.hours import expected_hours, throughput
from mrt_hpc.plan.shape import shape_changes
from mrt_hpc.recipe.find import SHAPES, known_names
from mrt_hpc.recipe.lock import differences
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.sections import Coupling, HuggingFaceModel

PAPER = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "quickstart")
ALL = [(name, shape) for shape in ("", *known_names(SHAPES)) for name in PAPER]
ALL = [(name, shape) for name, shape in ALL if shape != "one_gpu" or not name.startswith("backtracking")]
"""Without the collections of backtracking, which take months of one GPU."""
GPUS = {"": 8, "4x8": 32, "preemptible": 8, "one_gpu": 1}
"""The GPUs that a run of each shape may use at a time, its evaluations aside."""
FREE = {
    "schedule.coupling": "which role uses the GPUs when decides no number of the method",
    "schedule.iterations_per_job": "the length of a segment decides where jobs end, and no result",
    "training.checkpoint_every": "how much a lost trainer computes again, which gives the same weights",
    "evaluation.problem_shards": "the number of tasks that share the problems; every sample has the seed of its place",
}
"""The fields besides resources that a shape may change, with the reason why no number of the method depends on them."""


@cache
def shaped(name: str, shape: str, *settings: str) -> Recipe:
    if shape:
        settings = shape_changes(shape, lambda changes: recipe(name, *changes), settings)
    return recipe(name, *settings)


def test_a_shape_changes_nothing_that_decides_a_result_and_what_the_user_sets_stays() -> None:
    """One of resources alone continues a run."""
    for name, shape in ALL:
        plain, other = (one.model_dump(mode="json") for one in (shaped(name, ""), shaped(name, shape)))
        fields = {field for field, *_ in differences(plain, other)}
        others = {field for field in fields if not field.startswith("resources.")}
        assert bool(fields) == bool(shape), f"{name} --shape {shape}"
        assert others <= (set() if shape == "4x8" else FREE.keys()), f"{name} --shape {shape}"
    own = ("schedule.iterations_per_job=3", "resources.trainer.ranks=4", "resources.inference.gpus=4")
    one = shaped("mrt_online", "one_gpu", *own)
    assert (one.schedule.iterations_per_job, one.resources.trainer.ranks) == (3, 4)


def test_no_profile_of_a_user_changes_what_a_shape_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(changes: tuple[str, ...]) -> Recipe:
        return recipe("mrt_online", *changes)

    before = shape_changes("one_gpu", load, ())
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    profile = tmp_path / "mrt-hpc" / "sites" / "example.yaml"
    profile.parent.mkdir(parents=True)
    profile.write_text("type: slurm\nname: example\ngpu_type: h100\n")
    assert find_site("example").gpu_name == "h100"
    assert shape_changes("one_gpu", load, ()) == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("mrt_online", "--shape", "one_gpus"), "one_gpu is the nearest"),
        (("quickstart", "--shape", "one_gpu"), "the recipe uses none"),
        (("mrt_online", "--shape", "one_gpu", "--set", "resources.trainer.time_limit_minutes=5"), "no number fits"),
        (("one_gpu/mrt_online",), "mrt-hpc plan mrt_online --shape one_gpu"),
        (("shapes/one_gpu",), "this is a shape, and no recipe"),
    ],
)
def test_a_shape_that_is_no_shape_of_a_recipe_is_refused(words: tuple[str, ...], says: str) -> None:
    assert says in typed("plan", *words, exits=2).output


def test_every_job_ends_within_nine_tenths_of_its_limit_and_readme_has_the_hours_that_plan_expects() -> None:
    site, late, hours = find_site("example"), {}, {}
    for name, shape in ALL:
        one = shaped(name, shape)
        rates = throughput(one, site)
        assert rates is not None
        plan = compile_plan(one, site)
        expected = expected_hours(plan, one, rates)
        assert expected.keys() == {job.name for job in plan.jobs}, "the hours of every job are known"
        limits = {job.name: 0.9 * job.resources.time_limit_minutes / 60 for job in plan.jobs}
        late |= {(name, shape, job): each.longest for job, each in expected.items() if each.longest > limits[job]}
        hours[name, shape] = f"{sum(each.gpu_hours for each in expected.values()):,.0f}"
    assert late == {}
    assert {(name, shape): hours_in_readme(shape)[name] for name, shape in ALL} == hours


def hours_in_readme(shape: str) -> dict[str, str]:
    """The hours of a shape by the names of the recipes; the recipes of a line share a number, or have one each."""
    line = re.compile(r"^\| (`[^|]+) \|.*\| ([\d, ]+) \| ([\d, ]+) \| ([\d, ]+) \| ([\d, ]*)\|$", re.MULTILINE)
    found: dict[str, str] = {}
    for names, *cells in line.findall((FOLDER / "README.md").read_text()):
        recipes = re.findall(r"`(\w+)\.yaml`", names)
        hours = cells[list(GPUS).index(shape)].strip().split(", ")
        found |= dict(zip(recipes, hours if len(hours) == len(recipes) else hours * len(recipes), strict=True))
    return found


@pytest.mark.parametrize(("name", "shape"), ALL)
def test_plan_prints_no_doubt(name: str, shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # no Slurm to ask
    shaped_so = ("--shape", shape) if shape else ()
    printed = typed("plan", name, *shaped_so, "--site", "example").output  # this machine need not have the GPUs
    assert "GPU-hours" in printed and "doubtful" not in printed


def test_a_run_uses_the_gpus_of_its_shape_and_loses_one_update_where_it_is_preempted() -> None:
    for name, shape in ALL:
        one = shaped(name, shape)
        inference, trainer = one.resources.inference, one.resources.trainer
        sampling = min(inference.tasks, inference.max_parallel or inference.tasks) * inference.gpus
        training = trainer.ranks * trainer.gpus
        together = one.algorithm.samples_rollouts and one.schedule.coupling is Coupling.CONCURRENT
        used = sampling + training if together else max(sampling if one.samples_traces else 0, training)
        assert used <= GPUS[shape], name
        assert (trainer.ranks_per_node or trainer.ranks) <= 8, f"{name}: a node has eight GPUs"
        assert shape != "preemptible" or one.training.checkpoint_every == 1, f"{name}: one update is lost"


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
