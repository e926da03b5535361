"""Expected tokens of traces and branches, from what a recipe states or limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrt_hpc.run.layout import is_collection

if TYPE_CHECKING:
    from mrt_hpc.recipe.kinds import ProverSettings
    from mrt_hpc.recipe.schema import Experiment, Recipe

PROMPT_TOKENS = 200
"""The number of tokens of a problem with its instruction."""
ANSWER_TOKENS = 64
"""The number of tokens of a branch that is forced to answer, unless its limit is lower."""


def trace_tokens(recipe: Recipe, iteration: int) -> float:
    """Mean tokens of a trace: as stated, else half of the limit."""
    limit = recipe.sampling.max_tokens
    limit = limit if is_collection(iteration) else recipe.schedule.max_tokens(iteration, limit)
    return min(limit, recipe.expected.trace_tokens or limit / 2)


def sequence_tokens(recipe: Recipe, iteration: int) -> float:
    """Mean tokens of a trace with its prompt."""
    return PROMPT_TOKENS + trace_tokens(recipe, iteration)


def boundaries_per_trace(recipe: Recipe) -> int:
    """k + 1 of a trace that has as many episodes as the recipe allows."""
    return recipe.episodes.max_episodes + 1


def tokens_per_value(prover: ProverSettings | None, recipe: Experiment) -> float:
    """Tokens that one boundary's value takes: those of its branches; 0 without a prover."""
    return 0.0 if prover is None else prover.branches_per_boundary * branch_tokens(prover, recipe)


def branch_tokens(prover: ProverSettings, recipe: Experiment) -> float:
    """Mean tokens of a branch: as stated, else half of the limit where it continues to think, few where it answers."""
    usual = prover.max_tokens / 2 if prover.thinks_on else ANSWER_TOKENS
    return min(prover.max_tokens, recipe.expected.branch_tokens or usual)


def lengths_taken(recipe: Experiment) -> list[str]:
    """The lengths that the estimate takes for traces and for branches, and where each is from."""
    trace, branch = recipe.expected.trace_tokens, recipe.expected.branch_tokens
    sentences = ["a trace has " + ("half of its limit" if trace is None else f"{trace:,} tokens, or its limit if less")]
    sentences[0] += f" ({_source('trace_tokens', trace)})"
    provers = [recipe.prover, recipe.evaluation.prover]
    lengths = [branch_tokens(prover, recipe) for prover in provers if prover and prover.branches_per_boundary]
    if lengths:
        tokens = " or ".join(dict.fromkeys(f"{length:,.0f}" for length in lengths))
        sentences.append(f"a branch has {tokens} tokens ({_source('branch_tokens', branch)})")
    return sentences


def _source(field: str, value: int | None) -> str:
    name = f"expected.{field} of the recipe"
    return f"assumed, as {name} states nothing" if value is None else f"stated in {name}"
