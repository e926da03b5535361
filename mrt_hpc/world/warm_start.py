"""Supervised training of the small world's model, to a policy that calculates well and thinks badly.

Every step sees fresh traces of training problems, padded to the longest of the batch; no example is seen twice on purpose. The same settings give
the same model on the same machine.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

from mrt_hpc.run.seeds import derive_seed
from mrt_hpc.world.model import ModelSize, fresh_model
from mrt_hpc.world.task import Equation, Habits, Split, example, problems
from mrt_hpc.world.tokenizer import build_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import Tensor
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

IGNORED = -100
"""Label of the tokens that the loss passes over."""


@dataclass(frozen=True)
class WarmStartSettings:
    """All numbers of the warm start; the defaults are those of the quickstart recipe."""

    seed: int = 0
    steps: int = 1000
    batch: int = 20
    """Examples a step."""
    learning_rate: float = 3e-3
    warm_up: int = 80
    """Steps over which the learning rate rises; it then falls to zero along a cosine."""
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float = 1.0
    """Largest gradient norm."""
    size: ModelSize = field(default_factory=ModelSize)
    habits: Habits = field(default_factory=Habits)


@dataclass(frozen=True)
class WarmStartReport:
    """What the training came to."""

    parameters: int
    tokens: int
    """Seen, padding left out."""
    seconds: float
    loss: float
    """Mean over the last tenth of the steps, in nats a token."""


def warm_start(
    settings: WarmStartSettings, directory: Path, progress: Callable[[str], None] = lambda _: None
) -> WarmStartReport:
    """Train a fresh model and write it, with its tokenizer, as a Hugging Face directory.

    Args:
        settings: all numbers.
        directory: made if absent; gets weights (float32), configuration, tokenizer and generation configuration.
        progress: told a line now and then.
    """
    started = time.monotonic()
    tokenizer = build_tokenizer()
    model = fresh_model(settings.size, tokenizer, derive_seed(settings.seed, "world", "weights"))
    losses, tokens = train(model, tokenizer, settings, progress)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    tail = losses[-max(1, len(losses) // 10) :]
    parameters = sum(p.numel() for p in model.parameters())
    return WarmStartReport(parameters, tokens, time.monotonic() - started, sum(tail) / len(tail))


def train(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    settings: WarmStartSettings,
    progress: Callable[[str], None],
) -> tuple[list[float], int]:
    """Run all steps; the loss of each, and the number of tokens seen."""
    optimiser = torch.optim.AdamW(
        model.parameters(),
        lr=settings.learning_rate,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
        fused=True,
    )
    losses, tokens = [], 0
    model.train()
    for step, (inputs, labels) in enumerate(batches(tokenizer, settings)):
        for group in optimiser.param_groups:
            group["lr"] = settings.learning_rate * schedule(step, settings)
        loss = example_loss(model, inputs, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
        tokens += int((inputs != tokenizer.pad_token_id).sum())
        if step % 100 == 99 or step + 1 == settings.steps:
            progress(f"warm start: step {step + 1} of {settings.steps}, loss {losses[-1]:.3f}")
    return losses, tokens


def schedule(step: int, settings: WarmStartSettings) -> float:
    """The learning rate of a step as a share of the highest."""
    if step < settings.warm_up:
        return (step + 1) / settings.warm_up
    done = torch.tensor((step - settings.warm_up) / max(1, settings.steps - settings.warm_up))
    return float(0.5 + 0.5 * torch.cos(torch.pi * done))


def example_loss(model: Qwen3ForCausalLM, inputs: Tensor, labels: Tensor) -> Tensor:
    """Mean negative log-likelihood of the labelled tokens; ``inputs`` and ``labels`` are [B, T], padded on the right."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state
        counted = labels[:, 1:] != IGNORED
        logits = model.lm_head(hidden[:, :-1][counted])
    return cross_entropy(logits.float(), labels[:, 1:][counted])


def batches(tokenizer: PreTrainedTokenizerFast, settings: WarmStartSettings) -> Iterator[tuple[Tensor, Tensor]]:
    """``settings.steps`` batches of fresh examples: token ids and labels, each [B, T].

    Examples are drawn for a few steps together and sorted by length, so that little of a batch is padding.
    """
    rng = random.Random(derive_seed(settings.seed, "world", "examples"))
    equations = [Equation.parse(p.problem) for p in problems(Split.TRAIN)]
    together = 8
    for first in range(0, settings.steps, together):
        steps = min(together, settings.steps - first)
        drawn = [tokenise(rng.choice(equations), settings.habits, rng, tokenizer) for _ in range(steps * settings.batch)]
        drawn.sort(key=lambda e: len(e[0]))
        chunks = [drawn[i * settings.batch : (i + 1) * settings.batch] for i in range(steps)]
        rng.shuffle(chunks)
        for chunk in chunks:
            yield pad([ids for ids, _ in chunk], int(tokenizer.pad_token_id)), pad([ls for _, ls in chunk], IGNORED)


def tokenise(
    equation: Equation, habits: Habits, rng: random.Random, tokenizer: PreTrainedTokenizerFast
) -> tuple[list[int], list[int]]:
    """Token ids and labels of one example, the prompt and the forced text unlabelled."""
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": equation.statement}], add_generation_prompt=True, tokenize=False
    )
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    labels = [IGNORED] * len(ids)
    for span in example(equation, habits, rng):
        piece = tokenizer.encode(span.text, add_special_tokens=False)
        ids += piece
        labels += piece if span.trained else [IGNORED] * len(piece)
    return [*ids, int(tokenizer.eos_token_id)], [*labels, int(tokenizer.eos_token_id)]


def pad(rows: list[list[int]], value: int) -> Tensor:
    """[B, T] of ``rows``, filled up on the right."""
    longest = max(map(len, rows))
    return torch.tensor([row + [value] * (longest - len(row)) for row in rows])
