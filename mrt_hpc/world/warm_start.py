"""Supervised training of the small world's model, to a policy that calculates well and thinks badly.

Every step sees fresh traces of training problems, padded to the longest of the batch; no example is seen twice on
purpose. The same settings give the same model on the same machine.
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
from mrt_hpc.world.task import VERDICTS, Equation, Habits, Split, example, problems
from mrt_hpc.world.tokenizer import build_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import Tensor
    from torch.optim import Optimizer
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

IGNORED = -100
"""Label of the tokens that the loss passes over."""


@dataclass(frozen=True)
class WarmStartSettings:
    """All numbers of the warm start; the defaults are those of the quickstart recipe."""

    seed: int = 0
    steps: int = 750
    batch: int = 24
    """Examples a step."""
    matrix_learning_rate: float = 1.2e-2
    """Of the matrices inside the layers, by Muon, which learns the sums from half the examples."""
    learning_rate: float = 5e-3
    """Of all the rest, by AdamW."""
    verdict_weight: float = 4.0
    """Weight in the loss of the tokens low, high and yes: the last thing to be learned, and what all thinking rests on.
    """
    warm_up: int = 20
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
    optimisers = make_optimisers(model, settings)
    weights = token_weights(tokenizer, settings)
    losses, tokens = [], 0
    model.train()
    for step, (inputs, labels) in enumerate(batches(tokenizer, settings)):
        loss = example_loss(model, inputs, labels, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        for optimiser in optimisers:
            update(optimiser, schedule(step, settings))
        losses.append(loss.item())
        tokens += int((inputs != tokenizer.pad_token_id).sum())
        if step % 100 == 99 or step + 1 == settings.steps:
            progress(f"warm start: step {step + 1} of {settings.steps}, loss {losses[-1]:.3f}")
    return losses, tokens


def make_optimisers(model: Qwen3ForCausalLM, settings: WarmStartSettings) -> list[Optimizer]:
    """Muon for the matrices inside the layers, AdamW for the rest."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    taken = set(map(id, matrices))
    rest = [p for p in model.parameters() if id(p) not in taken]
    muon = torch.optim.Muon(
        matrices, lr=settings.matrix_learning_rate, weight_decay=0.0, momentum=0.9, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(
        rest, lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay, fused=True
    )
    return [muon, adamw]


def update(optimiser: Optimizer, share: float) -> None:
    """One step at ``share`` of the optimiser's own learning rate."""
    for group in optimiser.param_groups:
        group["lr"] = share * group.setdefault("highest_lr", group["lr"])
    optimiser.step()
    optimiser.zero_grad()


def schedule(step: int, settings: WarmStartSettings) -> float:
    """The learning rate of a step as a share of the highest."""
    if step < settings.warm_up:
        return (step + 1) / settings.warm_up
    done = torch.tensor((step - settings.warm_up) / max(1, settings.steps - settings.warm_up))
    return float(0.5 + 0.5 * torch.cos(torch.pi * done))


def token_weights(tokenizer: PreTrainedTokenizerFast, settings: WarmStartSettings) -> Tensor:
    """[vocabulary] weight of each label in the loss."""
    weights = torch.ones(len(tokenizer))
    for verdict in VERDICTS:
        weights[tokenizer.encode(f" {verdict}", add_special_tokens=False)] = settings.verdict_weight
    return weights


def example_loss(model: Qwen3ForCausalLM, inputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean negative log-likelihood of the labelled tokens.

    Args:
        model: its hidden states are computed in bfloat16, which is twice as fast here.
        inputs: [B, T] token ids, padded on the right.
        labels: [B, T] the same ids, or ``IGNORED``.
        weights: [vocabulary] from :func:`token_weights`.
    """
    counted = labels[:, 1:] != IGNORED
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[:, :-1][counted])
    return cross_entropy(logits.float(), labels[:, 1:][counted], weight=weights)


def batches(tokenizer: PreTrainedTokenizerFast, settings: WarmStartSettings) -> Iterator[tuple[Tensor, Tensor]]:
    """``settings.steps`` batches of fresh examples: token ids and labels, each [B, T].

    Examples are drawn for a few steps together and sorted by length, so that little of a batch is padding.
    """
    rng = random.Random(derive_seed(settings.seed, "world", "examples"))
    equations = [Equation.parse(p.problem) for p in problems(Split.TRAIN)]
    together = 8
    for first in range(0, settings.steps, together):
        steps = min(together, settings.steps - first)
        drawn = [
            tokenise(rng.choice(equations), settings.habits, rng, tokenizer) for _ in range(steps * settings.batch)
        ]
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
