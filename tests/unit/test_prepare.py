"""Weights version 0 is taken from a model directory, which may be a weights version of another run."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import LlamaConfig, Qwen3NextConfig

from mrt_hpc.attempt.entry import load_task
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.domains.small_world import STARTING_MODEL
from mrt_hpc.domains.small_world.model import build_tokenizer
from mrt_hpc.errors import UserError
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles import prepare
from mrt_hpc.roles.prepare_checks import check_prompts, name_unreadable
from mrt_hpc.run.data import read_problems, write_problems
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import MANIFEST, DamagedError, verify
from mrt_hpc.run.weights import publish
from mrt_hpc.submit.create import create_or_open
from mrt_hpc.training.agreement import make_small

if TYPE_CHECKING:
    from mrt_hpc.roles.task.context import Task

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
BENCHMARK = "evaluation.benchmarks=[{name: held-out, problems: {type: small_world, split: held_out, problems: 20}}]"
FILES = ("chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def fill(directory: Path) -> None:
    build_tokenizer().save_pretrained(directory)
    make_small(LlamaConfig(), directory)
    (directory / "generation_config.json").unlink()


def task_from(model: Path, run: Path) -> Task:
    recipe = load_recipe(QUICKSTART, (f"model={{type: hugging_face, path: {model}}}",))
    create_or_open(run, recipe, compile_plan(recipe, LocalSite()))
    return load_task(RunLayout(run), "prepare", 0, Placement(0, 1, 0, "a"))


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A weights version of another run."""
    layout = RunLayout(tmp_path / "other")
    publish(layout, 12, fill)
    return layout.weights_version(12)


def test_a_run_starts_from_a_weights_version_of_another(other: Path, tmp_path: Path) -> None:
    task = task_from(other, tmp_path / "run")
    prepare.run(task)
    manifest = verify(task.layout.weights_version(0))
    assert sorted(manifest.files) == sorted(FILES)
    assert manifest.about["source"] == str(other)


def test_a_damaged_weights_version_of_another_run_is_refused(other: Path, tmp_path: Path) -> None:
    save_file({"weight": np.ones(4, dtype=np.float32)}, other / "model.safetensors")
    task = task_from(other, tmp_path / "run")
    with pytest.raises(DamagedError, match="differs from the manifest"):
        prepare.run(task)
    assert not task.layout.weights_version(0).exists()


def test_a_model_with_a_number_that_is_not_finite_is_never_published(other: Path, tmp_path: Path) -> None:
    model = shutil.copytree(other, tmp_path / "model")
    (model / MANIFEST).unlink()
    tensors = load_file(model / "model.safetensors")
    tensors["model.norm.weight"][2] = np.nan
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    task = task_from(model, tmp_path / "run")
    with pytest.raises(UserError, match=r"hold a NaN or an infinity: model\.norm\.weight"):
        prepare.run(task)
    assert not task.layout.weights_version(0).exists()


def test_a_model_whose_tokenizer_loses_spaces_is_refused_before_anything_is_sampled(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    fill(model)
    make_lossy(model)
    task = task_from(model, tmp_path / "run")
    with pytest.raises(UserError, match="the tokenizer does not bring back a text whole"):
        prepare.run(task)
    assert not task.layout.weights_version(0).exists()


def test_an_architecture_that_the_installed_packages_do_not_know_is_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["NoSuchForCausalLM"]}')
    with pytest.raises(UserError, match="known to vLLM and transformers as installed here"):
        prepare.check_architecture(tmp_path, "model.path")
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen22ForCausalLM"]}')
    with pytest.raises(UserError, match=r"known to vLLM as installed here(?s:.)*the nearest is Qwen2ForCausalLM"):
        prepare.check_architecture(tmp_path, "prover.model", trained=False)


def test_a_model_that_would_not_be_trained_as_it_is_sampled_is_refused_before_a_gpu_is_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_small(Qwen3NextConfig(), tmp_path)
    recipe = load_recipe(QUICKSTART)
    prepare.check_training(tmp_path, "model.path", recipe)
    prepare.check_training(tmp_path, "model.path", load_recipe(QUICKSTART, ("training.batching=packed",)))
    assert "training.batching is padded" in caplog.text
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"model.layers.77.norm": np.zeros(2)}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match="has tensors that the model does not know"):
        prepare.check_training(tmp_path, "model.path", recipe)


def test_the_tokenizer_of_the_provers_model_is_checked_too(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    fill(model)
    make_lossy(model)
    recipe = load_recipe(QUICKSTART.parent / "small_world" / "mrt_online.yaml", (f"prover.model={model}",))
    create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite()))
    with pytest.raises(UserError, match="does not bring back a text whole") as refused:
        prepare.run(load_task(RunLayout(tmp_path / "run"), "prepare", 0, Placement(0, 1, 0, "a")))
    assert "prover.model" in str(refused.value.where)


def make_lossy(model: Path) -> None:
    lossy = {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": ""}}
    path = model / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | lossy))


def lengths(task: Task, path: Path) -> list[int]:
    prompter = Prompter.of(STARTING_MODEL, task.recipe.prompt)
    return sorted(len(prompter.encoded(p.problem)) for p in read_problems(path))


def check_tokenized_prompts(task: Task) -> None:
    check_prompts(task, STARTING_MODEL)


def make_long(path: Path, count: int) -> None:
    problems = read_problems(path)
    long = [replace(p, problem=p.problem + " and so on" * 40) for p in problems[:count]]
    write_problems(path, [*problems[count:], *long])


def prompt_task(run: Path, *changes: str) -> Task:
    recipe = load_recipe(QUICKSTART, ("data.problems=40", "sampling.problems_per_iteration=8", BENCHMARK, *changes))
    create_or_open(run, recipe, compile_plan(recipe, LocalSite()))
    return load_task(RunLayout(run), "prepare", 0, Placement(0, 1, 0, "a"))


def test_gold_answers_that_the_grader_cannot_read_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = prompt_task(tmp_path / "run")
    name_unreadable(task)
    assert not caplog.records, "gold answers that are numbers need no look"
    path = task.layout.train_data
    first, second, third, *others = read_problems(path)
    odd = [replace(first, answer="\\frac{1}{"), replace(second, answer="\\frac{1}{2}."), replace(third, answer="x+1")]
    write_problems(path, [*odd, *others])
    name_unreadable(task)
    (record,) = caplog.records
    assert f"the grader cannot read gold answers of 1 of 40 problems of {path}" in record.getMessage()
    assert record.getMessage().endswith(f": {first.id}")


def test_one_of_several_gold_answers_that_the_grader_cannot_read_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = prompt_task(tmp_path / "run")
    first, second, *others = read_problems(task.layout.train_data)
    several = [replace(first, answer=("2", "x+1")), replace(second, answer=("2", "\\frac{1}{"))]
    write_problems(task.layout.train_data, [*several, *others])
    name_unreadable(task)
    (record,) = caplog.records
    assert record.getMessage().endswith(f": {second.id}")


@pytest.mark.parametrize("field", ["data", "benchmark held-out"])
def test_a_prompt_that_is_too_long_is_refused_before_anything_is_made(field: str, tmp_path: Path) -> None:
    wanted = prompt_task(tmp_path / "measured")
    training = lengths(wanted, wanted.layout.train_data)
    if field != "data":  # one long problem in the benchmark alone
        make_long(wanted.layout.benchmark_data("held-out"), 1)
    limit = training[-1] - 1 if field == "data" else training[-1]
    task = replace(wanted, experiment=load_recipe(QUICKSTART, (f"sampling.max_prompt_tokens={limit}", BENCHMARK)))
    with pytest.raises(
        UserError, match=r"longer than sampling.max_prompt_tokens \(\d+\); the longest is that of"
    ) as told:
        prepare.run(task)
    assert str(told.value.where).startswith(field)
    assert "sampling.long_prompts=drop" in (told.value.advice or "")
    assert not task.layout.weights_version(0).exists()


def test_long_prompts_are_left_out_where_the_recipe_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = prompt_task(tmp_path / "run", "sampling.max_prompt_tokens=64", "sampling.long_prompts=drop")
    path, record = task.layout.train_data, task.layout.train_data.with_name("train.left_out.json")
    make_long(path, 5)
    before = lengths(task, path)
    for _ in range(2):  # a second attempt finds nothing to leave out
        check_tokenized_prompts(task)
        assert lengths(task, path) == [n for n in before if n <= 64]
        assert len(json.loads(record.read_text())["tokens"]) == 5
    assert caplog.text.count("data: 5 of 40 problems are left out") == 1


def with_problem(task: Task, text: str) -> str:
    """Give the first training problem another text; returns its id."""
    first, *others = read_problems(task.layout.train_data)
    write_problems(task.layout.train_data, [replace(first, problem=text), *others])
    return first.id


@pytest.mark.parametrize("text", ["Say <|end|> twice", "x</think>=3"])
def test_a_problem_that_holds_a_special_token_is_refused(text: str, tmp_path: Path) -> None:
    task = prompt_task(tmp_path / "run")
    name = with_problem(task, text)
    with pytest.raises(UserError, match="1 of 40 problems hold text that is a special token") as refused:
        check_tokenized_prompts(task)
    assert refused.value.value == name
    assert not task.layout.weights_version(0).exists()


def test_a_problem_that_the_template_changes_is_refused(tmp_path: Path) -> None:
    """Its text would be in the prompt in part: a check of one question alone does not see that."""
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content.split('###')[0] }}\n")
    task = prompt_task(tmp_path / "run", f"prompt.chat_template={template}")
    check_tokenized_prompts(task)
    name = with_problem(task, "Solve 2*x=6 ### and this")
    with pytest.raises(UserError, match=f"does not write problem {name} as it is"):
        check_tokenized_prompts(task)


def test_problems_that_the_tokenizer_normalises_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build_tokenizer().save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"normalizer": {"type": "NFC"}}))
    task = prompt_task(tmp_path / "run")
    check_prompts(task, tmp_path)
    assert "normalisation" not in caplog.text
    name = with_problem(task, "What is e\u0301?")
    check_prompts(task, tmp_path)
    assert (
        f"replaces characters of 1 of 40 problems by others that look alike (Unicode normalisation), and the model "
        f"reads those: {name}" in caplog.text
    )


def test_too_few_problems_left_are_refused(tmp_path: Path) -> None:
    task = prompt_task(tmp_path / "run", "sampling.max_prompt_tokens=1", "sampling.long_prompts=drop")
    with pytest.raises(UserError, match="too few are left"):
        check_tokenized_prompts(task)
