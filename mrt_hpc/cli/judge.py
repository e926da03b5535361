"""``mrt-hpc judge``: the verdict on one answer, and why: what was extracted, and how each side was read."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mrt_hpc.cli import options
from mrt_hpc.cli.terminal import echo, echo_json
from mrt_hpc.errors import UserError

if TYPE_CHECKING:
    from mrt_hpc.domains.base import Verifier
    from mrt_hpc.domains.grader_queue import GraderPool
    from mrt_hpc.recipe.schema import EvaluationRecipe, Recipe

WHY = {
    "no_answer": "the text has no answer",
    "timed_out": "judging it took longer than grading.time_limit_s",
    "malformed": "it cannot be read",
    "unjudged": "the verifier says that it cannot judge it",
}
"""Statuses in words, but for the usual one."""


@click.command(short_help="Say whether an answer is right, and why.")
@click.argument("answer")
@click.argument("gold")
@options.option_recipe
@options.overrides
@options.as_json
def judge(answer: str, gold: str, recipe: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Judge ANSWER by the gold answer GOLD, as a run does: with the verifier, the rule of extraction and the limits
    of --recipe, or with those that a recipe has by default. Quote both for the shell.

    ANSWER is a whole completion, in which the answer is looked for, or an answer alone.

    \b
    Examples:
      mrt-hpc judge '\\frac{1}{2}' 0.5
      mrt-hpc judge 'so it is \\boxed{3}' 3 --recipe mrt_online
      mrt-hpc judge '\\boxed{7}' 8 --recipe runs/quickstart
      mrt-hpc judge '6/2' 3 --set grading.strict=false
    """
    import asyncio

    from mrt_hpc.api import resolve_request
    from mrt_hpc.domains.grader_queue import GraderPool
    from mrt_hpc.domains.verifiers import MathVerifier
    from mrt_hpc.mrt.rewards import is_right

    loaded, _ = resolve_request(recipe, overrides, shape=None, data=None, run=None)
    verifier, grading = _verifier(loaded), loaded.grading
    found, how = find_answer(verifier, answer, loaded.prompt.thought_end)
    pool_of = partial(GraderPool, time_limit_s=grading.time_limit_s, memory_limit_gib=grading.memory_limit_gib)
    with pool_of(verifier) as pool:
        (verdict,) = asyncio.run(pool.grade([(found, gold)], log_failures=False))
        read = {} if found is None else {"read as": reading_text(verifier, found, pool, is_gold=False)}
        read["gold"] = reading_text(verifier, gold, pool, is_gold=True)
    right, why = is_right(verdict.reward, verdict.parts), WHY.get(verdict.status, "")
    if not right and isinstance(verifier, MathVerifier) and verifier.strict:
        with pool_of(verifier.model_copy(update={"strict": False})) as pool:
            (lenient,) = asyncio.run(pool.grade([(found, gold)], log_failures=False))
        why = "its value is right, and grading.strict asks for an evaluated number" if lenient.reward else why
    if as_json:
        reward = verdict.reward if verdict.judged else None
        facts = {"right": right, "reward": reward, "why": why, "error": verdict.error, "verifier": verifier.type}
        texts = {"answer": found, "found": how, "read_as": read.get("read as"), "gold_read_as": read["gold"]}
        echo_json({**facts, **texts})
        return
    echo(f"verifier: {verifier.type}, {verifier.model_dump(mode='json', exclude={'type'}) or 'no fields'}")
    echo(f"answer:   {found!r}, {how}" if found is not None else f"answer:   none, {how}")
    if found not in (None, answer) and (end := loaded.prompt.thought_end) and end not in answer:
        echo(f"          A run finds no answer in a completion that does not end its thought with {end}.")
    for side, words in read.items():
        echo(f"{side + ':':<9} {words}")
    said = "right" if right else f"reward {verdict.reward:.3g}" if verdict.reward else "wrong"
    echo(f"verdict:  {said if verdict.judged else 'not judged'}{why and f': {why}'}", "green" if right else "red")
    if verdict.error is not None:
        echo(f"error:    {verdict.error}")


def _verifier(recipe: "Recipe | EvaluationRecipe") -> "Verifier":
    """Of the training problems, or else of the first benchmark."""
    from mrt_hpc.domains.verifiers import verifiers_of

    if not (found := verifiers_of(recipe)):
        advice = "name another one: --recipe quickstart"
        raise UserError("this recipe judges no answers", value=recipe.name, advice=advice)
    return found[0]


def find_answer(verifier: "Verifier", text: str, thought_end: str) -> tuple[str | None, str]:
    """The answer, and how it was found; a text without a box and without a thought is an answer alone."""
    from mrt_hpc.domains.extraction import THOUGHT_END

    thinks = bool(thought_end) and thought_end in text
    found = verifier.extract(text, thinking=thinks, thought_end=thought_end or THOUGHT_END)
    if found is not None:
        return found, f"extracted by the rule {verifier.extraction}"
    if "boxed" in text or thinks:
        return None, f"by the rule {verifier.extraction}"
    return text, "as it was typed: it has no box, so it is taken for the answer alone"


def reading_text(verifier: "Verifier", text: str, pool: "GraderPool", *, is_gold: bool) -> str:
    """How the verifier reads one side, in words."""
    from mrt_hpc.domains.math.numbers import read_quantity
    from mrt_hpc.domains.verifiers import ChoiceVerifier, MathVerifier

    if isinstance(verifier, ChoiceVerifier):
        letter = verifier.letter(text)
        return f"choice {letter}" if letter else f"no choice from A on of {verifier.choices}"
    if isinstance(verifier, MathVerifier) and (number := read_quantity(text)) is not None:
        return f"the number {number.number.value}{''.join(f' {unit}' for unit in sorted(number.units))}"
    try:
        readable = pool.readable_all([text])[0]
    except UserError as error:
        if is_gold:
            raise
        return f"unreadable, as the verifier raises an error: {error.where}"
    if not readable:
        return "unreadable"
    return "an expression, which math-verify compares" if isinstance(verifier, MathVerifier) else f"the text {text!r}"
