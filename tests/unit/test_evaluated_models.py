"""The arguments of an evaluation on its own: which models they name, and the recipe made of them."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from mrt_hpc.analysis.named_models import named_models
from mrt_hpc.attempt.entry import load_task
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm.containers import folders_read
from mrt_hpc.cli.main import main
from mrt_hpc.cli.plan import awaited_models, missing_inputs
from mrt_hpc.domains.base import grader_digest
from mrt_hpc.domains.verifiers import verifier_of
from mrt_hpc.errors import UserError
from mrt_hpc.evaluate.evaluation import evaluation_recipe, refuse_other_queue
from mrt_hpc.evaluate.models import models_asked, refuse_lost_models
from mrt_hpc.plan.compile import compile_plan, evaluation_plan
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import lock_text, read_lock, read_recipe_lock
from mrt_hpc.recipe.schema import EvaluatedModel, EvaluationRecipe
from mrt_hpc.roles import prepare
from mrt_hpc.roles.evaluation import UnitEvaluation
from mrt_hpc.roles.sampling.weights import verified_weights
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.layout import split_at
from mrt_hpc.run.manifest import DamagedError
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task, write_task
from mrt_hpc.run.weights import publish
from mrt_hpc.submit import create
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from collections.abc import Callable

    from mrt_hpc.run.layout import RunLayout

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "recipes" / "quickstart.yaml"
SHARDS = "evaluation.problem_shards=3"
SILENT = "benchmarks: [{name: held-out, problems: {type: small_world, split: held_out}}]\nmax_tokens: 64\n"
"""A suite that states little, so that the rest comes from the recipe of the run."""
OTHERWISE = (
    "episodes.max_episodes=3", "grading.strict=false", "prompt.instruction=Think.", "serving.dtype=float16",
    "sampling.max_prompt_tokens=96", "sampling.long_prompts=drop",
)  # fmt: skip
"""Other values of all that a run's recipe decides where a suite is silent."""
PROBLEMS = {"type": "small_world", "split": "held_out"}


def trained(root: Path, *versions: int, changes: tuple[str, ...] = ()) -> RunLayout:
    """A run directory with some weights versions, as training leaves them."""
    recipe = load_recipe(QUICKSTART, changes)
    layout = create_or_open(root, recipe, compile_plan(recipe, LocalSite()))
    for version in versions:
        layout.weights_version(version).mkdir(parents=True)
        (layout.weights_version(version) / "config.json").write_text("{}")
    return layout


def test_versions_of_a_run_are_numbers_or_the_last(tmp_path: Path) -> None:
    run = trained(tmp_path / "grpo", 0, 5, 20).root
    assert [m.name for m in models_asked([f"{run}@0,last"]).models] == ["grpo@0", "grpo@20"]
    assert [m.version for m in models_asked([f"{run}@5"]).models] == [5]
    assert [m.version for m in models_asked([str(run)]).models] == [20]
    assert models_asked([f"{run}@0,0", f"{run}@0"]).models[0].path == str(run / "weights" / "v000000")
    assert len(models_asked([f"{run}@0,0", f"{run}@0"]).models) == 1


def test_the_first_version_is_0_or_the_first_that_is_there(tmp_path: Path) -> None:
    run = trained(tmp_path / "grpo", 0, 5, 20).root
    assert [m.version for m in models_asked([f"{run}@first,last"]).models] == [0, 20]
    shutil.rmtree(run / "weights" / "v000000")
    assert [m.version for m in models_asked([f"{run}@first"]).models] == [5]
    shutil.rmtree(run / "weights")
    assert [m.version for m in models_asked([f"{run}@first"]).models] == [0], "as the first job will publish it"


@pytest.mark.parametrize("named", [models_asked, named_models])
@pytest.mark.parametrize("word", ["21", "99", "newest", "-1", "", "２０", "0,２"])
def test_a_version_that_the_run_does_not_have_is_refused(
    tmp_path: Path, word: str, named: Callable[[list[str]], object]
) -> None:
    run = trained(tmp_path / "grpo", 0).root
    with pytest.raises(UserError, match="no such weights version") as told:
        named([f"{run}@{word}"])
    assert told.value.expected == "a number from 0 to 20, first or last"


def test_the_longest_directory_that_is_there_stands_before_the_versions(tmp_path: Path) -> None:
    for name in ("a", "a@b"):
        (tmp_path / name).mkdir()
    for typed, directory, after in (
        ("a@b", "a@b", None), ("a@b@0,last", "a@b", "0,last"), ("a@c@20", "a", "c@20"), ("a@", "a", ""),
        ("none@b@1", "none", "b@1"), ("none", "none", None),
    ):  # fmt: skip
        assert split_at(f"{tmp_path}/{typed}") == (f"{tmp_path}/{directory}", after)


def test_a_version_that_no_job_will_publish_is_refused(tmp_path: Path) -> None:
    run = trained(tmp_path / "grpo", 0, 3).root

    def refuse(name: str) -> None:
        recipe = evaluation_recipe(models_asked([name]), "small_world", results=tmp_path / "r")
        refuse_lost_models(recipe, tmp_path / "eval")

    with pytest.raises(UserError, match="weights version 20 is not there: no queued job of the run will publish it"):
        refuse(str(run))
    with pytest.raises(UserError, match="weights version 2 is not there: it was pruned") as told:
        refuse(f"{run}@2")
    assert told.value.expected == "one of 0, 3"
    refuse(f"{run}@0,3")


def test_model_directories_have_names_that_differ(tmp_path: Path) -> None:
    for place in ("a/model", "b/model", "c/o@ther"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "config.json").write_text("{}")
    found = models_asked([str(tmp_path / place) for place in ("a/model", "b/model", "c/o@ther")])
    assert [m.name for m in found.models] == ["a/model", "b/model", "o@ther"]
    assert not found.recipes


def model_directories(folder: Path, *places: str) -> list[str]:
    for place in places:
        (folder / place).mkdir(parents=True)
        (folder / place / "config.json").write_text("{}")
    return [str(folder / place) for place in places]


def test_names_have_as_many_folders_as_it_takes(tmp_path: Path) -> None:
    places = ("a/x/model", "b/x/model", "c/y/model", "model", "other")
    found = models_asked(model_directories(tmp_path, *places))
    assert [m.name for m in found.models] == [
        "a/x/model", "b/x/model", "y/model", f"{tmp_path.name}/model", "other",
    ]  # fmt: skip


def test_runs_of_one_name_are_told_apart_with_their_versions(tmp_path: Path) -> None:
    one, two = (trained(tmp_path / place / "s" / "grpo", 0, 20).root for place in "ab")
    found = models_asked([f"{one}@0,last", f"{two}@last"])
    assert [m.name for m in found.models] == ["grpo@0", "a/s/grpo@20", "b/s/grpo@20"]


def test_a_directory_that_is_named_twice_is_evaluated_once(tmp_path: Path) -> None:
    [path] = model_directories(tmp_path, "model")
    (tmp_path / "link").symlink_to(path)
    found = models_asked([path, str(tmp_path / "link"), f"{tmp_path}/link/../model"])
    assert [(m.name, m.path) for m in found.models] == [("model", path)]


def test_a_recipe_in_which_two_models_have_one_name_is_refused() -> None:
    models = [{"name": "m", "path": path} for path in ("a", "b")]
    with pytest.raises(ValidationError, match=r"each name once; they are \['m', 'm'\]"):
        EvaluationRecipe.model_validate(
            {"name": "e", "models": models, "evaluation": {"benchmarks": [{"name": "b", "problems": PROBLEMS}]}},
            strict=False,
        )


def test_a_folder_that_is_neither_model_nor_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither a model directory nor a run directory") as told:
        models_asked([str(tmp_path)])
    assert told.value.advice == f"ls {tmp_path.parent}"


def test_an_evaluation_takes_over_what_the_suite_does_not_say(tmp_path: Path) -> None:
    run = trained(tmp_path / "one", 0, 20, changes=("grading.strict=false", "sampling.max_prompt_tokens=99")).root
    suite = tmp_path / "suite.yaml"
    suite.write_text(SILENT)
    recipe = evaluation_recipe(models_asked([str(run)]), str(suite), (SHARDS,), tmp_path / "r")
    assert (recipe.grading.strict, recipe.serving.dtype, recipe.sampling.max_prompt_tokens) == (False, "float32", 99)
    assert (recipe.evaluation.suite, recipe.evaluation.problem_shards) == ("suite", 3)
    assert recipe.evaluation.results == str(tmp_path / "r")
    (tmp_path / "lock.yaml").write_text(lock_text(recipe))
    assert read_lock(tmp_path / "lock.yaml") == recipe
    with pytest.raises(UserError, match="an evaluation on its own"):
        read_recipe_lock(tmp_path / "lock.yaml")


def test_other_settings_make_another_run_directory_and_other_resources_do_not(tmp_path: Path) -> None:
    asked = models_asked([str(trained(tmp_path / "one", 0, 20).root)])

    def name(*overrides: str) -> str:
        return evaluation_recipe(asked, "small_world", overrides, tmp_path / "r").name

    assert name().startswith("eval-small_world-one-")
    assert name("evaluation.max_tokens=99") != name()
    assert name("resources.evaluation.cpus=9") == name()


def test_a_damaged_model_is_published_again_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two models is damaged after the first job is done: that job is opened again."""
    asked = models_asked([f"{trained(tmp_path / 'one', 0, 20).root}@0,last"])
    recipe = evaluation_recipe(asked, "small_world", results=tmp_path / "r")
    monkeypatch.setattr(create, "check_model", lambda _: None)  # these models are a file without content
    layout = create_or_open(tmp_path / "eval", recipe, evaluation_plan(recipe, LocalSite()))
    for version in (0, 1):
        publish(layout, version, lambda directory: write_json(directory / "config.json", {}))
    write_task(layout, "prepare", 0, TaskRecord(TaskState.DONE))
    task = load_task(layout, "evaluation", 1, Placement(0, 1, 0, "a"))
    (layout.weights_version(1) / "config.json").write_text("damaged")
    with pytest.raises(DamagedError):
        verified_weights(task, 1)
    assert read_task(layout, "prepare", 0).state is TaskState.FAILED
    with pytest.raises(UserError, match="model one@20, which this task evaluates, is missing") as told:
        UnitEvaluation(task, task.job.evaluations[1]).sample()
    assert "the same mrt-hpc eval command again" in str(told.value.advice)


def test_models_that_queued_jobs_publish_are_not_awaited_where_there_is_no_queue() -> None:
    with pytest.raises(UserError, match="tasks on this machine cannot wait") as told:
        refuse_other_queue(["17"], LocalSite())
    assert (told.value.value, told.value.where) == ("17", "site local")
    refuse_other_queue([], LocalSite())


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("prompt={shots: 2}", "prompt.examples"),
        ("evaluation.prompt={shots: 2}", "evaluation.prompt.examples"),
        ("evaluation.benchmarks.0.prompt={shots: 2}", "evaluation.benchmarks.0.prompt.examples"),
        ("evaluation.prompt={thought_end: ''}", "evaluation.prompt.thought_start"),
        (
            "evaluation.benchmarks.0.problems={type: small_world, split: held_out, verifier: python, "
            "extraction: any_box}",
            "evaluation.benchmarks.0.problems.extraction",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused_as_in_a_run(tmp_path: Path, override: str, field: str) -> None:
    asked = models_asked([str(trained(tmp_path / "one", 0, 20).root)])
    with pytest.raises(UserError) as told:
        evaluation_recipe(asked, "small_world", (override,), tmp_path / "r")
    assert field in told.value.message()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("prompt.instruction=Think.", "prompt.instruction"),
        ("episodes.max_episodes=3", "episodes"),
        ("grading.strict=false", "grading.strict"),
        ("serving.dtype=float16", "serving.dtype"),
        ("sampling.max_prompt_tokens=96", "sampling.max_prompt_tokens"),
    ],
)
def test_runs_that_differ_in_what_decides_numbers_are_not_evaluated_together(
    tmp_path: Path, change: str, field: str
) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(SILENT)
    one = trained(tmp_path / "one", 20).root
    two = trained(tmp_path / "two", 20, changes=(change,)).root
    with pytest.raises(UserError, match=f"differ in {field},"):
        evaluation_recipe(models_asked([str(one), str(two)]), str(suite))


def test_what_the_suite_or_an_override_states_may_differ_between_runs(tmp_path: Path) -> None:
    """Recipes cut thoughts for training in their own way; the suite cuts those of all runs in one way."""
    changes = ("episodes.max_episodes=3", "grading.strict=false", "prompt.instruction=Think.")
    models = models_asked(
        [str(trained(tmp_path / "one", 20).root), str(trained(tmp_path / "two", 20, changes=changes).root)]
    )
    suite = tmp_path / "suite.yaml"
    suite.write_text(SILENT + "prompt: {instruction: ''}\nepisodes: {markers: [Wait]}\n")
    recipe = evaluation_recipe(models, str(suite), ("grading.strict=true",))
    assert recipe.grading.strict
    assert recipe.evaluation.prompt is not None
    assert recipe.evaluation.prompt.instruction == ""
    assert recipe.evaluation.episodes is not None
    assert recipe.evaluation.episodes.markers == ("Wait",)
    with pytest.raises(UserError, match=r"differ in grading\.strict,") as told:
        evaluation_recipe(models, str(suite))
    assert "--set grading.strict=VALUE" in str(told.value.advice)


@pytest.mark.parametrize("suite", [suite.stem for suite in (ROOT / "recipes" / "suites").glob("*.yaml")])
def test_the_suites_of_the_project_measure_every_model_in_the_same_way(suite: str, tmp_path: Path) -> None:
    """Two runs whose recipes differ in everything, and a model without a run."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    runs = [trained(tmp_path / "one", 20), trained(tmp_path / "two", 20, changes=OTHERWISE)]
    asked = [[str(run.root) for run in runs], [str(runs[0].root)], [str(runs[1].root)], [str(tmp_path / "model")]]
    recipes = [evaluation_recipe(models_asked(one), suite, data=tmp_path) for one in asked]
    assert len({measured(recipe) for recipe in recipes}) == 1


def measured(recipe: EvaluationRecipe) -> str:
    """All that decides numbers."""
    benchmarks = recipe.evaluation.benchmarks
    sampling = [asdict(recipe.sampling_of(b)) for b in benchmarks]
    graders = [
        grader_digest(verifier_of(b.problems, recipe.grading), recipe.grading.time_limit_s, 1.0) for b in benchmarks
    ]
    section = recipe.evaluation.model_dump(mode="json")
    return repr((section, sampling, graders, recipe.evaluation_dtype, recipe.evaluation.episodes))


def test_thinking_tags_are_the_models_own(tmp_path: Path) -> None:
    """The suite has an instruction, and the run's recipe says that its model writes no tags."""
    untagged = ("prompt={instruction: Think., thought_start: '', thought_end: ''}",)
    run = trained(tmp_path / "one", 20, changes=untagged).root
    recipe = evaluation_recipe(models_asked([str(run)]), "paper_20", data=tmp_path)
    prompt = recipe.sampling_of(recipe.evaluation.benchmarks[0]).prompt
    assert (prompt.thought_start, prompt.thought_end) == ("", "")
    assert "put your final answer" in prompt.instruction


def test_a_file_that_has_changed_makes_another_evaluation(tmp_path: Path) -> None:
    """Problems, solved examples and a model that is written again in its place."""
    model, problems, solved = (tmp_path / name for name in ("model", "p.jsonl", "solved.jsonl"))
    suite = tmp_path / "suite.yaml"
    suite.write_text(
        "benchmarks: [{name: b, problems: {type: jsonl, path: p.jsonl}}]\nprompt: {examples: solved.jsonl}\n"
    )
    model.mkdir()
    (model / "config.json").write_text("{}")
    problems.write_text('{"id": "1", "problem": "x", "answer": "1"}\n')
    solved.write_text('{"id": "1", "problem": "x", "solution": "1"}\n')

    def name() -> str:
        return evaluation_recipe(models_asked([str(model)]), str(suite), results=tmp_path).name

    names = [name()]
    for path in (problems, solved, model / "config.json"):
        assert name() == names[-1], "nothing has changed"
        path.write_text(path.read_text().replace("1", "2") + " ")
        names.append(name())
    assert len(set(names)) == 4


def test_a_changed_file_is_named_where_the_directory_is_given(tmp_path: Path) -> None:
    problems, suite = tmp_path / "p.jsonl", tmp_path / "suite.yaml"
    suite.write_text("benchmarks: [{name: b, problems: {type: jsonl, path: p.jsonl}}]\n")
    problems.write_text('{"id": "1", "problem": "x", "answer": "1"}\n')
    asked = models_asked([str(trained(tmp_path / "one", 0, 20).root)])

    def begun() -> RunLayout:
        recipe = evaluation_recipe(asked, str(suite), results=tmp_path / "r")
        return create_or_open(tmp_path / "eval", recipe, evaluation_plan(recipe, LocalSite()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(create, "check_model", lambda _: None)  # these models are a file without content
        begun()
    problems.write_text('{"id": "1", "problem": "x", "answer": "2"}\n')
    with pytest.raises(UserError, match="this file has changed since the evaluation began") as told:
        begun()
    assert f"inputs.{problems}" in told.value.message()


def test_a_folder_of_data_replaces_that_of_the_suite(tmp_path: Path) -> None:
    asked = models_asked([str(trained(tmp_path / "one", 0, 20).root)])
    recipe = evaluation_recipe(asked, "paper_20", data=tmp_path)
    paths = [b.problems.model_dump()["path"] for b in recipe.evaluation.benchmarks]
    assert paths[:2] == [str(tmp_path / "aime24.jsonl"), str(tmp_path / "aime25.jsonl")]


def test_the_plan_has_a_task_for_each_model_benchmark_and_shard(tmp_path: Path) -> None:
    asked = models_asked([f"{trained(tmp_path / 'one', 0, 20).root}@0,last"])
    recipe = evaluation_recipe(asked, "small_world", (SHARDS,))
    plan = evaluation_plan(recipe, LocalSite())
    assert [(job.role, job.tasks) for job in plan.jobs] == [
        (Role.PREPARE, 1), (Role.EVALUATION, 6), (Role.REPORT, 1),
    ]  # fmt: skip
    assert [(u.version, u.shard) for u in plan.jobs[1].evaluations] == [(v, s) for v in (0, 1) for s in range(3)]
    assert recipe.evaluated_versions == [0, 1]
    assert [d.job for d in plan.jobs[2].after] == ["evaluation"]


def test_the_plan_is_printed_and_nothing_is_made(tmp_path: Path) -> None:
    run = trained(tmp_path / "one", 0, 20).root
    out = CliRunner().invoke(
        main, ["eval", f"{run}@0", "--suite", "small_world", "--plan", "--run", str(tmp_path / "e")]
    )
    assert out.exit_code == 0, out.output
    assert "3 sbatch calls, 3 array tasks" in out.output
    assert not (tmp_path / "e").exists()


def test_the_plan_tells_expected_hours_and_what_is_not_there(tmp_path: Path) -> None:
    """872 problems, 20 samples of 100 tokens each, at 5,500 tokens a second: a twelfth of an hour, and 40 starts."""
    model = tmp_path / "some-1.5B"
    model.mkdir()
    (model / "config.json").write_text("{}")
    site = tmp_path / "site.yaml"
    site.write_text("type: slurm\nname: here\ngpu_type: h100\n")
    command = ["eval", str(model), "--suite", "paper_20", "--plan", "--site", str(site), "--data", str(tmp_path)]
    command += ["--set", "expected.trace_tokens=100", "--set", "resources.evaluation.gpus=1"]
    out = CliRunner().invoke(main, [*command, "--run", str(tmp_path / "e")])
    assert out.exit_code == 0, out.output
    assert "Expected: 2 GPU-hours, by stated rates of h100 for 1.5 billion parameters." in out.output
    assert f"not there yet, eval will refuse: benchmark aime24 {tmp_path / 'aime24.jsonl'}" in out.output
    assert "The time limits allot" in out.output
    assert not (tmp_path / "e").exists()


def test_a_plan_names_models_and_data_that_are_not_there(tmp_path: Path) -> None:
    asked = models_asked([str(trained(tmp_path / "one", 0, 20).root)])
    recipe = evaluation_recipe(asked, "paper_20", data=tmp_path)
    (tmp_path / "aime24.jsonl").write_text("")
    later = recipe.models[0].model_copy(update={"path": str(tmp_path / "later")})
    gone = EvaluatedModel(name="gone", path=str(tmp_path / "gone"))
    changed = recipe.model_copy(update={"models": (recipe.models[0], later, gone)})
    assert [*awaited_models(changed)] == [f"model one@20 {tmp_path / 'later'}"]
    fetch = "next, on a node with network access: mrt-hpc data fetch"
    files = [f"{name} {tmp_path / file}.jsonl; {fetch} {file} {tmp_path / file}.jsonl" for name, file in (
        ("aime25", "aime25"), ("amc23", "amc23"), ("minerva", "minerva_math"), ("math500", "math500"),
    )]  # fmt: skip
    assert [*missing_inputs(changed)] == [f"model gone {tmp_path / 'gone'}", *(f"benchmark {file}" for file in files)]


def test_status_and_report_of_an_evaluation_on_its_own(tmp_path: Path) -> None:
    asked = models_asked([str(trained(tmp_path / "one", 0, 20).root)])
    recipe = evaluation_recipe(asked, "small_world", results=tmp_path / "r")
    awaited = [model.model_copy(update={"path": str(tmp_path / "later")}) for model in recipe.models]
    recipe, root = recipe.model_copy(update={"models": tuple(awaited)}), tmp_path / "eval"
    layout = create_or_open(root, recipe, evaluation_plan(recipe, LocalSite()))
    assert not layout.train_data.exists()
    status = CliRunner().invoke(main, ["status", str(root)])
    assert status.exit_code == 0, status.output
    assert "0/1 tasks" in status.output
    assert "iteration" not in status.output
    report = CliRunner().invoke(main, ["report", str(root)])
    assert report.exit_code == 0, report.output
    assert "missing: evaluation on held-out of weights versions 0" in report.output
    assert "Missing: evaluation on held-out of weights versions 0" in layout.report.read_text()
    page = layout.page.read_text()
    assert "one@20" in page
    assert "Learning curves" not in page, "nothing is trained"
    assert "Missing: evaluation on held-out of weights versions 0" in page
    assert json.loads(layout.plan.read_text())["iterations"] == 0


def evaluation_in(folder: Path, *overrides: str) -> RunLayout:
    """The directory of an evaluation of a run whose weights version 20 will be published later."""
    recipe = evaluation_recipe(
        models_asked([str(trained(folder / "one", 0, 20).root)]), "small_world", overrides, folder / "r"
    )
    shutil.rmtree(folder / "one" / "weights")
    return create_or_open(folder / "eval", recipe, evaluation_plan(recipe, LocalSite()))


def test_a_container_binds_the_run_of_a_version_to_come_and_the_results_folder(tmp_path: Path) -> None:
    recipe = read_lock(evaluation_in(tmp_path).recipe_lock)
    assert {str(tmp_path / "one"), str(tmp_path / "r")} <= set(folders_read(recipe))
    assert (tmp_path / "r").is_dir(), "what is bound must be there"


def test_a_results_folder_that_is_a_file_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("")
    with pytest.raises(UserError, match="the results folder is a file"):
        evaluation_in(tmp_path)
    assert not (tmp_path / "eval").exists()


def test_a_model_that_the_run_did_not_publish_is_told_by_the_first_job(tmp_path: Path) -> None:
    task = load_task(evaluation_in(tmp_path), "prepare", 0, Placement(0, 1, 0, "a"))
    with pytest.raises(UserError, match="model one@20 is not there") as told:
        prepare.run(task)
    assert told.value.advice == f"mrt-hpc status {tmp_path / 'one'}"


def test_a_damaged_copy_of_a_model_is_made_again_by_the_first_job(tmp_path: Path) -> None:
    layout = evaluation_in(tmp_path)
    publish(layout, 0, lambda folder: (folder / "config.json").write_text("{}"))
    (layout.weights_version(0) / "config.json").write_text("[]")
    task = load_task(layout, "evaluation", 0, Placement(0, 1, 0, "a"))
    with pytest.raises(UserError, match="weights version 0 is damaged") as told:
        verified_weights(task, 0)
    assert "tasks/prepare, and the same command again" in str(told.value.advice)
