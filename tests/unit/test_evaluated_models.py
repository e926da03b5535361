"""The arguments of an evaluation on its own: which models they name, and the recipe made of them."""

import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from basics import RECIPES, ROOT
from commands import refusal, typed
from pydantic import ValidationError
from run_of import run_of, task_of
from small_weights import publish_models

from mrt_hpc import RunLayout, UserError
from mrt_hpc.analysis.named_models import named_models
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm.plain_paths import folders_read
from mrt_hpc.cli.plan import awaited_models, missing_inputs
from mrt_hpc.domains.verifiers import verifier_of
from mrt_hpc.evaluate.asked_models import models_asked
from mrt_hpc.evaluate.evaluation_alone import evaluation_recipe, refuse_other_queue
from mrt_hpc.recipe.lock import lock_text, read_lock, read_recipe_lock
from mrt_hpc.recipe.schema import EvaluatedModel, EvaluationRecipe
from mrt_hpc.roles import prepare
from mrt_hpc.roles.evaluation import UnitEvaluation
from mrt_hpc.roles.sampling.verified_weights import verified_weights
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task, write_task
from mrt_hpc.run.weights import publish

SILENT = "benchmarks: [{name: held-out, problems: {type: small_world, split: held_out}}]\nmax_tokens: 64\n"
"""A suite that states little, so that the rest comes from the recipe of the run."""
OTHERWISE = (
    "episodes.max_episodes=3", "grading.strict=false", "prompt.instruction=Think.", "serving.dtype=float16",
    "sampling.max_prompt_tokens=96", "sampling.long_prompts=drop",
)  # fmt: skip
"""Other values of all that a run's recipe decides where a suite is silent."""


def models_at(*places: Path) -> list[str]:
    for place in places:
        place.mkdir(parents=True)
        (place / "config.json").write_text("{}")
    return [*map(str, places)]


def trained(root: Path, *versions: int, changes: Sequence[str] = ()) -> RunLayout:
    """A run directory with some weights versions, as training leaves them."""
    layout = run_of(root, *changes)
    models_at(*map(layout.weights_version, versions))
    return layout


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return trained(tmp_path / "one", 0, 20).root


def recipe_of(*models: Path | str, suite: Path | str = "small_world", changes: Sequence[str] = ()) -> EvaluationRecipe:
    """The recipe of an evaluation, whose files and results folder lie beside the first model."""
    beside = Path(str(models[0]).partition("@")[0]).parent
    return evaluation_recipe(models_asked([*map(str, models)]), str(suite), changes, beside / "r", beside)


def suite_at(folder: Path, text: str = SILENT) -> Path:
    (folder / "suite.yaml").write_text(text)
    return folder / "suite.yaml"


def test_versions_of_a_run_are_numbers_or_the_first_or_the_last(tmp_path: Path) -> None:
    run = trained(tmp_path / "grpo", 0, 5, 20).root

    def versions(*after: str) -> list[int | None]:
        return [m.version for m in models_asked([f"{run}{words}" for words in after]).models]

    asked = {"": [20], "@5": [5], "@0,last": [0, 20], "@first,last": [0, 20]}
    assert {words: versions(words) for words in asked} == asked
    assert versions("@0,0", "@0") == [0]
    first = models_asked([f"{run}@0"]).models[0]
    assert (first.name, first.path) == ("grpo@0", str(run / "weights" / "v000000"))
    shutil.rmtree(run / "weights" / "v000000")
    assert versions("@first") == [5]
    shutil.rmtree(run / "weights")
    assert versions("@first") == [0], "as the first job will publish it"


@pytest.mark.parametrize("word", ["21", "newest", "-1", "", "２０", "0,２"])
def test_a_version_that_the_run_does_not_have_is_refused(run: Path, word: str) -> None:
    for named in (models_asked, named_models):
        assert refusal(named, [f"{run}@{word}"]).expected == "a number from 0 to 20, first or last"


def test_names_have_as_many_folders_as_it_takes(tmp_path: Path) -> None:
    places = models_at(*(tmp_path / p for p in ("a/x/model", "b/x/model", "c/y/model", "model", "c/o@ther")))
    one, two = (trained(tmp_path / place / "s" / "grpo", 0, 20).root for place in "ab")
    found = models_asked([*places, f"{one}@0,last", f"{two}@last"])
    assert [m.name for m in found.models] == [
        "a/x/model", "b/x/model", "y/model", f"{tmp_path.name}/model", "o@ther", "grpo@0", "a/s/grpo@20", "b/s/grpo@20",
    ]  # fmt: skip
    assert not models_asked(places).recipes
    (tmp_path / "link").symlink_to(places[3])
    twice = models_asked([places[3], str(tmp_path / "link"), f"{tmp_path}/link/../model"]).models
    assert [(m.name, m.path) for m in twice] == [("model", places[3])], "it is evaluated once"


def test_what_is_no_model_and_two_models_of_one_name_are_refused(run: Path, tmp_path: Path) -> None:
    assert refusal(models_asked, [str(tmp_path)]).advice == f"ls {tmp_path.parent}"
    models = [{"name": "m", "path": path} for path in "ab"]
    with pytest.raises(ValidationError, match="each name once"):
        EvaluationRecipe.model_validate({**recipe_of(run).model_dump(), "models": models}, strict=False)
    assert refusal(refuse_other_queue, ["17"], LocalSite()).where == "site local", "there is no queue"
    refuse_other_queue([], LocalSite())


def test_an_evaluation_takes_over_what_the_suite_does_not_say(tmp_path: Path) -> None:
    run = trained(tmp_path / "one", 20, changes=("grading.strict=false", "sampling.max_prompt_tokens=99")).root
    recipe = recipe_of(run, suite=suite_at(tmp_path), changes=("evaluation.problem_shards=3",))
    assert (recipe.grading.strict, recipe.serving.dtype, recipe.sampling.max_prompt_tokens) == (False, "float32", 99)
    assert (recipe.evaluation.suite, recipe.evaluation.problem_shards) == ("suite", 3)
    assert recipe.evaluation.results == str(tmp_path / "r")
    (tmp_path / "lock.yaml").write_text(lock_text(recipe))
    assert read_lock(tmp_path / "lock.yaml") == recipe
    refusal(read_recipe_lock, tmp_path / "lock.yaml")


BOXLESS = "{type: small_world, split: held_out, verifier: {type: 'my_verifier:LastLineChoice'}, extraction: any_box}"


@pytest.mark.parametrize(("override", "field"), [
    ("evaluation.benchmarks.0.prompt={shots: 2}", "evaluation.benchmarks.0.prompt.examples"),
    ("evaluation.prompt={thought_end: ''}", "evaluation.prompt.thought_start"),
    (f"evaluation.benchmarks.0.problems={BOXLESS}", "evaluation.benchmarks.0.problems.extraction"),
])  # fmt: skip
def test_settings_that_contradict_each_other_are_refused_as_in_a_run(
    run: Path, monkeypatch: pytest.MonkeyPatch, override: str, field: str
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "recipes" / "examples")])
    with pytest.raises(UserError, match=re.escape(field)):
        recipe_of(run, changes=(override,))


@pytest.mark.parametrize("change", OTHERWISE)
def test_runs_that_differ_in_what_decides_numbers_are_refused(run: Path, tmp_path: Path, change: str) -> None:
    two = trained(tmp_path / "two", 20, changes=(change,)).root
    with pytest.raises(UserError) as told:
        recipe_of(run, two, suite=suite_at(tmp_path))
    assert change.startswith(str(told.value.where))
    assert f"--set {told.value.where}=VALUE" in str(told.value.advice)


def test_what_the_suite_or_an_override_states_may_differ_between_runs(run: Path, tmp_path: Path) -> None:
    two = trained(tmp_path / "two", 20, changes=OTHERWISE[:3]).root
    suite = suite_at(tmp_path, SILENT + "prompt: {instruction: ''}\nepisodes: {markers: [Wait]}\n")
    recipe = recipe_of(run, two, suite=suite, changes=("grading.strict=true",))
    how = recipe.evaluation
    assert recipe.grading.strict
    assert (how.prompt and how.prompt.instruction, how.episodes and how.episodes.markers) == ("", ("Wait",))
    with pytest.raises(UserError) as told:
        recipe_of(run, two, suite=suite)
    assert told.value.where == "grading.strict"


def test_the_suites_of_the_project_measure_every_model_in_the_same_way(run: Path, tmp_path: Path) -> None:
    two = trained(tmp_path / "two", 20, changes=OTHERWISE).root
    [model] = models_at(tmp_path / "model")

    every = ((run, two), (run,), (two,), (model,))
    suites = [suite.stem for suite in (RECIPES / "suites").glob("*.yaml")]
    assert suites
    for suite in suites:
        assert len({measured(recipe_of(*models, suite=suite)) for models in every}) == 1, suite


def measured(recipe: EvaluationRecipe) -> str:
    benchmarks = recipe.evaluation.benchmarks
    section = recipe.evaluation.model_dump(mode="json")
    ways = [(asdict(recipe.sampling_of(b)), repr(verifier_of(b.problems, recipe.grading))) for b in benchmarks]
    return repr((section, ways, recipe.grading.time_limit_s, recipe.evaluation_dtype, recipe.evaluation.episodes))


def test_thinking_tags_are_the_models_own_and_data_may_lie_elsewhere(tmp_path: Path) -> None:
    """The suite has an instruction, and the run's recipe says that its model writes no tags."""
    untagged = ("prompt={instruction: Think., thought_start: '', thought_end: ''}",)
    recipe = recipe_of(trained(tmp_path / "one", 20, changes=untagged).root, suite="paper_20")
    first, second, *_ = recipe.evaluation.benchmarks
    prompt = recipe.sampling_of(first).prompt
    assert (prompt.thought_start, prompt.thought_end) == ("", "")
    assert "put your final answer" in prompt.instruction
    paths = [b.problems.model_dump()["path"] for b in (first, second)]
    assert paths == [str(tmp_path / "aime24.jsonl"), str(tmp_path / "aime25.jsonl")]


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A run whose weights versions have all files of a model."""
    layout = run_of(tmp_path / "whole")
    publish_models(layout, 0, 20)
    return layout.root


def test_what_decides_numbers_makes_another_run_directory_and_resources_do_not(tmp_path: Path) -> None:
    """Settings; and a file of problems, of solved examples or of a model that is written again in its place."""
    [model] = models_at(tmp_path / "model")
    problems, solved = tmp_path / "p.jsonl", tmp_path / "solved.jsonl"
    text = "benchmarks: [{name: b, problems: {type: jsonl, path: p.jsonl}}]\nprompt: {examples: solved.jsonl}\n"
    problems.write_text('{"id": "1", "problem": "x", "answer": "1"}\n')
    solved.write_text('{"id": "1", "problem": "x", "solution": "1"}\n')
    suite = suite_at(tmp_path, text)

    def name(*changes: str) -> str:
        return recipe_of(model, suite=suite, changes=changes).name

    names = [name(), name("evaluation.max_tokens=99")]
    assert names[0].startswith("eval-suite-model-")
    assert name("resources.evaluation.cpus=9") == names[0]
    for path in (problems, solved, Path(model) / "config.json"):
        path.write_text(path.read_text().replace("1", "2") + " ")
        names.append(name())
        assert name() == names[-1], "nothing has changed"
    assert len(set(names)) == 5


def test_a_plan_names_models_and_data_that_are_not_there(run: Path, tmp_path: Path) -> None:
    recipe = recipe_of(run, suite="paper_20")
    (tmp_path / "aime24.jsonl").write_text("")
    later = recipe.models[0].model_copy(update={"path": str(tmp_path / "later")})
    gone = EvaluatedModel(name="gone", path=str(tmp_path / "gone"))
    changed = recipe.model_copy(update={"models": (recipe.models[0], later, gone)})
    assert [*awaited_models(changed)] == [f"model one@20 {tmp_path / 'later'}"]
    model, *files = missing_inputs(changed)
    assert model == f"model gone {tmp_path / 'gone'}"
    for told, file in zip(files, ("aime25", "amc23", "minerva_math", "math500"), strict=True):
        assert f"{tmp_path / file}.jsonl; " in told
        assert told.endswith(f"mrt-hpc data fetch {file} {tmp_path / file}.jsonl")
    where = ("--data", tmp_path, "--run", tmp_path / "e")
    shown = typed("eval", f"{run}@20", "--suite", "paper_20", "--plan", *where).output
    assert f"benchmark aime25 {tmp_path / 'aime25.jsonl'}" in shown and not (tmp_path / "e").exists()


def test_status_and_report_of_an_evaluation_on_its_own(run: Path, tmp_path: Path) -> None:
    """Of a run whose weights version 20 will be published later."""
    recipe = recipe_of(run)
    shutil.rmtree(run / "weights")
    waiting = run_of(tmp_path / "eval", recipe=recipe)
    assert not waiting.train_data.exists()
    status = typed("status", waiting.root).output
    assert "0/1 tasks" in status and "iteration" not in status
    report, page = typed("report", waiting.root).output, waiting.page.read_text()
    for text in (report, waiting.report.read_text(), page):
        assert "missing: evaluation on held-out of weights versions 0" in text.lower()
    assert "one@20" in page and "Learning curves" not in page, "nothing is trained"
    assert {str(tmp_path / "one"), str(tmp_path / "r")} <= set(folders_read(read_lock(waiting.recipe_lock)))
    assert (tmp_path / "r").is_dir(), "what a container binds must be there"
    advice = refusal(prepare.run, task_of(waiting, "prepare")).advice
    assert advice == f"mrt-hpc status {tmp_path / 'one'}", "which has to publish the model"


def test_a_results_folder_that_is_a_file_is_refused_before_anything_is_made(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "r").write_text("")
    with pytest.raises(UserError, match="results folder is a file"):
        run_of(tmp_path / "eval", recipe=recipe_of(whole))
    assert not (tmp_path / "eval").exists()


@pytest.mark.parametrize("version", [0, 1])
def test_a_damaged_model_is_published_again_by_the_same_command(whole: Path, tmp_path: Path, version: int) -> None:
    """It is damaged after the first job is done: that job is opened again, or the error says how to do that."""
    layout = run_of(tmp_path / "eval", recipe=recipe_of(f"{whole}@0,last"))
    for number in (0, 1):
        publish(layout, number, lambda folder: write_json(folder / "config.json", {}))
    write_task(layout, "prepare", 0, TaskRecord(TaskState.DONE))
    task = task_of(layout, "evaluation", version)
    (layout.weights_version(version) / "config.json").write_text("damaged")
    refused = refusal(verified_weights, task, version)
    if version == 0:
        assert "tasks/prepare, and the same command again" in str(refused.advice)
        return
    assert read_task(layout, "prepare", 0).state is TaskState.FAILED
    refused = refusal(UnitEvaluation(task, task.job.evaluations[1]).sample)
    assert "the same eval command again" in str(refused.advice)
