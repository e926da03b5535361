"""What files alone tell of a model is refused when a run is submitted, before anything is queued."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.cli.main import main
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.model_files import context_length
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from collections.abc import Callable

RECIPE = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
CONFIG = {"architectures": ["Qwen2ForCausalLM"], "max_position_embeddings": 4096}
INDEX = "model.safetensors.index.json"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory whose files go together."""
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    save_file({"weight": np.zeros((8, 8), dtype=np.float32)}, directory / "model.safetensors")
    return directory


def submit(model: Path, *changes: str) -> None:
    recipe = load_recipe(RECIPE, (f"model={{type: hugging_face, path: {model}}}", *changes))
    create_or_open(model.parent / "run", recipe, compile_plan(recipe, LocalSite()))


def change(name: str, **fields: Any) -> Callable[[Path], None]:
    def write(model: Path) -> None:
        path = model / name
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return write


def without(name: str) -> Callable[[Path], None]:
    return lambda model: (model / name).unlink()


def truncated(model: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def no_header(model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")


def unreadable_header(model: Path) -> None:
    (model / "model.safetensors").write_bytes(struct.pack("<Q", 8) + b"no JSON." + bytes(64))


def half_indexed(model: Path) -> None:
    names = {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}
    (model / INDEX).write_text(json.dumps({"weight_map": names}))


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (without("config.json"), "no model directory there"),
    "no JSON": (lambda m: (m / "config.json").write_text("{") and None, "config.json of the model cannot be read"),
    "no tokenizer": (without("tokenizer.json"), "lacks a tokenizer"),
    "no tokenizer_config": (without("tokenizer_config.json"), "lacks tokenizer_config.json"),
    "no template": (change("tokenizer_config.json", chat_template=None), "no chat template"),
    "no weights": (without("model.safetensors"), "lacks safetensors files"),
    "truncated weights": (truncated, "its size is not what its header says"),
    "a pointer for weights": (no_header, "does not begin with the header"),
    "corrupt weights": (unreadable_header, "its header cannot be read"),
    "half the weights": (half_indexed, "model-00002-of-00002.safetensors"),
    "unknown architecture": (
        change("config.json", architectures=["Qwen2ForCasualLM"]),
        "name ends in ForCausalLM or LMHeadModel",
    ),
    "no architecture": (change("config.json", architectures=None), "does not continue texts"),
    "an encoder": (change("config.json", architectures=["BertForMaskedLM"]), "does not continue texts"),
    "one shard of two, without index": (
        lambda m: m.joinpath("model.safetensors").rename(m / "model-00001-of-00002.safetensors") and None,
        "model.safetensors is missing",
    ),
    "short context": (change("config.json", max_position_embeddings=128), "the model holds 128"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_model_that_cannot_be_right_is_refused_by_submit(fault: str, model: Path) -> None:
    damage, message = FAULTS[fault]
    damage(model)
    with pytest.raises(UserError, match=message) as refused:
        submit(model)
    assert "model.path" in str(refused.value.where)
    assert not (model.parent / "run").exists()


def test_a_whole_model_is_accepted(model: Path) -> None:
    submit(model)
    assert (model.parent / "run").is_dir()


def test_a_template_of_the_recipe_stands_in_for_the_models(model: Path, tmp_path: Path) -> None:
    change("tokenizer_config.json", chat_template=None)(model)
    (tmp_path / "template.jinja").write_text("{{ messages[0].content }}")
    submit(model, f"prompt.chat_template={tmp_path / 'template.jinja'}")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ messages[0].content[0].text }}", "writes the question 0 times"),
        ("{{ raise_exception('Give me tools.') }}", "TemplateError: Give me tools."),
        ("{{ messages[0].content }}[assistant]<think></think>", "closes the thought"),
    ],
)
def test_a_template_that_makes_no_usable_prompt_is_refused_by_submit_and_told_by_plan(
    template: str, words: str, model: Path, tmp_path: Path
) -> None:
    change("tokenizer_config.json", chat_template=template)(model)
    with pytest.raises(UserError, match=words) as refused:
        submit(model)
    assert str(refused.value.where).startswith("model.path")
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"extends: quickstart\nmodel: {{type: hugging_face, path: {model}}}\n")
    result = CliRunner().invoke(main, ["plan", str(recipe), "--run", str(tmp_path / "run")])
    assert "submit will refuse: the chat template" in result.output
    assert re.search(words, result.output)


def test_the_prompt_of_a_benchmark_is_checked_for_the_model_too(model: Path, tmp_path: Path) -> None:
    (tmp_path / "template.jinja").write_text("{{ messages[0].content }}<think></think>")
    with pytest.raises(UserError, match="closes the thought"):
        submit(model, f"evaluation.prompt.chat_template={tmp_path / 'template.jinja'}")


def test_the_model_of_a_prover_is_looked_at_as_well(model: Path) -> None:
    truncated(model)
    recipe = load_recipe(RECIPE.parent / "small_world" / "mrt_online.yaml", (f"prover.model={model}",))
    with pytest.raises(UserError, match="damaged") as refused:
        create_or_open(model.parent / "run", recipe, compile_plan(recipe, LocalSite()))
    assert "prover.model" in str(refused.value.where)


def test_the_longest_sequence_holds_prompt_trace_and_answer() -> None:
    recipe = load_recipe(RECIPE.parent / "small_world" / "mrt_online.yaml")
    assert recipe.longest_sequence == 64 + 256 + 4
    assert load_recipe(RECIPE.parent / "mrt_online.yaml").longest_sequence == 4096 + 16384 + 512


@pytest.mark.parametrize(
    ("mode", "tokens"),
    [
        ("{type: direct}", 1000),
        ("{type: history_conditioned}", 2000),
        ("{type: history_conditioned, attempt_tokens: 500, backtrack: null}", 500 + 64 + 1000),
        ("{type: linearised, rounds: 5, window: 2}", 3000),
        ("{type: linearised, rounds: 2, window: 9, round_tokens: 700, backtrack: null}", 700 + 64 + 700),
        ("{type: budget_forcing, budgets: [500, 3000], answer_tokens: 100}", 3100),
        ("{type: extrapolation, extensions: 4, tokens: 512, answer_tokens: 200}", 1000 + 4 * 512 + 200),
    ],
)
def test_a_model_without_room_for_a_way_of_evaluating_is_refused_by_submit(model: Path, mode: str, tokens: int) -> None:
    """The prompt has 64 tokens at most, and a forced answer of the prover 30."""
    benchmark = f"{{name: b, problems: {{type: small_world, problems: 4}}, max_tokens: 1000, mode: {mode}}}"
    how = f"evaluation={{prover: {{type: forced_answer, max_tokens: 30}}, benchmarks: [{benchmark}]}}"
    change("config.json", max_position_embeddings=64 + tokens + 29)(model)
    with pytest.raises(UserError, match=f"sequences of {64 + tokens + 30:,} tokens") as refused:
        submit(model, how)
    assert "the mode of a benchmark" in str(refused.value.advice)
    change("config.json", max_position_embeddings=64 + tokens + 30)(model)
    submit(model, how)


def test_the_model_of_a_prover_needs_room_for_what_training_samples_alone(model: Path) -> None:
    long = "evaluation.benchmarks=[{name: b, problems: {type: small_world}, mode: {type: extrapolation}}]"
    recipe = load_recipe(RECIPE.parent / "small_world" / "mrt_online.yaml", (f"prover.model={model}", long))
    create_or_open(model.parent / "run", recipe, compile_plan(recipe, LocalSite()))


def test_the_context_is_counted_as_vllm_does() -> None:
    assert context_length({"n_positions": 1024}) == 1024
    assert context_length({"max_position_embeddings": 100, "rope_scaling": {"type": "linear", "factor": 4.0}}) == 400
    assert context_length({"max_position_embeddings": 100, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}) == 100
    assert context_length({"text_config": {"max_position_embeddings": 50}}) == 50
    assert context_length({}) is None


HEADS = change("config.json", num_attention_heads=12, num_key_value_heads=2)


@pytest.mark.parametrize("width", [1, 2, 4, 6, 12])
def test_a_model_whose_heads_divide_over_the_gpus_is_taken(model: Path, width: int) -> None:
    HEADS(model)
    submit(model, f"serving.tensor_parallel={width}")


@pytest.mark.parametrize(("width", "nearest"), [(3, 2), (5, 4), (8, 6), (24, 12)])
def test_a_model_whose_heads_do_not_divide_over_the_gpus_is_refused(model: Path, width: int, nearest: int) -> None:
    HEADS(model)
    with pytest.raises(UserError, match="cannot divide the model's 12 attention heads") as refused:
        submit(model, f"serving.tensor_parallel={width}")
    assert refused.value.expected == "one of 1, 2, 4, 6, 12"
    assert f"serving.tensor_parallel to {nearest}" in str(refused.value.advice)


def test_a_plan_tells_heads_that_do_not_divide_where_data_are_missing(model: Path, tmp_path: Path) -> None:
    HEADS(model)
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"extends: quickstart\nmodel: {{type: hugging_face, path: {model}}}\n")
    changes = ("serving.tensor_parallel=8", "data={type: jsonl, path: nowhere.jsonl}")
    sets = [word for change in changes for word in ("--set", change)]
    result = CliRunner().invoke(main, ["plan", str(recipe), "--run", str(tmp_path / "run"), *sets])
    assert "nowhere.jsonl" in result.output
    assert "over these GPUs" in result.output


SHARED_ROWS = ("training.batching=packed", "resources.trainer.ranks=24")


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 12])
def test_a_model_whose_heads_divide_over_the_ranks_of_a_sequence_is_taken(model: Path, ranks: int) -> None:
    HEADS(model)
    submit(model, f"training.sequence_parallel={ranks}", *SHARED_ROWS)


@pytest.mark.parametrize(("ranks", "nearest"), [(8, 6), (24, 12)])
def test_a_model_whose_heads_do_not_divide_over_the_ranks_is_refused(model: Path, ranks: int, nearest: int) -> None:
    HEADS(model)
    with pytest.raises(UserError, match="12 attention heads do not divide over the ranks") as refused:
        submit(model, f"training.sequence_parallel={ranks}", *SHARED_ROWS)
    assert refused.value.expected == "one of 1, 2, 3, 4, 6, 12"
    assert f"training.sequence_parallel={nearest}," in str(refused.value.advice)
