"""Evaluated samples of two problems, small enough to work out by hand, and a run directory that holds them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.analysis.model_samples import EvaluatedBoundary, EvaluatedTrace, ForcedAnswer, ModelSamples
from mrt_hpc.launch.create import create_or_open
from mrt_hpc.launch.local.site import LocalSite
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.data import read_problems
from mrt_hpc.run.groups import Sampled, commit_group
from mrt_hpc.run.records import Branch, FinishReason, GroupStatistics, PrefixValue, Rollout

if TYPE_CHECKING:
    from mrt_hpc.run.layout import RunLayout

ROOT = Path(__file__).parents[2]
ANSWER_TOKENS = 2
"""The tokens of each forced answer."""


def boundary(tokens: int, answers: str) -> EvaluatedBoundary:
    """A boundary with forced answers, a letter each: R is right, any other letter a wrong answer."""
    forced = tuple(ForcedAnswer(a, float(a == "R"), ANSWER_TOKENS, 10 + tokens) for a in answers)
    return EvaluatedBoundary(tokens, sum(f.reward for f in forced) / len(forced), forced)


def trace(answer: str, tokens: int, *boundaries: EvaluatedBoundary) -> EvaluatedTrace:
    """A trace whose answer is right if it is R."""
    return EvaluatedTrace(float(answer == "R"), answer, tokens, boundaries)


PROBLEMS = {
    "a": (
        trace("R", 50, boundary(0, "RRXY"), boundary(40, "RRRX")),
        trace("Z", 70, boundary(0, "RRXY"), boundary(30, "XXRR"), boundary(60, "XXXX")),
    ),
    "b": (
        trace("R", 20, boundary(0, "RRRR"), boundary(10, "RRRR")),
        trace("R", 20, boundary(0, "RRRR"), boundary(10, "RRRR")),
    ),
}


def model(problems: dict[str, tuple[EvaluatedTrace, ...]], name: str = "model") -> ModelSamples:
    """A model with these samples."""
    return ModelSamples(name, f"runs/{name}", "held-out", problems)


def unvalued(tokens: dict[str, tuple[str, int]], name: str = "model") -> ModelSamples:
    """A model with one trace a problem, of this answer and length, whose prefixes were not valued."""
    return model(
        {
            problem: (trace(answer, length, EvaluatedBoundary(0, None, ()), EvaluatedBoundary(length, None, ())),)
            for problem, (answer, length) in tokens.items()
        },
        name,
    )


def evaluated_run(place: Path, *versions: int, problems: int = 2) -> RunLayout:
    """A run directory of which these weights versions have the samples above on its problems, a shard each."""
    source = f"{{type: small_world, split: held_out, problems: {problems}}}"
    benchmark = f"{{name: held-out, samples: 2, problems: {source}}}"
    recipe = load_recipe(ROOT / "recipes" / "quickstart.yaml", [f"evaluation.benchmarks=[{benchmark}]"])
    layout = create_or_open(place, recipe, compile_plan(recipe, LocalSite()))
    for version in versions:
        for shard in range(problems):
            commit_shard(layout, version, shard)
    return layout


def commit_shard(layout: RunLayout, version: int, shard: int, valued: bool = True) -> None:
    """Write the samples of one problem as a shard of an evaluation."""
    problem = read_problems(layout.benchmark_data("held-out"))[shard].id
    traces = PROBLEMS["ab"[shard]]
    sampled = Sampled(
        rollouts=[_rollout(problem, n, t) for n, t in enumerate(traces)],
        branches=[b for n, t in enumerate(traces) for b in _branches(problem, n, t)] if valued else [],
        values=[v for n, t in enumerate(traces) for v in _values(problem, n, t)] if valued else [],
        statistics=GroupStatistics(0, 0, 0, 0, 0, 0, 0, {}),
    )
    assert commit_group(layout.evaluation_shard(version, "held-out", shard), sampled)


def _rollout(problem: str, sample: int, of: EvaluatedTrace) -> Rollout:
    return Rollout(
        iteration=0, problem_id=problem, sample=sample, seed=0, weights_version=0, prompt_ids=[1] * 10, forced=0,
        token_ids=[1] * of.tokens, logprobs=[0.0] * of.tokens, finish_reason=FinishReason.STOP, text="",
        answer=of.answer, reward=of.reward, boundaries=[b.tokens for b in of.boundaries], started=0.0, seconds=0.0,
    )  # fmt: skip


def _branches(problem: str, sample: int, of: EvaluatedTrace) -> list[Branch]:
    return [
        Branch(
            iteration=0, problem_id=problem, sample=sample, boundary=j, branch=number, seed=0, weights_version=0,
            token_ids=[1] * forced.tokens, logprobs=[0.0] * forced.tokens, finish_reason=FinishReason.STOP, text="",
            answer=forced.answer, reward=forced.reward, known=False, look_ahead=0.0, prompt_tokens=forced.asked,
            cached_tokens=None,
        )
        for j, here in enumerate(of.boundaries)
        for number, forced in enumerate(here.forced)
    ]  # fmt: skip


def _values(problem: str, sample: int, of: EvaluatedTrace) -> list[PrefixValue]:
    return [
        PrefixValue(0, problem, sample, j, here.value, variance=0.0, progress_variance=0.0, branches=4, baseline=0.0)
        for j, here in enumerate(of.boundaries)
        if here.value is not None
    ]
