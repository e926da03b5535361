"""Few-shot prompts: solved examples stand before the problem, as earlier turns."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from mrt_hpc.domains.small_world.tokenizer import build_tokenizer
from mrt_hpc.errors import UserError
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.schema import Prompt

if TYPE_CHECKING:
    from pathlib import Path

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
