"""The check whether a tokenizer restores all texts that a run writes with it and looks for in traces.

Episodes are cut at the bytes of tokens, so a tokenizer that loses spaces or blank lines leaves every trace in one piece
without an error. It is refused before anything is sampled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrt_hpc.errors import UserError
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.tokens import PROBES, TokenBytes
from mrt_hpc.recipe.benchmark_sampling import benchmark_sampling
from mrt_hpc.recipe.prompts import BOX

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.recipe.evaluation_recipe import Experiment


def check_tokenizer(recipe: Experiment, model: Path, field: str) -> None:
    """Refuse the tokenizer of a model where it loses text.

    Args:
        recipe: the run's.
        model: directory of the policy, or of another model that serves as prover.
        field: of the recipe that names it.

    Raises:
        UserError: the tokenizer cannot be loaded, or loses something; it names the text and what became of it. Or its
            chat template makes no usable prompt.
    """
    prompter = Prompter.of(model, recipe.prompt)
    if prompter.template is not None:
        prompter.template.check(variables=False)  # those of the policy's template
    refuse_lossy(prompter, written_texts(recipe), field)


def written_texts(recipe: Experiment) -> list[str]:
    """The texts that a run writes into sequences or looks for in them, each as it stands in a trace."""
    rules = [recipe.episodes, *([recipe.evaluation.episodes] if recipe.evaluation.episodes else [])]
    markers = {marker for rule in rules for marker in rule.markers}
    prompts = [recipe.prompt, *(benchmark_sampling(recipe, b).prompt for b in recipe.evaluation.benchmarks)]
    tags = {tag: None for prompt in prompts for tag in (prompt.thought_start, prompt.thought_end) if tag}
    provers = [p for p in (getattr(recipe, "prover", None), recipe.evaluation.prover) if p is not None]
    return [
        *PROBES,
        *(f"x = 3.\n\n{marker}, let me check.\n\n" for marker in sorted(markers)),
        *(f"x = 3.\n{tag}\n\nThe answer is {BOX}3}}." for tag in tags),
        *(prover.question for prover in provers if prover is not None and prover.question),
    ]


def refuse_lossy(prompter: Prompter, texts: list[str], field: str) -> None:
    """Refuse a tokenizer that does not restore a text, by its decoder or by the bytes of its tokens.

    Raises:
        UserError: naming the first text that is lost, and what became of it.
    """
    tokens = TokenBytes(prompter.tokenizer)
    for text in texts:
        ids = prompter.ids(text)
        if (joined := b"".join(tokens.pieces(ids))) != text.encode():
            raise _lossy(prompter, text, joined.decode(errors="replace"), "the bytes of its tokens make", field)
        # Some decoders take the first space for the tokenizer's own.
        decoded = str(prompter.tokenizer.decode(ids, clean_up_tokenization_spaces=False))
        if decoded.removeprefix(" ") != text.removeprefix(" "):
            raise _lossy(prompter, text, decoded, "its decoder makes", field)


def _lossy(prompter: Prompter, text: str, found: str, by: str, field: str) -> UserError:
    return UserError(
        f"the tokenizer does not bring back a text whole: {by} of it {found!r}",
        value=text,
        where=f"{field}, {prompter.tokenizer.name_or_path}",
        expected="the same text after encoding and decoding, since episodes are cut where its words stand",
        advice="compare tokenizer.json with the model's own, or change the text in the recipe",
    )
