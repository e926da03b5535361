"""Which choices of a recipe go together: every refusal names the field to change first, and the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrt_hpc.recipe.algorithms import Backtracking, Mrt, MrtOnline, MrtStar, Refreshed, Star
from mrt_hpc.recipe.base import misfit
from mrt_hpc.recipe.provers import BoxedAnswer, Continuation, ForcedAnswer, GoldLikelihood, LookAhead, Majority

if TYPE_CHECKING:
    from mrt_hpc.recipe.provers import AnyProver
    from mrt_hpc.recipe.schema import Recipe

NEEDING_A_PROVER = (Mrt, MrtOnline, MrtStar, Backtracking)
"""Algorithms that ask for values of prefixes."""


def prover_fits(recipe: Recipe) -> None:
    """Refuse a prover that the algorithm cannot use, or the want of one."""
    algorithm, prover = recipe.algorithm, recipe.prover
    if not isinstance(algorithm, NEEDING_A_PROVER):
        if prover is not None:
            raise misfit(
                "prover",
                f"algorithm {algorithm.type} makes no use of a prover, whose branches would cost tokens: "
                "remove `prover`",
            )
        return
    if prover is None:
        wanted = "continuation" if isinstance(algorithm, Backtracking) else "forced_answer"
        raise misfit("prover", f"algorithm {algorithm.type} needs a prover: add `prover: {{type: {wanted}}}`")
    if isinstance(algorithm, Backtracking) and not isinstance(prover, Continuation):
        raise misfit(
            "prover.type",
            f"continuation, not {prover.type}: a revision goes on from a step with one of the rollouts that gave the "
            "step its value",
        )
    if isinstance(algorithm, Mrt) and not isinstance(prover, ForcedAnswer):
        raise misfit(
            "prover.type",
            f"forced_answer, not {prover.type}: with algorithm mrt the prefix's value comes from the rollouts that are "
            "forced to answer",
        )
    if isinstance(algorithm, MrtStar) and isinstance(prover, GoldLikelihood | Continuation):
        raise misfit(
            "prover.type",
            f"one that samples answers, not {prover.type}: a trace that is cut ends with a right answer sampled there",
        )


def prompt_fits(recipe: Recipe) -> None:
    """Refuse a thought that is opened and never closed, and what needs a closing tag where there is none."""
    if _thought_end(recipe):
        return
    if recipe.prompt.thought_start:
        raise misfit(
            "prompt.thought_start",
            'an empty text ("") where prompt.thought_end is empty: a model that writes no closing tag gets no opening '
            "one",
        )
    if isinstance(recipe.algorithm, Mrt) and recipe.algorithm.train_terminated:
        raise misfit(
            "algorithm.train_terminated",
            "false where prompt.thought_end is empty: the choice to stop is learnt at the closing tag, and this model "
            "writes none",
        )


def data_fit(recipe: Recipe) -> None:
    """Refuse problems where samples are learnt, samples where problems are sampled from, and one form for the other."""
    wanted = {"sft_conversations": "conversations", "sft_suffix": "suffixes"}.get(recipe.algorithm.type, "problems")
    if (given := recipe.data.form) != wanted:
        raise misfit("data.type", f"one of {wanted}, as algorithm {recipe.algorithm.type} wants; these are {given}")


def evaluation_fits(recipe: Recipe) -> None:
    """Refuse what an evaluation cannot do."""
    evaluation, prover = recipe.evaluation, recipe.evaluation.prover
    if prover is None:
        return
    if prover.model is not None:
        raise misfit("evaluation.prover.model", "null: regret is measured with the evaluated policy as its own prover")
    if isinstance(prover, Continuation | Majority):
        raise misfit(
            "evaluation.prover.type",
            f"one that estimates how often stopping at once answers right, not {prover.type}: regret is made of that",
        )
    if evaluation.regret_tokens == "all" and isinstance(prover, GoldLikelihood):
        raise misfit(
            "evaluation.regret_tokens", "sampled with prover gold_likelihood, which samples no answers to be counted"
        )
    if max(evaluation.regret_budgets, default=0) > evaluation.max_tokens:
        raise misfit(
            "evaluation.regret_budgets", "no more than evaluation.max_tokens: nothing is known of longer traces"
        )


def grading_fits(recipe: Recipe) -> None:
    """Refuse verdicts under which no answer of the model could be right."""
    if getattr(recipe.model, "answer_forms", 1) > 1 and recipe.grading.strict:
        raise misfit(
            "grading.strict", "false where model.answer_forms is above 1: its answers, as 8-1, are left to be evaluated"
        )


def algorithm_fits(recipe: Recipe) -> None:
    """Refuse what contradicts the algorithm's own fields."""
    algorithm = recipe.algorithm
    if isinstance(algorithm, Mrt):
        _mrt_fits(recipe, algorithm)
    if isinstance(algorithm, MrtOnline) and algorithm.train_branches:
        _branches_fit(recipe)
    if isinstance(algorithm, Backtracking):
        _backtracking_fits(recipe, algorithm)
    if isinstance(algorithm, Star | MrtStar) and (algorithm.keep or 0) > recipe.sampling.rollouts_per_problem:
        raise misfit("algorithm.keep", "no more than sampling.rollouts_per_problem, of which they are chosen")


def refresh_fits(recipe: Recipe) -> None:
    """Refuse to sample the traces again in the middle of a job."""
    every = recipe.algorithm.refresh_every if isinstance(recipe.algorithm, Refreshed) else None
    if every is not None and every % (per_job := recipe.schedule.iterations_per_job):
        raise misfit(
            "algorithm.refresh_every",
            f"a multiple of schedule.iterations_per_job ({per_job}): the traces are sampled again between two jobs of "
            "the trainer",
        )


def _mrt_fits(recipe: Recipe, algorithm: Mrt) -> None:
    rollouts, prover = recipe.sampling.rollouts_per_problem, recipe.prover
    if rollouts % 2 or rollouts < 4:
        raise misfit(
            "sampling.rollouts_per_problem",
            "even and at least 4: half of the rollouts go on from the prefix, half are forced to answer, and each half "
            "is compared within itself",
        )
    if prover is not None and prover.model is not None:
        raise misfit("prover.model", "null with algorithm mrt: the forced half are rollouts of the policy itself")
    if prover is not None and _thought_end(recipe) not in prover.forced_text:
        raise misfit(
            "prover.forced_text",
            f"a text with {_thought_end(recipe)!r} in it, as algorithm mrt needs: who is forced to answer has to stop "
            "thinking first",
        )
    if recipe.schedule.length_curriculum:
        raise misfit(
            "schedule.length_curriculum",
            "empty with algorithm mrt: the prefixes of stale traces have the length that sampling.max_tokens allows",
        )
    if algorithm.baseline == "termination" and algorithm.divide_by_std:
        raise misfit("algorithm.divide_by_std", "false with baseline: termination, which divides by nothing")
    if algorithm.baseline == "termination" and (algorithm.alpha != 1.0 or algorithm.bonus != "end_of_trace"):
        raise misfit(
            "algorithm.baseline", "group, where alpha or bonus are set: baseline termination knows neither of them"
        )
    if algorithm.train_terminated and prover is not None and not prover.forced_text.startswith(_thought_end(recipe)):
        raise misfit(
            "prover.forced_text",
            f"a text that begins with {_thought_end(recipe)!r}, as train_terminated needs: the choice to stop at a "
            "prefix is learnt at the closing tag that follows it",
        )
    if algorithm.train_terminated and prover is not None:
        _one_temperature(recipe, prover, "train_terminated")


def _branches_fit(recipe: Recipe) -> None:
    prover = recipe.prover
    if not isinstance(prover, ForcedAnswer | BoxedAnswer | LookAhead):
        raise misfit(
            "prover.type",
            "forced_answer, boxed_answer or look_ahead with train_branches: an answer that is learnt has a reward of "
            "its own",
        )
    if prover.model is not None:
        raise misfit("prover.model", "null with train_branches: the answers of another model are not the policy's")
    if prover.branches < 2:
        raise misfit("prover.branches", "at least 2 with train_branches: each is compared with the others")
    if isinstance(prover, LookAhead) and prover.planner != "uniform":
        raise misfit(
            "prover.planner",
            "uniform with train_branches: where what was drawn first decides whether more is drawn, the others are no "
            "fair comparison",
        )
    _one_temperature(recipe, prover, "train_branches")


def _one_temperature(recipe: Recipe, prover: AnyProver, option: str) -> None:
    if prover.temperature != recipe.sampling.temperature:
        raise misfit(
            "prover.temperature",
            f"{recipe.sampling.temperature:g}, as sampling.temperature is: with {option} the forced answers are "
            "trained on as well, and the trainer knows one temperature",
        )


def _thought_end(recipe: Recipe) -> str:
    return recipe.prompt.thought_end


def _backtracking_fits(recipe: Recipe, algorithm: Backtracking) -> None:
    try:
        algorithm.backtrack_text.format(step=1)
    except (KeyError, IndexError, ValueError) as error:
        raise misfit(
            "algorithm.backtrack_text", f"no braces but {{step}} in it; it cannot be filled in: {error!r}"
        ) from error
    if recipe.sampling.rollouts_per_problem != 1:
        raise misfit("sampling.rollouts_per_problem", "1 with algorithm backtracking: one first attempt a problem")


def training_fits(recipe: Recipe) -> None:
    """Refuse what the trainer cannot do."""
    if recipe.training.offload_optimizer and recipe.training.zero_stage == 0:
        raise misfit("training.offload_optimizer", "false with zero_stage: 0; a stage of 1 or higher can offload")


def sampling_fits(recipe: Recipe) -> None:
    """Refuse numbers that the algorithm has no use for, or not enough of."""
    sampling, algorithm, schedule = recipe.sampling, recipe.algorithm, recipe.schedule
    if not algorithm.samples_rollouts:
        _nothing_is_sampled(recipe)
        return
    if sampling.problems_per_iteration is None:
        raise misfit("sampling.problems_per_iteration", f"required by algorithm {algorithm.type}")
    if sampling.rollouts_per_problem < 2:
        raise misfit(
            "sampling.rollouts_per_problem", "at least 2: the outcome advantage compares the rollouts of a group"
        )
    if sampling.problems_per_iteration < recipe.resources.inference.tasks:
        raise misfit(
            "resources.inference.tasks",
            "no more than sampling.problems_per_iteration: some tasks would have nothing to do",
        )
    starts = [stage.first_iteration for stage in schedule.length_curriculum]
    limits = [stage.max_tokens for stage in schedule.length_curriculum]
    if starts and starts[0] != 0:
        raise misfit(
            "schedule.length_curriculum", "a first stage at iteration 0: before it the longest limit would hold"
        )
    if sorted(set(starts)) != starts or sorted(limits) != limits:
        raise misfit("schedule.length_curriculum", "stages in ascending order of first_iteration and of max_tokens")
    if limits and limits[-1] > sampling.max_tokens:
        raise misfit("schedule.length_curriculum", "limits up to sampling.max_tokens, which the servers are made for")
    if starts and starts[-1] >= schedule.iterations:
        raise misfit("schedule.length_curriculum", "stages that begin within schedule.iterations")


def _nothing_is_sampled(recipe: Recipe) -> None:
    name, schedule, training = recipe.algorithm.type, recipe.schedule, recipe.training
    useless = {
        "sampling.problems_per_iteration": recipe.sampling.problems_per_iteration is not None,
        "schedule.length_curriculum": bool(schedule.length_curriculum),
        "schedule.max_staleness": schedule.max_staleness > 0,
        "training.kl_coefficient": training.kl_coefficient > 0,
    }
    for field, is_set in useless.items():
        if is_set:
            raise misfit(field, f"not set: algorithm {name} learns given sequences, and samples none while it trains")
