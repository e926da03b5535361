"""The tokens of the longest sequences that a recipe asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrt_hpc.recipe.benchmark_sampling import longest_trace
from mrt_hpc.recipe.evaluation_recipe import EvaluationRecipe

if TYPE_CHECKING:
    from mrt_hpc.recipe.evaluation_recipe import Experiment
    from mrt_hpc.recipe.schema import Recipe


def longest_sequence(recipe: Experiment) -> int:
    """Return the minimum number of tokens of the longest sequence that a server must hold: prompt, trace and forced
    answer, without the tokens of the texts that are inserted.
    """
    lengths = [0 if isinstance(recipe, EvaluationRecipe) else longest_in_training(recipe)]
    if recipe.evaluation.benchmarks:
        lengths.append(longest_in_evaluation(recipe))
    return max(lengths)


def longest_in_evaluation(recipe: Experiment) -> int:
    """The same of the sequences that evaluations sample."""
    evaluation = recipe.evaluation
    answer = 0 if evaluation.prover is None else evaluation.prover.max_tokens
    prompt = evaluation.max_prompt_tokens or recipe.sampling.max_prompt_tokens
    return prompt + longest_trace(recipe) + answer


def longest_in_training(recipe: Recipe) -> int:
    """The same of the sequences that training samples, without those of the evaluation."""
    if not (recipe.algorithm.samples_rollouts or recipe.algorithm.collects):
        return recipe.sampling.max_prompt_tokens
    answer = 0 if recipe.prover is None else recipe.prover.max_tokens
    return recipe.sampling.max_prompt_tokens + recipe.sampling.max_tokens + answer
