"""Recorded samples are judged again with the grader of today; nothing is generated."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from samples import rollout, sampled

from mrt_hpc.analysis.collect import read_summary
from mrt_hpc.analysis.measures import EvaluationSummary, RunSummary
from mrt_hpc.analysis.report.content import RunRecord
from mrt_hpc.analysis.report.results import mixed_verdicts, results
from mrt_hpc.analysis.rows import summarise_evaluation
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.cli.main import main
from mrt_hpc.evaluate import regrade
from mrt_hpc.evaluate.regrade import regrade_run
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.sections import Grading, Prompt, SmallWorldProblems
from mrt_hpc.roles.benchmarks.regrading import Regrader
from mrt_hpc.roles.benchmarks.stored_parts import grader_of
from mrt_hpc.roles.benchmarks.summary import summary_of
from mrt_hpc.run.data import read_problems, write_problems
from mrt_hpc.run.evaluation_settings import settings_of
from mrt_hpc.run.groups import commit_group, read_group
from mrt_hpc.run.manifest import read_manifest
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from mrt_hpc.recipe.schema import Recipe
    from mrt_hpc.run.layout import RunLayout

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
BENCHMARK = (
    "evaluation.benchmarks=[{name: held-out, samples: 2, problems: {type: small_world, split: held_out, problems: 3}}]"
)


@pytest.fixture
def evaluated(tmp_path: Path) -> tuple[RunLayout, Recipe]:
    """A run with one evaluation, of which an earlier grader judged everything as wrong."""
    return judged_by(None, tmp_path)


def judged_by(grader: str | None, tmp_path: Path) -> tuple[RunLayout, Recipe]:
    """A run with one evaluation whose verdicts are all wrong; None names an earlier grader than today's."""
    recipe = load_recipe(QUICKSTART, (BENCHMARK,))
    layout = create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite()))
    (benchmark,) = recipe.evaluation.benchmarks
    problems = read_problems(layout.benchmark_data("held-out"))
    right, wrong = "<text></think>\n\n\\boxed{%s}", "</think>\n\n\\boxed{no number}"
    shard = sampled(
        *(rollout(p.id, n, right % p.answer if n == 0 else wrong, reward=0.0) for p in problems for n in range(2))
    )
    settings = settings_of(layout, recipe, benchmark).now.sampled
    path = layout.evaluation_shard(0, "held-out", 0)
    commit_group(path, shard, weights="w", settings=settings, grader=grader or "earlier")
    summary_of(layout, recipe, benchmark, 0, [shard]).write(layout.evaluation_summary(0, "held-out"))
    return layout, recipe


def test_verdicts_that_change_are_told_and_written(evaluated: tuple[RunLayout, Recipe]) -> None:
    layout, recipe = evaluated
    assert read_summary(layout, 0, "held-out").accuracy == 0.0
    (found,) = regrade_run(layout, print)
    assert (found.samples, len(found.changed), found.accuracy) == (6, 3, (0.0, 0.5))
    assert {(c.sample, c.rewards) for c in found.changed} == {(0, (0.0, 1.0))}
    assert read_summary(layout, 0, "held-out").accuracy == 0.5
    shard = layout.evaluation_shard(0, "held-out", 0)
    about = read_manifest(shard).about
    assert about["grader"] == grader_of(recipe, recipe.evaluation.benchmarks[0])
    assert (about["weights"], about["settings"]) == (
        "w",
        settings_of(layout, recipe, recipe.evaluation.benchmarks[0]).now.sampled,
    )
    assert sorted(r.reward for r in read_group(shard).rollouts) == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert any(layout.set_aside.rglob("REASON")), "the earlier verdicts are kept"


def test_an_answer_is_judged_again_by_each_of_several_gold_answers(evaluated: tuple[RunLayout, Recipe]) -> None:
    layout, _ = evaluated
    path = layout.benchmark_data("held-out")
    first, *others = read_problems(path)
    write_problems(path, [replace(first, answer=("1000", first.answer)), *others])
    (found,) = regrade_run(layout, print)
    golds = {change.problem_id: change.gold for change in found.changed}
    assert golds == {first.id: f"1000 or {first.answer}", **{p.id: p.answer for p in others}}
    assert found.accuracy == (0.0, 0.5)


def test_what_this_grader_has_judged_is_left_as_it_is(tmp_path: Path) -> None:
    recipe = load_recipe(QUICKSTART, (BENCHMARK,))
    layout, _ = judged_by(grader_of(recipe, recipe.evaluation.benchmarks[0]), tmp_path)
    told: list[str] = []
    assert regrade_run(layout, told.append) == []
    assert told == ["version 0 on held-out: this grader has judged it already"]


class Killed(Exception):
    """Stands for the end of the process at one call."""


@pytest.mark.parametrize("at", ["set_aside", "commit_group", "summary_of"])
@pytest.mark.parametrize("done", [True, False])
def test_a_command_that_is_killed_is_finished_by_the_next_one(
    evaluated: tuple[RunLayout, Recipe], monkeypatch: pytest.MonkeyPatch, at: str, done: bool
) -> None:
    """Killed right before and right after each step that writes; the next command gives the shard and the summary."""
    layout, recipe = evaluated
    step = getattr(regrade, at)

    def killed(*args: object, **kwargs: object) -> None:
        if done:
            step(*args, **kwargs)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(regrade, at, killed)
        with pytest.raises(Killed):
            regrade_run(layout, print)
    as_another_process(layout)
    regrade_run(layout, print)
    assert read_summary(layout, 0, "held-out").accuracy == 0.5
    shard = layout.evaluation_shard(0, "held-out", 0)
    assert read_manifest(shard).about["grader"] == grader_of(recipe, recipe.evaluation.benchmarks[0])
    assert sum(r.reward for r in read_group(shard).rollouts) == 3.0
    as_another_process(layout)
    assert regrade_run(layout, print) == [], "nothing is left to do"


def as_another_process(layout: RunLayout) -> None:
    """End the claim on the run, which lasts as long as this process."""
    for claim in layout.jobs.glob("local-*.json"):
        claim.unlink()


def test_the_tokenizer_of_a_pruned_version_is_that_of_another(evaluated: tuple[RunLayout, Recipe]) -> None:
    layout, recipe = evaluated
    layout.weights_version(0).mkdir(parents=True)
    layout.weights_version(20).mkdir()
    assert regrade.tokenizer_of(layout, recipe, 0) == layout.weights_version(0)
    assert regrade.tokenizer_of(layout, recipe, 5) == layout.weights_version(20)


def test_the_command_prints_a_table(evaluated: tuple[RunLayout, Recipe]) -> None:
    layout, _ = evaluated
    result = CliRunner().invoke(main, ["regrade", str(layout.root)])
    assert result.exit_code == 0, result.output
    assert "version 0 on held-out: 3 of 6 verdicts changed, pass@1 0.0 % -> 50.0 %" in result.output
    assert f"mrt-hpc report {layout.root}" in result.output


def test_answers_are_found_again_where_the_rule_for_their_place_says(tmp_path: Path) -> None:
    """A box in the thought is no answer; a record that took it for one is corrected."""
    thought_only = rollout("p", 0, "so \\boxed{7}", reward=1.0)
    regrader = Regrader(SmallWorldProblems(), Grading(), Prompt(), None, tmp_path)
    (again,) = asyncio.run(regrader.all([sampled(thought_only)], {"p": "7"}))
    assert (again.rollouts[0].answer, again.rollouts[0].reward) == (None, 0.0)
    assert again.rollouts[0].token_ids == thought_only.token_ids


def test_the_digest_of_a_grader_names_its_fields_and_limits() -> None:
    recipe = load_recipe(QUICKSTART, (BENCHMARK,))
    changed = [
        load_recipe(QUICKSTART, (BENCHMARK, change)) for change in ("grading.strict=false", "grading.time_limit_s=9")
    ]
    digests = {grader_of(one, one.evaluation.benchmarks[0]) for one in (recipe, *changed)}
    assert len(digests) == 3
    other = load_recipe(QUICKSTART, (BENCHMARK, "grading.processes=2", "seed=7"))
    assert grader_of(other, other.evaluation.benchmarks[0]) in digests


def test_verdicts_of_several_graders_are_told_with_the_command_that_makes_them_one() -> None:
    one = summarise_evaluation(3, "b", {"p": [1.0]})
    two = one.model_copy(update={"graders": 2})

    def summary(*evaluations: EvaluationSummary) -> RunSummary:
        return RunSummary(recipe="r", algorithm="grpo", model="m", iterations_planned=1, evaluations=evaluations)

    assert mixed_verdicts(summary(one)) == []
    (warning,) = mixed_verdicts(summary(one, two))
    assert warning.startswith("version 3 on b: 2 versions of the grader have judged its samples; mrt-hpc regrade")
    assert f"Several graders: {warning}." in results([RunRecord("r", summary(two))]).paragraphs
