"""Choices that do not go together are refused with the field to change, its value, and an option that removes it."""

from __future__ import annotations

import pytest
from commands import recipe, refusal

TWO_NODES = "resources.inference={nodes: 2, gpus: 4}"
CURRICULUM = "schedule.length_curriculum=[{first_iteration: %d, max_tokens: 9}, {first_iteration: 2, max_tokens: %d}]"
PLANNED = "prover={type: look_ahead, planner: by_openness, temperature: 1.0}"
LIKELIHOOD = "evaluation.prover={type: gold_likelihood}"
SHARED = ("training.sequence_parallel=2", "resources.trainer.ranks=4", "training.batching=packed")


@pytest.mark.parametrize(
    ("name", "field", "changes"),
    [
        ("grpo", "resources.inference.gpus", ("resources.inference.gpus=4", "serving.tensor_parallel=3")),
        ("grpo", "resources.evaluation.gpus", ("resources.evaluation.gpus=1", "serving.tensor_parallel=2")),
        ("grpo", "serving.servers", (TWO_NODES, "serving.servers=2")),
        ("grpo", "serving.tensor_parallel", (TWO_NODES, "serving.tensor_parallel=3")),
        ("mrt_online", "resources.inference.nodes", (TWO_NODES, "prover.model=elsewhere")),
        ("grpo", "prover", ("prover={type: forced_answer}",)),
        ("mrt_online", "prover", ("prover=null",)),
        ("backtracking", "prover.type", ("prover={type: forced_answer}",)),
        ("mrt", "prover.type", ("prover.type=boxed_answer",)),
        ("mrt", "prover.forced_text", ("prover.forced_text=Answer now",)),
        ("mrt", "prover.model", ("prover.model=elsewhere",)),
        ("mrt", "algorithm.divide_by_std", ("algorithm.baseline=termination", "algorithm.divide_by_std=true")),
        ("mrt", "algorithm.baseline", ("algorithm.baseline=termination", "algorithm.alpha=2.0")),
        ("mrt", "schedule.length_curriculum", ("schedule.length_curriculum=[{first_iteration: 0, max_tokens: 9}]",)),
        ("mrt", "sampling.rollouts_per_problem", ("sampling.rollouts_per_problem=5",)),
        ("mrt_next_episode", "prover.forced_text", ("prover.forced_text=Time is up.</think>",)),
        ("mrt_next_episode", "prover.temperature", ("prover.temperature=0.5",)),
        ("mrt_online_train_branches", "prover.type", ("prover={type: gold_likelihood}",)),
        ("mrt_online_train_branches", "prover.type", ("prover.type=majority",)),
        ("mrt_online_train_branches", "prover.model", ("prover.model=elsewhere",)),
        ("mrt_online_train_branches", "prover.branches", ("prover.branches=1",)),
        ("mrt_online_train_branches", "prover.temperature", ("prover.temperature=0.5",)),
        ("mrt_online_train_branches", "prover.planner", (PLANNED,)),
        ("mrt_star", "prover.type", ("prover={type: gold_likelihood}",)),
        ("star", "algorithm.keep", ("algorithm.keep=9",)),
        ("backtracking", "algorithm.backtrack_text", ("algorithm.backtrack_text=Back to {place}",)),
        ("backtracking", "sampling.rollouts_per_problem", ("sampling.rollouts_per_problem=4",)),
        ("sft_suffix", "data.type", ("data.form=conversations",)),
        ("sft_conversations", "data.type", ("data={type: small_world}",)),
        ("grpo", "data.type", ("data={type: conversations, path: c.jsonl}",)),
        ("grpo", "sampling.problems_per_iteration", ("sampling.problems_per_iteration=null",)),
        ("star", "sampling.problems_per_iteration", ("sampling.problems_per_iteration=4",)),
        ("star", "schedule.max_staleness", ("schedule.max_staleness=1", "training.keep_weights=4")),
        ("star", "training.kl_coefficient", ("training.kl_coefficient=0.1",)),
        ("grpo", "schedule.weight_swap", ("schedule.weight_swap=keep",)),
        ("length_curriculum", "schedule.length_curriculum", (CURRICULUM % (1, 20),)),
        ("length_curriculum", "schedule.length_curriculum", (CURRICULUM % (0, 8),)),
        ("length_curriculum", "schedule.length_curriculum", ("sampling.max_tokens=200",)),
        ("length_curriculum", "schedule.length_curriculum", ("schedule.iterations=10",)),
        ("grpo", "evaluation.prover.model", ("evaluation.prover={type: boxed_answer, model: elsewhere}",)),
        ("grpo", "evaluation.regret_tokens", (LIKELIHOOD, "evaluation.regret_tokens=all")),
        ("grpo", "evaluation.prover.type", ("evaluation.prover={type: majority}",)),
        (
            "grpo",
            "evaluation.regret_budgets",
            ("evaluation.prover={type: boxed_answer}", "evaluation.regret_budgets=[99999]"),
        ),
        ("grpo", "resources.trainer.ranks", (*SHARED, "resources.trainer.ranks=3")),
        ("grpo", "training.batching", (*SHARED, "training.batching=padded")),
        ("quickstart", "schedule.iterations_per_job", ("schedule.coupling=sequential",)),
        ("quickstart", "resources.inference.tasks", ("resources.inference.tasks=1000",)),
        ("quickstart", "sampling.rollouts_per_problem", ("sampling.rollouts_per_problem=1",)),
        ("quickstart", "resources.trainer.ranks", ("resources.trainer={ranks: 5, ranks_per_node: 2}",)),
    ],
)
def test_what_does_not_go_together(name: str, field: str, changes: tuple[str, ...]) -> None:
    refused = refusal(recipe, name if name == "quickstart" else f"small_world/{name}", *changes)
    assert refused.what.startswith(f"{field}: does not fit")


@pytest.mark.parametrize(
    ("changes", "value", "fits"),
    [
        (["schedule.max_staleness=2"], "3 (the default)", "training.keep_weights=4"),
        (["schedule.weight_swap=keep"], "'keep'", "schedule.weight_swap=drain"),
        (["training.offload_optimizer=true", "training.zero_stage=0"], "True", "training.offload_optimizer=false"),
    ],
)
def test_a_misfit_shows_the_value_and_an_option_that_removes_it(changes: list[str], value: str, fits: str) -> None:
    refused = refusal(recipe, "small_world/grpo", *changes)
    assert repr(refused.value) == value
    assert str(refused.advice).startswith(f"--set {fits}, or ")
    recipe("small_world/grpo", *changes, fits)


def test_a_length_curriculum_holds_from_its_stage_on() -> None:
    schedule = recipe("small_world/length_curriculum").schedule
    assert [schedule.max_tokens(i, 999) for i in (0, 6, 7, 13, 14, 19)] == [96, 96, 160, 160, 256, 256]
    assert recipe("small_world/grpo").schedule.max_tokens(3, 999) == 999
