"""Model directories that cannot be right are refused beforehand, and damaged files of weights are not taken."""

import json
import struct
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import recipe, refusal
from run_of import run_of
from safetensors.numpy import save_file
from tables import tables

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.model_files import BITS, check_safetensors, context_length
from mrt_hpc.run.manifest import DamagedError
from mrt_hpc.run.safetensors_file import is_finite, refuse_not_finite, stored_tensors, width_of

CONFIG, TOKENIZER, WEIGHTS = "config.json", "tokenizer_config.json", "model.safetensors"
TEMPLATE = "{{ messages[0].content }}"
CLOSED = TEMPLATE + "[assistant]<think></think>"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    config = {"architectures": ["Qwen2ForCausalLM"], "max_position_embeddings": 4096, "vocab_size": 394}
    for name, content in {CONFIG: config, "tokenizer.json": {}, TOKENIZER: {"chat_template": TEMPLATE}}.items():
        (directory / name).write_text(json.dumps(content))
    save_file({"weight": np.zeros((8, 8), dtype=np.float32)}, directory / WEIGHTS)
    return directory


def submit(model: Path, *changes: str, run: str = "run") -> None:
    run_of(model.parent / run, f"model={{type: hugging_face, path: {model}}}", *changes)


def change(name: str, **fields: Any) -> Callable[[Path], object]:
    return lambda model: (model / name).write_text(json.dumps(json.loads((model / name).read_text()) | fields))


def shortened(model: Path) -> None:
    (model / WEIGHTS).write_bytes((model / WEIGHTS).read_bytes()[:-10])


DAMAGES: dict[str, Callable[..., object]] = {
    "change": lambda model, name, fields: change(name, **fields)(model),
    "holding": lambda model, name, text: (model / name).write_text(text),
    "renamed": lambda model: (model / WEIGHTS).rename(model / "model-00001-of-00002.safetensors"),
    "shortened": shortened,
    "without": lambda model, name: (model / name).unlink(),
}


@pytest.mark.parametrize(("damage", "fact"), tables("model_files")["damaged"])
def test_a_model_that_cannot_be_right_is_refused_by_submit(damage: list[Any], fact: str, model: Path) -> None:
    name, *given = damage
    DAMAGES[name](model, *given)
    with pytest.raises(UserError, match=fact) as refused:
        submit(model)
    assert "model.path" in str(refused.value.where)
    assert not (model.parent / "run").exists()


@pytest.mark.parametrize("template", [5, [["default"]]])
def test_a_chat_template_that_is_no_text_is_refused(template: object, model: Path) -> None:
    change(TOKENIZER, chat_template=template)(model)
    assert "chat template" in refusal(submit, model).what


def stored(data: bytes, **tensors: Any) -> bytes:
    """A safetensors file: for each tensor its number format, shape and place."""
    described = {name: dict(zip(("dtype", "shape", "data_offsets"), of, strict=True)) for name, of in tensors.items()}
    head = json.dumps(described).encode()
    return struct.pack("<Q", len(head)) + head + data


NAN = bytes.fromhex("0000c07f")


@pytest.mark.parametrize("content", [
    stored(NAN, a=("F32", [1], [4, 0]), b=("F32", [0], [4, 4])),
    stored(NAN, a=("F32", [0], [4, 4])),
    stored(NAN, a=("f32", [1], [0, 4])),
    stored(NAN, a=(["F32"], [1], [0, 4])),
    stored(NAN, a=("F32", [1000], [0, 4])),
    stored(NAN, a=("F32", [-1], [0, -4])),
    stored(NAN, a=("F32", [1], [0, 4]), b=("I32", [1], [0, 4])),
    stored(NAN, a=("F32", [1], [0, 4]), b=("F32", [0], [4, 4])).replace(b'"b"', b'"a"'),
    struct.pack("<Q", 60_000) + b"[" * 60_000,
])  # fmt: skip
def test_weights_whose_header_contradicts_itself_are_refused_and_never_finite(content: bytes, model: Path) -> None:
    (model / WEIGHTS).write_bytes(content)
    assert "damaged" in str(refusal(check_safetensors, model / WEIGHTS, "model.path"))
    with pytest.raises(DamagedError):
        refuse_not_finite(model)


def test_weights_of_every_number_format_are_taken(model: Path) -> None:
    formats = {f"t{number}": (name, [8], bits) for number, (name, bits) in enumerate(BITS.items())}
    ends = [*accumulate(bits for *_, bits in formats.values())]
    tensors = {name: (of[0], of[1], [end - of[2], end]) for (name, of), end in zip(formats.items(), ends, strict=True)}
    (model / WEIGHTS).write_bytes(stored(bytes(ends[-1]), **tensors, empty=("U8", [0, 3], [ends[-1]] * 2)))
    check_safetensors(model / WEIGHTS, "model.path")
    refuse_not_finite(model)
    with pytest.raises(DamagedError, match="bad"):
        (model / WEIGHTS).write_bytes(stored(NAN * 2, bad=("C64", [1], [0, 8])))
        refuse_not_finite(model)
    assert not is_finite("f32", np.zeros(4, np.uint8))


def test_the_templates_of_the_recipe_stand_in_for_the_models_and_are_checked_for_it(model: Path) -> None:
    own = model.parent / "template.jinja"
    own.write_text(CLOSED)
    assert "closes the thought" in str(refusal(submit, model, f"evaluation.prompt.chat_template={own}"))
    change(TOKENIZER, chat_template=None)(model)
    own.write_text(TEMPLATE)
    submit(model, f"prompt.chat_template={own}")


def test_the_model_of_a_prover_is_looked_at_as_well(model: Path) -> None:
    """And it needs room for what training samples alone."""
    long = "evaluation.benchmarks=[{name: b, problems: {type: small_world}, mode: {type: extrapolation}}]"
    asked = recipe("small_world/mrt_online", f"prover.model={model}", long)
    run_of(model.parent / "run", recipe=asked)
    shortened(model)
    assert "prover.model" in str(refusal(lambda: run_of(model.parent / "another", recipe=asked)).where)


@pytest.mark.parametrize(("mode", "tokens"), [
    ("{type: direct}", 1000),
    ("{type: history_conditioned, attempt_tokens: 500, backtrack: null}", 500 + 64 + 1000),
    ("{type: linearised, rounds: 2, window: 9, round_tokens: 700, backtrack: null}", 700 + 64 + 700),
    ("{type: budget_forcing, budgets: [500, 3000], answer_tokens: 100}", 3100),
    ("{type: extrapolation, extensions: 4, tokens: 512, answer_tokens: 200}", 1000 + 4 * 512 + 200),
])  # fmt: skip
def test_a_model_without_room_for_a_way_of_evaluating_is_refused_by_submit(model: Path, mode: str, tokens: int) -> None:
    """The prompt has 64 tokens at most, and a forced answer of the prover 30."""
    benchmark = f"{{name: b, problems: {{type: small_world, problems: 4}}, max_tokens: 1000, mode: {mode}}}"
    how = f"evaluation={{prover: {{type: forced_answer, max_tokens: 30}}, benchmarks: [{benchmark}]}}"
    change(CONFIG, max_position_embeddings=64 + tokens + 29)(model)
    assert f"sequences of {64 + tokens + 30:,} tokens" in str(refusal(submit, model, how))
    change(CONFIG, max_position_embeddings=64 + tokens + 30)(model)
    submit(model, how)


def test_lengths_are_counted_as_vllm_does() -> None:
    scaled = [{"max_position_embeddings": 100, "rope_scaling": {name: kind, "factor": 4.0}}
              for name, kind in (("type", "linear"), ("rope_type", "yarn"))]  # fmt: skip
    configs: list[dict[str, Any]] = [{"n_positions": 1024}, *scaled, {"text_config": {"n_positions": 50}}, {}]
    assert [context_length(config) for config in configs] == [1024, 400, 100, 50, None]


WIDTHS = {"serving.tensor_parallel": (1, 2, 4, 6, 12), "training.sequence_parallel": (1, 2, 3, 4, 6, 12)}
"""By which 12 heads of attention, with 2 of keys and values, can be divided."""


@pytest.mark.parametrize("field", WIDTHS)
def test_heads_divide_over_the_gpus_of_a_server_and_over_the_ranks_of_a_sequence(field: str, model: Path) -> None:
    change(CONFIG, num_attention_heads=12, num_key_value_heads=2)(model)
    rows = ("training.batching=packed", "resources.trainer.ranks=24") if "sequence" in field else ()
    for width in WIDTHS[field]:
        submit(model, f"{field}={width}", *rows, run=f"run-{width}")
    for width in (3, 5, 8, 24) if field == "serving.tensor_parallel" else (8, 24):
        refused = refusal(submit, model, f"{field}={width}", *rows)
        assert refused.expected == f"one of {', '.join(map(str, WIDTHS[field]))}"
        nearest = max(fitting for fitting in WIDTHS[field] if fitting <= width)
        assert str(refused.advice).partition(",")[0].endswith((f"{field} to {nearest}", f"{field}={nearest}"))


# -- the tensors of a file of weights are found by its header, and no damaged file is taken


def test_the_tensors_of_a_file_are_found_where_they_lie(tmp_path: Path) -> None:
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(5, dtype=np.float16)}
    save_file(tensors, path := tmp_path / "model.safetensors", {"format": "pt"})
    found = stored_tensors(path)
    assert {t.name: (t.dtype, t.shape) for t in found} == {"a": ("F32", (2, 3)), "b": ("F16", (5,))}
    content = path.read_bytes()
    assert {t.name: content[t.start : t.start + t.size] for t in found} == {n: t.tobytes() for n, t in tensors.items()}
    assert [width_of(t.dtype) * int(np.prod(t.shape)) for t in found] == [t.size for t in found]


def test_a_file_that_is_none_or_gone_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"no weights")
    for damaged in (path, tmp_path / "gone.safetensors"):
        with pytest.raises(DamagedError):
            stored_tensors(damaged)
