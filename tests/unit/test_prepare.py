"""The first job: weights version 0, the checks of model, tokenizer, prompts and gold answers, and wrong data files."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import recipe, refusal
from hypothesis import given
from hypothesis import strategies as st
from run_of import bare_run, run_of, task_of
from safetensors.numpy import load_file, save_file
from samples import draw_problems
from transformers import LlamaConfig, Qwen3NextConfig
from warm_start import build_tokenizer

from mrt_hpc.domains.small_world import STARTING_MODEL
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.roles import prepare
from mrt_hpc.roles.prepare_checks import check_prompts, name_faulty_golds
from mrt_hpc.roles.task.context import Task
from mrt_hpc.run.manifest import MANIFEST, DamagedError, verify
from mrt_hpc.run.problems import draw_indices, draw_places, omitted_problems, read_problems, share, write_problems
from mrt_hpc.run.records import Problem, gold_text
from mrt_hpc.run.seeds import derive_seed
from mrt_hpc.run.weights import publish
from mrt_hpc.training.small_model import make_small

BENCHMARK = "evaluation.benchmarks=[{name: held-out, problems: {type: small_world, split: held_out, problems: 20}}]"
FILES = ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
DROP = "sampling.long_prompts=drop"


def fill(directory: Path) -> None:
    build_tokenizer().save_pretrained(directory)
    make_small(LlamaConfig(), directory)
    (directory / "generation_config.json").unlink()


def prepare_task(run: Path, *settings: str, name: str = "quickstart") -> Task:
    return task_of(run_of(run, *settings, recipe=name), "prepare")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layout = bare_run(tmp_path_factory.mktemp("other"))
    publish(layout, 12, fill)
    return layout.weights_version(12)


@pytest.fixture
def other(published: Path, tmp_path: Path) -> Path:
    return shutil.copytree(published, tmp_path / "other" / published.name)


def change_tokenizer(model: Path, **changes: object) -> None:
    path = model / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def make_lossy(model: Path) -> None:
    change_tokenizer(model, normalizer={"type": "Replace", "pattern": {"String": " "}, "content": ""})


def make_infinite(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    tensors["model.norm.weight"][2] = np.nan
    save_file(tensors, model / "model.safetensors", {"format": "pt"})


def test_a_run_starts_from_a_weights_version_of_another_unless_it_is_damaged(other: Path, tmp_path: Path) -> None:
    whole, damaged = (prepare_task(tmp_path / run, f"model={{type: hugging_face, path: {other}}}") for run in "ab")
    prepare.run(whole)
    manifest = verify(whole.layout.weights_version(0))
    assert (sorted(manifest.files), manifest.about["source"]) == (FILES, str(other))
    save_file({"weight": np.ones(4, dtype=np.float32)}, other / "model.safetensors")
    with pytest.raises(DamagedError):
        prepare.run(damaged)
    assert not damaged.layout.weights_version(0).exists()


@pytest.mark.parametrize(("damage", "field", "fact"), [
    (make_infinite, "model", "model.norm.weight"),
    (make_lossy, "model", "model.path"),
    (make_lossy, "prover.model", "prover.model"),
])  # fmt: skip
def test_unusable_models(other: Path, tmp_path: Path, damage: Callable[[Path], None], field: str, fact: str) -> None:
    (other / MANIFEST).unlink()
    damage(other)
    value = f"{{type: hugging_face, path: {other}}}" if field == "model" else other
    task = prepare_task(tmp_path / "run", f"{field}={value}", name="small_world/mrt_online")
    assert fact in refusal(prepare.run, task).message()
    assert not task.layout.weights_version(0).exists()


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    for name, trained, fact in (("NoSuch", True, "transf"), ("Qwen22", False, "Qwen2ForCausal")):
        (tmp_path / "config.json").write_text(json.dumps({"architectures": [f"{name}ForCausalLM"]}))
        refused = refusal(partial(prepare.check_architecture, tmp_path, "model.path", trained=trained)).message()
        assert name in refused and fact in refused


def test_a_model_that_is_not_trained_as_it_is_sampled(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_small(Qwen3NextConfig(), tmp_path)
    quickstart = recipe("quickstart")
    prepare.check_training(tmp_path, "model.path", quickstart)
    prepare.check_training(tmp_path, "model.path", recipe("quickstart", "training.batching=packed"))
    assert "training.batching is padded" in caplog.text
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"model.layers.77.norm": np.zeros(2)}, tmp_path / "model.safetensors", {"format": "pt"})
    assert "model.layers.77.norm" in refusal(prepare.check_training, tmp_path, "model.path", quickstart).message()


def prompt_task(run: Path, *settings: str) -> Task:
    return prepare_task(run, "data.problems=40", "sampling.problems_per_iteration=8", BENCHMARK, *settings)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return prompt_task(tmp_path / "run")


def lengths(task: Task) -> list[int]:
    prompter = Prompter.of(STARTING_MODEL, task.recipe.prompt)
    return sorted(len(prompter.encode_problem(p.problem)) for p in read_problems(task.layout.train_data))


def make_long(path: Path, count: int) -> None:
    problems = read_problems(path)
    long = [replace(p, problem=p.problem + " and so on" * 40) for p in problems[:count]]
    write_problems(path, [*problems[count:], *long])


def change_first(task: Task, **changes: Any) -> str:
    first, *others = read_problems(task.layout.train_data)
    write_problems(task.layout.train_data, [replace(first, **changes), *others])
    return first.id


@pytest.mark.parametrize(
    ("answers", "unreadable"),
    [([], []), (["\\frac{1}{", "\\frac{1}{2}.", "x+1"], [0]), ([("2", "x+1"), ("2", "\\frac{1}{")], [1]),
     (["\\textbf{(B)}\\ 12", "\\textbf{(C)}\\ D"], [1])],
)  # fmt: skip
def test_gold_answers_out_of_reach(task: Task, caplog: pytest.LogCaptureFixture, answers: Any, unreadable: Any) -> None:
    problems = read_problems(task.layout.train_data)
    odd = [replace(problem, answer=answer) for problem, answer in zip(problems, answers, strict=False)]
    write_problems(task.layout.train_data, [*odd, *problems[len(odd) :]])
    name_faulty_golds(task)
    messages = [record.getMessage() for record in caplog.records]
    assert [message.rpartition(": ")[2] for message in messages] == [problems[n].id for n in unreadable]
    assert all(f"1 of 40 problems of {task.layout.train_data}" in message for message in messages)


@pytest.mark.parametrize("field", ["data", "benchmark held-out"])
def test_a_prompt_that_is_too_long_is_refused_before_anything_is_made(field: str, task: Task) -> None:
    limit = lengths(task)[-1] - 1
    if field != "data":  # one long problem in the benchmark alone
        make_long(task.layout.benchmark_data("held-out"), 1)
        limit += 1
    asked = recipe("quickstart", f"sampling.max_prompt_tokens={limit}", BENCHMARK)
    refused = refusal(prepare.run, replace(task, experiment=asked))
    assert f"sampling.max_prompt_tokens ({limit})" in refused.what
    assert str(refused.where).startswith(field)
    assert DROP in str(refused.advice)
    assert not task.layout.weights_version(0).exists()


def test_long_prompts_are_left_out_where_the_recipe_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = prompt_task(tmp_path / "run", "sampling.max_prompt_tokens=64", DROP)
    make_long(task.layout.train_data, 5)
    before = lengths(task)
    for _ in range(2):  # a second attempt finds nothing to leave out
        check_prompts(task, STARTING_MODEL)
        assert lengths(task) == [n for n in before if n <= 64]
        assert len(omitted_problems(task.layout.train_data)) == 5
    assert caplog.text.count("data: 5 of 40 problems") == 1
    none = prompt_task(tmp_path / "none", "sampling.max_prompt_tokens=1", DROP)
    assert refusal(check_prompts, none, STARTING_MODEL).advice, "too few are left"


def test_a_problem_that_holds_a_special_token_is_refused(task: Task) -> None:
    for text in ("Say <|end|> twice", "x</think>=3"):
        assert change_first(task, problem=text) == refusal(check_prompts, task, STARTING_MODEL).value


def test_a_problem_that_the_template_changes_is_refused(tmp_path: Path) -> None:
    """Its text would be in the prompt in part: a check of one question alone does not see that."""
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content.split('###')[0] }}\n")
    task = prompt_task(tmp_path / "run", f"prompt.chat_template={template}")
    check_prompts(task, STARTING_MODEL)
    name = change_first(task, problem="Solve 2*x=6 ### and this")
    assert name in refusal(check_prompts, task, STARTING_MODEL).message()


def test_problems_that_a_tokenizer_changes(task: Task, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build_tokenizer().save_pretrained(tmp_path / "model")
    change_tokenizer(tmp_path / "model", normalizer={"type": "NFC"})
    check_prompts(task, tmp_path / "model")
    assert "normalisation" not in caplog.text
    name = change_first(task, problem="What is e\u0301?")
    check_prompts(task, tmp_path / "model")
    assert "1 of 40 problems" in caplog.text and f"reads those: {name}" in caplog.text


# -- problems


QUICKSTART = recipe("quickstart")
PROBLEMS = [Problem(f"p{i}", f"What is {i}+1?", str(i + 1)) for i in range(10)]


def test_what_is_written_is_read_with_one_gold_answer_or_several(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    several = [*PROBLEMS, Problem("b", "y", ("1/2", "0.5"))]
    write_problems(path, several)
    assert (read_problems(path), read_problems(path, 3)) == (several, PROBLEMS[:3])
    first, *_, last = path.read_text().splitlines()
    assert first == '{"id": "p0", "problem": "What is 0+1?", "answer": "1"}', "it decides the fingerprint of results"
    assert last == '{"id": "b", "problem": "y", "answer": ["1/2", "0.5"]}'
    assert [gold_text(problem.answer) for problem in several[-2:]] == ["10", "1/2 or 0.5"]
    path.write_text(first.replace('"1"', '["1"]'))
    assert read_problems(path) == PROBLEMS[:1]


def test_a_wrong_line_is_named_and_so_is_a_missing_or_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    assert str(path) in refusal(read_problems, path).message()
    path.write_text("\n\n")
    assert str(path) in refusal(read_problems, path).message()
    for second, facts in (
        *((f'{{"id": "b", "problem": "x", "answer": {answer}}}', ["answer"])
          for answer in ("[]", '["1", " 1"]', '["1", 2]', "1")),
        ("{", []),
        ('{"id": "b", "problm": "x", "answer": "1"}', ["problem", "problm"]),
        ('{"id": "a", "problem": "x", "answer": "1"}', ["line 1", "'a'"]),
        ('{"id": "b", "problem": " ", "answer": "1"}', ["problem"]),
        ("\xff", []),
        ('{"id": "b", "problem": "x", "answer": "1", "answer": "2"}', ["answer stands there twice"]),
        ('{"id": "b", "problem": "x \\ud83d", "answer": "1"}', ["half of a character"]),
    ):  # fmt: skip
        path.write_bytes(f'{{"id": "a", "problem": "x", "answer": "1"}}\n{second}\n'.encode("latin-1"))
        refused = refusal(read_problems, path).message()
        assert [word for word in ["line 2", *facts] if word not in refused] == []


@given(seed=st.integers(0, 99), size=st.integers(1, 40), data=st.data())
def test_each_pass_holds_each_problem_once(seed: int, size: int, data: st.DataObject) -> None:
    """Also where a window of an iteration lies across two."""
    count = data.draw(st.integers(1, size))
    windows = [draw_indices(size, seed, iteration, count) for iteration in range(3 * size // count + 1)]
    assert all(len({*window}) == count for window in windows)
    drawn = [*chain(*windows)]
    for first in range(0, len(drawn) - size, size):
        assert sorted(drawn[first : first + size]) == list(range(size))
    assert windows[0] == draw_indices(size, seed, 0, count), "the same every time"
    sampling = QUICKSTART.sampling.model_copy(update={"problems_per_iteration": count, "resample": "outcome"})
    places = draw_places(range(size), QUICKSTART.model_copy(update={"seed": seed, "sampling": sampling}), 0)
    assert [first for first, *_ in places] == windows[0], "as without resampling"
    assert len({*chain(*places)}) == sum(map(len, places)) == min(size, 3 * count), "no problem has two places"


def test_more_problems_than_there_are_repeat_them_evenly() -> None:
    drawn = draw_problems(PROBLEMS, 3, 0, 25)
    assert {drawn.count(problem) for problem in PROBLEMS} == {2, 3}


def test_shares_are_disjoint_and_complete() -> None:
    for shards in range(1, 13):
        parts = [share(PROBLEMS, s, shards) for s in range(shards)]
        assert sorted(p.id for part in parts for p in part) == sorted(p.id for p in PROBLEMS)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_seeds_differ_by_every_part_and_stay_the_same_over_versions() -> None:
    assert derive_seed(0, "rollout", 1, "p", 2) != derive_seed(0, "rollout", 1, "p", 3)
    assert derive_seed(0, "rollout", 1, "p", 2) != derive_seed(0, "rollout", 12, "p")
    assert derive_seed(0, 1) != derive_seed(0, "1") and derive_seed(0, "rollout", 1, "p", 2) == 1358820838
    assert all(0 <= derive_seed(s, "x") < 2**31 for s in range(100))
