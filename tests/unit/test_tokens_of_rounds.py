"""The tokens of samples with several rounds are those of all rounds; those of budgets are those of the last one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from evaluated import BENCHMARK, run_directory

from mrt_hpc.analysis.evaluated_run import EvaluatedRun
from mrt_hpc.analysis.model_samples import evaluated_problems
from mrt_hpc.analysis.problem_measures import curve_of
from mrt_hpc.mrt.regret import TraceCurve, reward_within
from mrt_hpc.recipe.lock import read_lock
from mrt_hpc.roles.evaluation_summary import summary_of
from mrt_hpc.run.evaluation_settings import settings_of
from mrt_hpc.run.groups import Sampled, commit_group
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.records import FinishReason, GroupStatistics, PrefixValue, Rollout

LENGTHS = ((30, 20, 10), (5, 6, 7))
"""The tokens of three rounds, or of thoughts up to three budgets, of two samples."""
MODES = {
    "linearised": "{type: linearised, rounds: 3, round_tokens: 64, backtrack: null}",
    "budget_forcing": r'{type: budget_forcing, budgets: [16, 32, 64], forced_text: "\n</think>\n"}',
}


def sampled(problem: str) -> Sampled:
    """The last rounds have values: 1/2 at their start and 1 at the end of their thought."""
    rollouts = [
        Rollout(
            iteration=0, problem_id=problem, sample=sample * 3 + stage, seed=0, weights_version=0, prompt_ids=[1],
            forced=0, token_ids=[1] * tokens, logprobs=[0.0] * tokens, finish_reason=FinishReason.STOP, text="",
            answer="1", reward=float(stage == 2), boundaries=[0, tokens - 2], started=0.0, seconds=0.0, stage=stage,
            stages=3,
        ) for sample in (0, 1) for stage in (2, 0, 1) for tokens in (LENGTHS[sample][stage],)
    ]  # fmt: skip
    values = [
        PrefixValue(0, problem, sample * 3 + 2, j, value, 0.0, 0.0, branches=4, baseline=0.0)
        for sample in (0, 1)
        for j, value in enumerate((0.5, 1.0))
    ]
    return Sampled(rollouts=rollouts, statistics=GroupStatistics(0, 0, 0, 0, 0, 0, 0, {}), values=values)


@pytest.mark.parametrize(("mode", "tokens"), [("linearised", (60, 18)), ("budget_forcing", (10, 7))])
def test_tokens_of_a_sample(tmp_path: Path, mode: str, tokens: tuple[int, int]) -> None:
    problems = "{type: small_world, split: held_out, problems: 1}"
    change = f"evaluation.benchmarks=[{{name: {BENCHMARK}, samples: 2, problems: {problems}, mode: {MODES[mode]}}}]"
    layout = run_directory(tmp_path / "run", change, shards=1)
    recipe = read_lock(layout.recipe_lock)
    (benchmark,) = recipe.evaluation.benchmarks
    part = sampled(read_problems(layout.benchmark_data(BENCHMARK))[0].id)
    commit_group(
        layout.evaluation_shard(0, BENCHMARK, 0), part, settings=settings_of(layout, recipe, benchmark).sampled
    )
    samples = EvaluatedRun.open(str(layout.root)).samples(0, BENCHMARK, "model")
    ((first, second),) = samples.problems.values()
    assert (first.tokens, second.tokens) == tokens
    starts = tokens[0] - LENGTHS[0][2], tokens[1] - LENGTHS[1][2]
    assert [b.tokens for b in first.boundaries] == [starts[0], starts[0] + 8]
    assert [b.tokens for b in second.boundaries] == [starts[1], starts[1] + 5]
    summary = summary_of(layout, recipe, benchmark, 0, [part])
    assert samples.mean_tokens == summary.tokens_per_rollout == sum(tokens) / 2
    assert summary.regret == {}, "of these boundaries it would be another quantity"


def test_values_of_the_last_round_are_behind_the_tokens_of_the_earlier_ones() -> None:
    part = sampled("p")
    tokens = {
        adds: [curve_of(t).tokens.tolist() for t in evaluated_problems([part], adds_stages=adds)["p"]]
        for adds in (True, False)
    }
    assert tokens == {True: [[50, 58], [11, 16]], False: [[0, 8], [0, 5]]}


def test_nothing_can_be_answered_before_the_earlier_rounds_are_over() -> None:
    curve = TraceCurve(np.array([50.0, 58.0]), np.array([0.5, 1.0]))
    assert reward_within(np.array([0.0, 49.0, 50.0, 54.0, 60.0]), 60, 1.0, curve).tolist() == [0, 0, 0.5, 0.75, 1]
