"""Choices that do not go together are refused with the field to change and the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrt_hpc.errors import UserError
from mrt_hpc.provers.majority import Majority
from mrt_hpc.recipe.field_docs import default_at
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.sections import Resilience

SMALL_WORLD = Path(__file__).parents[2] / "recipes" / "small_world"


@pytest.mark.parametrize(
    ("recipe", "changes", "field", "reason"),
    [
        (
            "grpo",
            ["resources.inference.gpus=4", "serving.tensor_parallel=3"],
            "resources.inference.gpus",
            "3, which is 1 x",
        ),
        ("grpo", ["resources.inference.gpus=4", "serving.servers=3"], "resources.inference.gpus", "3, which is 3 x 1"),
        ("grpo", ["resources.evaluation.gpus=1", "serving.tensor_parallel=2"], "resources.evaluation.gpus", "2, which"),
        (
            "grpo",
            ["resources.inference={nodes: 2, gpus: 4}", "serving.servers=2"],
            "serving.servers",
            "one server spans the nodes",
        ),
        (
            "grpo",
            ["resources.inference={nodes: 2, gpus: 4}", "serving.tensor_parallel=3"],
            "serving.tensor_parallel",
            "a divisor of 8",
        ),
        (
            "mrt_online",
            ["resources.inference={nodes: 2, gpus: 4}", "prover.model=elsewhere"],
            "resources.inference.nodes",
            "cannot share GPUs across nodes",
        ),
        ("grpo", ["prover={type: forced_answer}"], "prover", "makes no use of a prover"),
        ("star", ["prover={type: forced_answer}"], "prover", "makes no use of a prover"),
        ("mrt_online", ["prover=null"], "prover", "needs a prover: add `prover: {type: forced_answer}`"),
        ("backtracking", ["prover=null"], "prover", "add `prover: {type: continuation}`"),
        ("backtracking", ["prover={type: forced_answer}"], "prover.type", "a rollout that gave the step its value"),
        ("mrt", ["prover.type=boxed_answer"], "prover.type", "rollouts that are forced to answer"),
        ("mrt", ["prover.forced_text=Answer now"], "prover.forced_text", "has to stop thinking first"),
        ("mrt", ["algorithm.baseline=termination", "algorithm.divide_by_std=true"], "algorithm.divide_by_std", "false"),
        (
            "mrt",
            ["schedule.length_curriculum=[{first_iteration: 0, max_tokens: 9}]"],
            "schedule.length_curriculum",
            "stale traces",
        ),
        ("mrt", ["prover.model=elsewhere"], "prover.model", "rollouts of the policy itself"),
        ("mrt", ["sampling.rollouts_per_problem=5"], "sampling.rollouts_per_problem", "even and at least 4"),
        ("mrt", ["algorithm.baseline=termination", "algorithm.alpha=2.0"], "algorithm.baseline", "uses neither"),
        (
            "mrt_next_episode",
            ["prover.forced_text=Time is up.</think>"],
            "prover.forced_text",
            "learnt at the closing tag",
        ),
        ("mrt_next_episode", ["prover.temperature=0.5"], "prover.temperature", "one temperature"),
        ("mrt_online_train_branches", ["prover={type: gold_likelihood}"], "prover.type", "has a reward of its own"),
        ("mrt_online_train_branches", ["prover.type=majority"], "prover.type", "has a reward of its own"),
        ("mrt_online_train_branches", ["prover.model=elsewhere"], "prover.model", "of another model"),
        ("mrt_online_train_branches", ["prover.branches=1"], "prover.branches", "compared with the others"),
        ("mrt_online_train_branches", ["prover.temperature=0.5"], "prover.temperature", "one temperature"),
        (
            "mrt_online_train_branches",
            ["prover={type: look_ahead, planner: by_openness, temperature: 1.0}"],
            "prover.planner",
            "no fair comparison",
        ),
        ("mrt_star", ["prover={type: gold_likelihood}"], "prover.type", "ends with a right answer sampled there"),
        ("star", ["algorithm.keep=9"], "algorithm.keep", "from which they are chosen"),
        ("backtracking", ["algorithm.backtrack_text=Back to {place}"], "algorithm.backtrack_text", "no braces except"),
        ("backtracking", ["sampling.rollouts_per_problem=4"], "sampling.rollouts_per_problem", "one first attempt"),
        ("sft_suffix", ["data.form=conversations"], "data.type", "one of suffixes"),
        ("sft_conversations", ["data={type: small_world}"], "data.type", "these are problems"),
        ("grpo", ["data={type: conversations, path: c.jsonl}"], "data.type", "one of problems"),
        ("grpo", ["sampling.problems_per_iteration=null"], "sampling.problems_per_iteration", "required by"),
        ("star", ["sampling.problems_per_iteration=4"], "sampling.problems_per_iteration", "samples none while"),
        ("star", ["schedule.max_staleness=1", "training.keep_weights=4"], "schedule.max_staleness", "samples none"),
        ("grpo", ["schedule.weight_swap=keep"], "schedule.weight_swap", "drain with max_staleness: 0"),
        ("star", ["training.kl_coefficient=0.1"], "training.kl_coefficient", "samples none"),
        (
            "length_curriculum",
            ["schedule.length_curriculum=[{first_iteration: 5, max_tokens: 9}, {first_iteration: 2, max_tokens: 20}]"],
            "schedule.length_curriculum",
            "at iteration 0",
        ),
        (
            "length_curriculum",
            ["schedule.length_curriculum=[{first_iteration: 0, max_tokens: 9}, {first_iteration: 2, max_tokens: 8}]"],
            "schedule.length_curriculum",
            "ascending",
        ),
        ("length_curriculum", ["sampling.max_tokens=200"], "schedule.length_curriculum", "up to sampling.max_tokens"),
        (
            "grpo",
            ["evaluation.prover={type: boxed_answer, model: elsewhere}"],
            "evaluation.prover.model",
            "as its own prover",
        ),
        (
            "grpo",
            ["evaluation.prover={type: gold_likelihood}", "evaluation.regret_tokens=all"],
            "evaluation.regret_tokens",
            "samples no answers",
        ),
        ("grpo", ["evaluation.prover={type: majority}"], "evaluation.prover.type", "how often stopping at once"),
        ("grpo", ["evaluation.prover={type: boxed_answer}"], "evaluation.regret_budgets", "evaluation.max_tokens"),
        ("length_curriculum", ["schedule.iterations=10"], "schedule.length_curriculum", "within schedule.iterations"),
        (
            "grpo",
            ["training.sequence_parallel=2", "training.batching=packed", "resources.trainer.ranks=3"],
            "resources.trainer.ranks",
            "a multiple of training.sequence_parallel (2)",
        ),
        (
            "grpo",
            ["training.sequence_parallel=2", "training.batching=padded", "resources.trainer.ranks=4"],
            "training.batching",
            "packed or shared",
        ),
    ],
)
def test_what_does_not_go_together(recipe: str, changes: list[str], field: str, reason: str) -> None:
    with pytest.raises(UserError) as refusal:
        load_recipe(SMALL_WORLD / f"{recipe}.yaml", tuple(changes))
    assert reason in str(refusal.value)
    assert field in str(refusal.value)


@pytest.mark.parametrize(("iteration", "limit"), [(0, 96), (6, 96), (7, 160), (13, 160), (14, 256), (19, 256)])
def test_a_length_curriculum_holds_from_its_stage_on(iteration: int, limit: int) -> None:
    recipe = load_recipe(SMALL_WORLD / "length_curriculum.yaml")
    assert recipe.schedule.max_tokens(iteration, recipe.sampling.max_tokens) == limit


def test_without_a_curriculum_the_limit_holds_throughout() -> None:
    recipe = load_recipe(SMALL_WORLD / "grpo.yaml")
    assert recipe.schedule.max_tokens(3, recipe.sampling.max_tokens) == recipe.sampling.max_tokens


def refusal(recipe: str, *changes: str) -> UserError:
    with pytest.raises(UserError) as refused:
        load_recipe(SMALL_WORLD / f"{recipe}.yaml", changes)
    return refused.value


@pytest.mark.parametrize(
    ("changes", "value", "fits"),
    [
        (["schedule.max_staleness=2"], "3 (the default)", "training.keep_weights=4"),
        (["schedule.weight_swap=keep"], "'keep'", "schedule.weight_swap=drain"),
        (["training.offload_optimizer=true", "training.zero_stage=0"], "True", "training.offload_optimizer=false"),
    ],
)
def test_a_misfit_shows_the_value_and_an_option_that_removes_it(changes: list[str], value: str, fits: str) -> None:
    refused = refusal("grpo", *changes)
    assert repr(refused.value) == value
    assert refused.advice is not None
    assert refused.advice.startswith(f"--set {fits}, or ")
    load_recipe(SMALL_WORLD / "grpo.yaml", (*changes, fits))


def test_a_default_is_that_of_the_kind_of_section_that_is_given() -> None:
    branches = Majority.model_fields["branches"].default
    assert default_at(Recipe, {"prover": {"type": "majority"}}, ("prover", "branches")) == branches
    assert default_at(Recipe, {"prover": "majority"}, ("prover", "branches")) == branches
    assert default_at(Recipe, {}, ("resilience", "retries")) == Resilience().retries
    assert default_at(Recipe, {"resilience": {"retries": 9}}, ("resilience", "retries")) is None, "it is given"
    assert default_at(Recipe, {}, ("name",)) is None, "it is required"
