"""The small world's tokenizer and a warm start of a few steps, read back as any Hugging Face directory is."""

import json
import os
import random
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast
from warm_start import (
    IGNORED,
    EquationExamples,
    Example,
    WarmStartReport,
    WarmStartSettings,
    batches,
    build_tokenizer,
    equation_spans,
    fresh_model,
    make_optimisers,
    pack,
    packed_loss,
    schedule,
    token_weights,
    tokenise,
    update,
    warm_start,
)

from mrt_hpc.domains.small_world import STARTING_MODEL
from mrt_hpc.domains.small_world.equations import (
    ANSWER_START,
    END_THINK,
    FORCED_TEXT,
    Equation,
    Habits,
    Split,
    problems,
)
from mrt_hpc.run.seeds import derive_seed

Trained = tuple[Path, WarmStartReport]

SHORT = WarmStartSettings(steps=6, rows=2, warm_up=2)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    directory = tmp_path_factory.mktemp("world") / "model"
    return directory, warm_start(SHORT, directory)


def example(habits: Habits, rng: random.Random) -> Example:
    return EquationExamples(habits, [Equation(3, 14, 35)])(rng)


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def test_spans_of_an_example_join_at_token_boundaries_and_no_word_falls_apart(tokenizer: PreTrainedTokenizerFast):
    """What is trained on in pieces must read the same in one piece, forced text and cuts inside a check included."""
    rng = random.Random(0)
    for problem in problems(Split.TRAIN, 100):
        spans = equation_spans(Equation.parse(problem.problem), replace(Habits(), forced=0.7, forced_inside=0.5), rng)
        whole = encode(tokenizer, text := "".join(s.text for s in spans))
        assert whole == [i for s in spans for i in encode(tokenizer, s.text)]
        checks = text.partition(END_THINK)[0].count(" vs ") + text.count(FORCED_TEXT)
        forced = len(encode(tokenizer, FORCED_TEXT.removesuffix(ANSWER_START))) if FORCED_TEXT in text else 0
        assert len(whole) <= 19 * (checks + 1) + forced + 5


def test_prompt_and_forced_text_are_not_labelled(tokenizer: PreTrainedTokenizerFast):
    made = tokenise(example(replace(Habits(), forced=1.0), random.Random(0)), tokenizer)
    text = tokenizer.decode(made.ids)
    labelled = tokenizer.decode([label for label in made.labels if label != IGNORED])
    prompt = "Solve 3*x+14=35\n<think>\n"
    assert text.startswith(prompt)
    assert labelled == text.removeprefix(prompt).replace(FORCED_TEXT, "")
    assert made.labels[-1] == tokenizer.eos_token_id


def test_packed_examples_do_not_see_each_other(trained: Trained):
    """The loss of examples packed into one row is that of the same examples in rows of their own."""
    tokenizer, model = build_tokenizer(), AutoModelForCausalLM.from_pretrained(trained[0], dtype=torch.float32)
    rng = random.Random(2)
    examples = [tokenise(example(Habits(most_checks=2), rng), tokenizer) for _ in range(4)]
    weights = torch.ones(len(tokenizer))
    together = packed_loss(model, pack([examples], 256, tokenizer.pad_token_id), weights)
    apart = packed_loss(model, pack([[e] for e in examples], 256, tokenizer.pad_token_id), weights)
    assert together.item() == pytest.approx(apart.item(), rel=5e-3)  # bfloat16


def test_batches_are_full(tokenizer: PreTrainedTokenizerFast):
    found = list(batches(tokenizer, SHORT))
    assert len(found) == SHORT.steps
    assert sum((b.examples >= 0).float().mean().item() for b in found) / len(found) > 0.75


# -- the starting model that comes with the package -------------------------------------------------------------------

FIRST_LOSSES = [6.11931, 6.05629, 5.90911, 5.7343, 5.50173]  # of the first steps of its training, in nats a token


def test_the_first_steps_are_those_that_made_it(tokenizer: PreTrainedTokenizerFast) -> None:
    settings = WarmStartSettings()
    model = fresh_model(settings.size, tokenizer, derive_seed(settings.seed, "world", "weights"))
    optimisers, weights = make_optimisers(model, settings), token_weights(tokenizer, settings)
    for step, batch in enumerate(islice(batches(tokenizer, settings), len(FIRST_LOSSES))):
        loss = packed_loss(model, batch, weights)
        assert loss.item() == pytest.approx(FIRST_LOSSES[step], rel=1e-3), step
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        for optimiser in optimisers:
            update(optimiser, schedule(step, settings))


def test_the_starting_model_has_the_tokenizer_and_the_shape_of_today(trained: Trained) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (STARTING_MODEL / name).read_bytes() == (trained[0] / name).read_bytes(), name
    shipped, fresh = (json.loads((folder / "config.json").read_text()) for folder in (STARTING_MODEL, trained[0]))
    assert shipped | {"transformers_version": ""} == fresh | {"transformers_version": ""}


@pytest.mark.skipif("MRT_HPC_TEST_WARM_START" not in os.environ, reason="MRT_HPC_TEST_WARM_START is not set")
def test_the_whole_warm_start_makes_the_starting_model_again(tmp_path: Path) -> None:
    warm_start(WarmStartSettings(), tmp_path, print)
    shipped, made = (load_file(directory / "model.safetensors") for directory in (STARTING_MODEL, tmp_path))
    assert {name: tensor.shape for name, tensor in shipped.items()} == {n: t.shape for n, t in made.items()}
    different = [name for name, tensor in shipped.items() if not torch.equal(tensor, made[name])]
    print(f"{len(different)} of {len(shipped)} tensors differ in a bit: another machine adds in another order")
    assert all(torch.corrcoef(torch.stack([shipped[n].flatten(), made[n].flatten()]))[0, 1] > 0.9 for n in different)


def test_the_directory_is_a_model_like_any_other_and_the_same_for_the_same_settings(trained: Trained, tmp_path: Path):
    directory, report = trained
    warm_start(SHORT, tmp_path)
    model, again = (AutoModelForCausalLM.from_pretrained(d, dtype=torch.float32) for d in (directory, tmp_path))
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert model.config.vocab_size == len(tokenizer)
    assert report.parameters == sum(p.numel() for p in model.parameters()) and report.tokens > 0
    assert GenerationConfig.from_pretrained(directory).eos_token_id == tokenizer.eos_token_id
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
