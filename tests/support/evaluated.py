"""Evaluated samples of two problems, small enough to work out by hand, and a run directory that holds them."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from run_of import run_of
from samples import branch_with, rollout_with

from mrt_hpc.analysis.model_samples import EvaluatedBoundary, EvaluatedTrace, GradedAnswer, ModelSamples
from mrt_hpc.evaluate.asked_models import models_asked
from mrt_hpc.evaluate.evaluation_alone import evaluation_recipe
from mrt_hpc.recipe.lock import read_lock
from mrt_hpc.run.evaluation_settings import settings_of
from mrt_hpc.run.groups import Sampled, commit_group
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.records import GroupStatistics, PrefixValue

BENCHMARK = "held-out"
ANSWER_TOKENS = 2  # the tokens of each forced answer


def boundary(tokens: int, answers: str) -> EvaluatedBoundary:
    """A boundary with forced answers, a letter each: R is right, any other letter a wrong answer."""
    forced = tuple(GradedAnswer(a, float(a == "R"), ANSWER_TOKENS, 10 + tokens) for a in answers)
    return EvaluatedBoundary(tokens, sum(f.reward for f in forced) / len(forced), forced)


def trace(answer: str, tokens: int, *boundaries: EvaluatedBoundary) -> EvaluatedTrace:
    return EvaluatedTrace(float(answer == "R"), answer, tokens, boundaries)


PROBLEMS = {
    "a": (trace("R", 50, boundary(0, "RRXY"), boundary(40, "RRRX")),
          trace("Z", 70, boundary(0, "RRXY"), boundary(30, "XXRR"), boundary(60, "XXXX"))),
    "b": (trace("R", 20, boundary(0, "RRRR"), boundary(10, "RRRR")),) * 2,
}  # fmt: skip


def model(problems: dict[str, tuple[EvaluatedTrace, ...]], name: str = "model") -> ModelSamples:
    return ModelSamples(name, f"runs/{name}", BENCHMARK, problems)


def unvalued(tokens: dict[str, tuple[str, int]], name: str = "model") -> ModelSamples:
    """A model with one trace a problem, of this answer and length, whose prefixes were not valued."""
    ends = {length: EvaluatedBoundary(length, None, ()) for length in (0, *(length for _, length in tokens.values()))}
    return model({p: (trace(answer, n, ends[0], ends[n]),) for p, (answer, n) in tokens.items()}, name)


def run_directory(place: Path, *changes: str, problems: int = 2, shards: int = 2) -> RunLayout:
    """A run directory that evaluates so many problems of the small world, twice each."""
    return run_of(place, *benchmark_of(problems, shards), *changes)


def benchmark_of(problems: int, shards: int, mode: str = "{type: direct}") -> tuple[str, str]:
    source = f"{{type: small_world, split: held_out, problems: {problems}}}"
    benchmark = f"{{name: {BENCHMARK}, samples: 2, problems: {source}, mode: {mode}}}"
    return f"evaluation.benchmarks=[{benchmark}]", f"evaluation.problem_shards={shards}"


def evaluated_run(place: Path, *versions: int, problems: int = 2) -> RunLayout:
    layout = run_directory(place, problems=problems, shards=problems)
    for version in versions:
        commit_all(layout, version, shards=problems)
    return layout


def evaluation_directory(place: Path, run: RunLayout, *versions: int) -> RunLayout:
    """The directory of an evaluation on its own of weights versions of a run, with the samples above of all models."""
    layout = evaluation_of(place, run, versions)
    for number in range(len(versions)):
        commit_all(layout, number)
    return layout


def evaluation_of(place: Path, run: RunLayout, versions: Sequence[int], *changes: str) -> RunLayout:
    """The same directory without samples."""
    for version in versions:
        run.weights_version(version).mkdir(parents=True, exist_ok=True)
        (run.weights_version(version) / "config.json").write_text("{}")
    asked = models_asked([f"{run.root}@{','.join(map(str, versions))}"])
    shutil.rmtree(run.weights)  # else they would have to be whole models
    recipe = evaluation_recipe(asked, "small_world", (*benchmark_of(2, 2), *changes), place.parent / "results")
    return run_of(place, recipe=recipe)


def commit_all(layout: RunLayout, version: int, shards: int = 2) -> None:
    """Write the samples above as the evaluation of a weights version, a problem a shard."""
    for shard in range(shards):
        commit_shard(layout, version, shard)


def commit_shard(layout: RunLayout, version: int, shard: int, valued: bool = True) -> None:
    """Write the samples of one of the problems above as a shard of an evaluation."""
    problem = read_problems(layout.benchmark_data(BENCHMARK))[shard].id
    commit_traces(layout, version, shard, {problem: PROBLEMS["ab"[shard]]}, valued)


def rounds_of(of: EvaluatedTrace) -> list[EvaluatedTrace]:
    """The rollouts of a sample: its attempts, or itself."""
    return [EvaluatedTrace(a.reward, a.answer, a.tokens, of.boundaries[:1]) for a in of.attempts] or [of]


def commit_traces(
    layout: RunLayout, version: int, shard: int, problems: Mapping[str, Sequence[EvaluatedTrace]], valued: bool = True,
    grader: str = "",
) -> None:  # fmt: skip
    """Write samples as a shard of an evaluation, with the settings of its recipe; the last samples come first."""
    recipe = read_lock(layout.recipe_lock)
    settings = settings_of(layout, recipe, recipe.benchmark(BENCHMARK)).sampled
    traces = [
        (problem, n * stages + stage, round_)
        for problem, mine in problems.items()
        for n, t in reversed(list(enumerate(mine)))
        for rounds in (rounds_of(t),)
        for stages in (len(rounds),)
        for stage, round_ in enumerate(rounds)
    ]
    boundaries = [(p, n, j, b) for p, n, of in traces for j, b in enumerate(of.boundaries)] if valued else []
    rollouts = [
        rollout_with(
            [1] * of.tokens, problem_id=problem, sample=sample, prompt_ids=[1] * 10, answer=of.answer,
            reward=of.reward, boundaries=[b.tokens for b in of.boundaries], stage=sample % stages, stages=stages,
        )
        for problem, sample, of in traces
        for stages in (len(problems[problem][0].attempts) or 1,)
    ]  # fmt: skip
    branches = [
        branch_with(
            [1] * forced.tokens, problem_id=problem, sample=sample, boundary=j, branch=number, answer=forced.answer,
            reward=forced.reward, prompt_tokens=forced.asked,
        )
        for problem, sample, j, here in boundaries
        for number, forced in enumerate(here.forced)
    ]  # fmt: skip
    values = [
        PrefixValue(0, p, sample, j, here.value, variance=0.0, progress_variance=0.0, branches=4, baseline=0.0)
        for p, sample, j, here in boundaries
        if here.value is not None
    ]
    costs = GroupStatistics(0, 0, 0, 0, 0, 0, 0, {})
    sampled = Sampled(rollouts=rollouts, branches=branches, values=values, statistics=costs)
    assert commit_group(layout.evaluation_shard(version, BENCHMARK, shard), sampled, settings=settings, grader=grader)
