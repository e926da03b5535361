"""The recipes at the paper's scale and their shapes, and suites, from which an evaluation section takes its fields."""

import json
import re
from functools import cache
from pathlib import Path

import pytest
from basics import QUICKSTART, RECIPES
from commands import RECIPES as FOLDER
from commands import recipe, refusal, typed
from tables import tables
from warm_start import ModelSize, build_tokenizer

from mrt_hpc import Prompter, Recipe
from mrt_hpc.backends.sites import find_site
from mrt_hpc.domains.extraction import last_box
from mrt_hpc.modes.base import Direct, Mode
from mrt_hpc.modes.revision import DEFAULT_SEND_BACK
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.hours import expected_hours, throughput
from mrt_hpc.plan.shape import shape_changes
from mrt_hpc.provers.prover_session import ProverFactory, ProverModel
from mrt_hpc.recipe.base import require_kind
from mrt_hpc.recipe.find import SHAPES, known_names
from mrt_hpc.recipe.kinds import MODES
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import differences, lock_text, read_recipe_lock
from mrt_hpc.recipe.sections import Coupling, HuggingFaceModel

PAPER = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "quickstart")
ALL = [(name, shape) for shape in ("", *known_names(SHAPES)) for name in PAPER]
ALL = [(name, shape) for name, shape in ALL if shape != "one_gpu" or not name.startswith("backtracking")]
"""Without the collections of backtracking, which take months of one GPU."""
GPUS = {"": 8, "4x8": 32, "preemptible": 8, "one_gpu": 1}
"""The GPUs that a run of each shape may use at a time, its evaluations aside."""
FREE = tables("paper_recipes")["free"]
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
    assert (find_site("example").gpu_name, shape_changes("one_gpu", load, ())) == ("h100", before)


@pytest.mark.parametrize(("words", "says"), tables("paper_recipes")["shapes"])
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


ROWS = tables("paper_recipes")["rows"]


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


# -- suites


def with_suite(name: str | Path, *changes: str) -> Recipe:
    return load_recipe(QUICKSTART, (*changes, f"evaluation={{suite: {name}}}"))


def test_the_suites_of_the_paper_say_what_it_does() -> None:
    for name, samples in (("paper_20", 20), ("paper_64", 64), ("paper_regret", 16)):
        how = with_suite(name).evaluation
        assert [b.name for b in how.benchmarks] == ["aime24", "aime25", "amc23", "minerva", "math500"]
        assert {b.samples for b in how.benchmarks} == {samples}
        assert (how.temperature, how.top_p, how.max_tokens, how.suite) == (0.6, 0.95, 16384, name)
        first = Path(how.benchmarks[0].problems.model_dump()["path"])
        assert first.resolve() == RECIPES.parent / "data" / "aime24.jsonl", "as from the suite's folder"
    assert how.prover is not None
    assert (how.prover.type, how.prover.branches_per_boundary, how.prover.max_tokens) == ("forced_answer", 8, 4096)
    assert (how.budgets, how.prover.temperature) == ((4096, 8192, 12288, 16384), 0.6)
    how = with_suite("paper_20_own_attempt").evaluation
    modes = {b.name: b.mode.model_dump()["backtrack"] for b in how.benchmarks if b.mode is not None}
    assert (len(modes), modes["aime24"], modes["aime24-again"]) == (10, DEFAULT_SEND_BACK, None)


def test_the_small_world_has_every_way_of_evaluating_and_its_model_has_room_for_each(tmp_path: Path) -> None:
    """The server is started for the longest trace and question, and refuses more tokens than there are positions."""
    build_tokenizer().save_pretrained(tmp_path)
    recipe = with_suite("small_world_modes")
    assert {"direct", *{b.mode.type for b in recipe.evaluation.benchmarks if b.mode is not None}} == set(MODES.built_in)
    prover = recipe.evaluation.prover
    assert prover is not None
    for benchmark in recipe.evaluation.benchmarks:
        sampling = recipe.sampling_of(benchmark)
        prompter = Prompter.of(tmp_path, sampling.prompt)
        question = ProverFactory.of(prover, ProverModel.of(prompter), 0).longest_question
        mode = require_kind(benchmark.mode or Direct(), Mode)
        trace = mode.longest(prompter, sampling)
        assert mode.tokens_held(sampling) <= trace, f"{benchmark.name}: submit refuses no model that has room"
        assert recipe.sampling.max_prompt_tokens + trace + question <= ModelSize().longest, benchmark.name


def test_fields_beside_the_suite_replace_its_own_and_the_lock_does_not_need_it(tmp_path: Path) -> None:
    how = load_recipe(QUICKSTART, ("evaluation={suite: paper_20, max_tokens: 99}",)).evaluation
    assert (how.max_tokens, how.temperature, len(how.benchmarks)) == (99, 0.6, 5)
    how = load_recipe(QUICKSTART, ("evaluation.suite=paper_20",)).evaluation
    assert [b.name for b in how.benchmarks] == ["held-out"]
    suite, lock = tmp_path / "mine.yaml", tmp_path / "recipe.lock.yaml"
    suite.write_text("benchmarks: []\nmax_token: 77\n")
    refused = refusal(with_suite, suite)
    assert ("evaluation.max_token:" in str(refused), refused.where) == (True, f"{suite}, line 2")
    suite.write_text("benchmarks: [{name: b, problems: {type: small_world, split: held_out}}]\nmax_tokens: 77\n")
    recipe = with_suite(suite)
    assert recipe.evaluation.suite == "mine"
    lock.write_text(lock_text(recipe))
    suite.unlink()
    assert read_recipe_lock(lock) == recipe


def test_prompts_of_benchmarks_name_only_what_they_decide(tmp_path: Path) -> None:
    """Solved examples come from the suite's benchmark, the instruction from the suite, the tags from the recipe."""
    recipe = with_suite("paper_few_shot", "prompt={instruction: Think., thought_start: '', thought_end: ''}")
    prompts = {b.name: recipe.sampling_of(b).prompt for b in recipe.evaluation.benchmarks}
    assert [prompts[f"amc23-{shots}-shot"].shots for shots in (0, 1, 4)] == [0, 1, 4]
    four = prompts["amc23-4-shot"]
    assert (four.thought_start, four.thought_end) == ("", "")
    assert "put your final answer" in four.instruction
    build_tokenizer().save_pretrained(tmp_path)
    assert Prompter.of(tmp_path, four).text("What is 2 + 3?").count("The final answer is") == 4
    lines = (RECIPES / "suites" / "solved_problems.jsonl").read_text().splitlines()
    answers = ["72", "40", "30", "\\frac{7}{36}", "4"]  # worked out once in another way than in the solutions
    assert [last_box(json.loads(line)["solution"]) for line in lines] == answers
