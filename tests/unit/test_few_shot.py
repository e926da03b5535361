"""Few-shot prompts: solved examples stand before the problem, as earlier turns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.cli.plan import missing_inputs
from mrt_hpc.domains.small_world.model import build_tokenizer
from mrt_hpc.errors import UserError
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.find import RECIPES, find
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import read_lock
from mrt_hpc.recipe.sections import Prompt
from mrt_hpc.run.data import read_examples
from mrt_hpc.run.evaluation_settings import evaluation_settings
from mrt_hpc.run.prompt_files import changed_prompt_files, copy_of, read_experiment
from mrt_hpc.submit.create import create_or_open

SOLVED = [("1+1", "It is 2"), ("1+2", "It is 3"), ("1+3", "It is 4")]


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    lines = [{"id": str(n), "problem": problem, "solution": solution} for n, (problem, solution) in enumerate(SOLVED)]
    path = tmp_path / "examples.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def prompter(folder: Path, examples: Path, shots: int, *, template: bool = True) -> Prompter:
    tokenizer = build_tokenizer()
    if not template:
        tokenizer.chat_template = None
    tokenizer.save_pretrained(folder / "model")
    return Prompter.of(folder / "model", Prompt(instruction="?", examples=str(examples), shots=shots))


@pytest.mark.parametrize(
    ("shots", "text"),
    [
        (0, "5+5?\n<think>\n"),
        (1, "1+1?\nIt is 2<|end|>\n5+5?\n<think>\n"),
        (2, "1+1?\nIt is 2<|end|>\n1+2?\nIt is 3<|end|>\n5+5?\n<think>\n"),
    ],
)
def test_examples_are_turns_before_the_problem(tmp_path: Path, examples: Path, shots: int, text: str) -> None:
    assert prompter(tmp_path, examples, shots).text("5+5") == text


def test_without_a_chat_template_examples_are_paragraphs(tmp_path: Path, examples: Path) -> None:
    found = prompter(tmp_path, examples, 1, template=False).text("5+5")
    assert found == "1+1?\nIt is 2\n\n5+5?\n<think>\n"


def test_the_problem_itself_is_no_example(tmp_path: Path, examples: Path) -> None:
    found = prompter(tmp_path, examples, 2).text("1+1")
    assert found == "1+2?\nIt is 3<|end|>\n1+3?\nIt is 4<|end|>\n1+1?\n<think>\n"


def test_too_few_examples_are_refused(tmp_path: Path, examples: Path) -> None:
    assert prompter(tmp_path, examples, 3).text("5+5")
    with pytest.raises(UserError, match="fewer examples") as refused:
        prompter(tmp_path, examples, 3).text("1+1")
    assert "--set prompt.shots=2" in str(refused.value.advice)


def test_an_example_without_a_solution_is_refused_with_its_line(tmp_path: Path, examples: Path) -> None:
    examples.write_text('{"id": "a", "problem": "1+1", "answer": "2"}\n')
    with pytest.raises(UserError, match="solution is missing") as refused:
        prompter(tmp_path, examples, 1)
    assert "line 1" in str(refused.value.where)


def test_a_recipe_names_its_examples_beside_it_and_shots_need_them(tmp_path: Path, examples: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: quickstart\nprompt: {examples: examples.jsonl, shots: 2}\n")
    assert load_recipe(path).prompt.examples == str(examples)
    path.write_text("extends: quickstart\nprompt: {shots: 1}\n")
    with pytest.raises(UserError, match=r"prompt\.examples"):
        load_recipe(path)


def test_a_run_keeps_its_own_copies_of_the_files_of_its_prompts(tmp_path: Path, examples: Path) -> None:
    """A file that changes afterwards changes nothing in the run, and the settings of its evaluations stay."""
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content }}")
    path = tmp_path / "mine.yaml"
    path.write_text(
        f"extends: quickstart\nprompt: {{examples: {examples}, shots: 2}}\n"
        f"evaluation: {{prompt: {{chat_template: {template}}}}}\n"
    )
    recipe = load_recipe(path)
    layout = create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite()))
    before = evaluation_settings(layout, recipe)
    assert list(changed_prompt_files(layout, recipe)) == []
    template.write_text("another")
    examples.unlink()
    kept = read_experiment(layout)
    assert kept.prompt.examples is not None
    assert len(read_examples(Path(kept.prompt.examples))) == 3
    assert kept.evaluation.prompt is not None
    assert kept.evaluation.prompt.chat_template == str(copy_of(layout, template))
    assert copy_of(layout, template).read_text() == "{{ messages[0].content }}"
    assert evaluation_settings(layout, recipe) == evaluation_settings(layout, kept) == before
    assert list(changed_prompt_files(layout, recipe)) == [template]
    assert read_lock(layout.recipe_lock) == recipe, "the lock names the files that were given"


@pytest.mark.parametrize("field", ["examples", "chat_template"])
def test_a_file_of_a_prompt_that_is_not_there_is_refused_before_anything_is_made(tmp_path: Path, field: str) -> None:
    recipe = load_recipe(find(RECIPES, "quickstart"), (f"evaluation.prompt={{{field}: {tmp_path}/nowhere}}",))
    with pytest.raises(UserError, match="no such file") as refused:
        create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite()))
    assert refused.value.where == f"evaluation.prompt.{field}"
    assert any("nowhere" in missing for missing in missing_inputs(recipe))
    assert not (tmp_path / "run").exists()


def test_further_tokens_may_end_a_completion(tmp_path: Path) -> None:
    build_tokenizer().save_pretrained(tmp_path)
    own = Prompter.of(tmp_path, Prompt()).stop_token_ids
    more = Prompter.of(tmp_path, Prompt(stop_tokens=("=", "<|end|>")))
    assert more.stop_token_ids == (*own, *more.ids("="))
    with pytest.raises(UserError, match="no single token") as refused:
        Prompter.of(tmp_path, Prompt(stop_tokens=("1+1",)))
    assert refused.value.value == "1+1"
