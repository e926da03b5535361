"""Recorded samples are judged again with the grader of today; nothing is generated."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from commands import recipe, typed
from run_of import forget_claims, run_of
from samples import rollout, sampled

from mrt_hpc import Recipe, RunLayout
from mrt_hpc.analysis.measures import RunSummary, read_summary
from mrt_hpc.analysis.number_formats import DASH
from mrt_hpc.analysis.report.content import RunRecord
from mrt_hpc.analysis.report.result_sections import results
from mrt_hpc.analysis.rows import summarise_evaluation
from mrt_hpc.evaluate.regrade import regrade_run
from mrt_hpc.roles.evaluation_summary import summary_of
from mrt_hpc.roles.regrading import Regrader
from mrt_hpc.roles.stored_parts import grader_of
from mrt_hpc.run.evaluation_settings import settings_of
from mrt_hpc.run.groups import commit_group, read_group
from mrt_hpc.run.manifest import read_manifest
from mrt_hpc.run.problems import read_problems, write_problems


@pytest.fixture
def asked() -> Recipe:
    problems = "{type: small_world, split: held_out, problems: 3}"
    return recipe("quickstart", f"evaluation.benchmarks=[{{name: held-out, samples: 2, problems: {problems}}}]")


@pytest.fixture
def run(asked: Recipe, tmp_path: Path) -> RunLayout:
    """A run with one evaluation, of which an earlier grader judged everything as wrong."""
    layout = run_of(tmp_path / "run", recipe=asked)
    benchmark = asked.benchmark("held-out")
    right, wrong = "<text></think>\n\n\\boxed{%s}", "</think>\n\n\\boxed{no number}"
    problems = read_problems(layout.benchmark_data("held-out"))
    texts = [(p.id, n, right % p.answer if n == 0 else wrong) for p in problems for n in range(2)]
    shard = sampled(*(rollout(*text, reward=0.0) for text in texts))
    about = {"weights": "w", "settings": settings_of(layout, asked, benchmark).sampled, "grader": "earlier"}
    commit_group(layout.evaluation_shard(0, "held-out", 0), shard, **about)
    summary_of(layout, asked, benchmark, 0, [shard]).write(layout.evaluation_summary(0, "held-out"))
    return layout


def test_verdicts_that_change_are_written_and_the_earlier_ones_kept(run: RunLayout, asked: Recipe) -> None:
    shard, grader = run.evaluation_shard(0, "held-out", 0), grader_of(asked, asked.benchmark("held-out"))
    before = read_manifest(shard).about
    (found,) = regrade_run(run, print)
    assert (found.samples, len(found.changed), found.accuracy) == (6, 3, (0.0, 0.5))
    assert {(old.sample, old.reward, new.reward) for old, new in found.changed} == {(0, 0.0, 1.0)}
    assert (read_summary(run, 0, "held-out").accuracy, read_summary(run, 0, "held-out").graders) == (0.5, (grader,))
    assert read_manifest(shard).about == {**before, "grader": grader}
    assert sorted(r.reward for r in read_group(shard).rollouts) == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert [path.parent.parent for path in run.set_aside.glob("*/*/MANIFEST.json")] == [*run.set_aside.iterdir()]
    forget_claims(run)
    assert regrade_run(run, print) == [], "nothing is left to do"


def test_the_command_shows_an_answer_with_all_its_gold_answers(run: RunLayout) -> None:
    path = run.benchmark_data("held-out")
    first, *others = read_problems(path)
    write_problems(path, [replace(first, answer=("1000", first.answer)), *others])
    shown = typed("regrade", run.root).output
    for fact in ("3 of 6", "0.0 % -> 50.0 %", f"1000 or {first.answer}", f"mrt-hpc report {run.root}"):
        assert fact in shown


def test_answers_are_found_again_where_the_rule_for_their_place_says(run: RunLayout, asked: Recipe) -> None:
    problem = read_problems(run.benchmark_data("held-out"))[0]
    thought_only = rollout(problem.id, 0, f"so \\boxed{{{problem.answer}}}", reward=1.0)
    (again,) = asyncio.run(Regrader(run, asked, asked.benchmark("held-out"), run.root).all([sampled(thought_only)]))
    assert again.rollouts == [replace(thought_only, answer=None, reward=0.0)]


def test_verdicts_of_several_graders_bring_a_warning() -> None:
    """Also where each version has one, but another one than the first: then no gain over the first is shown."""
    first, last = (summarise_evaluation(v, "b", {"p": [v / 3], "q": [v / 3]}, graders=("a",)) for v in (0, 3))
    for graders, several in ((("a",), False), (("a", "b"), True), (("b",), True)):
        evaluations = (first, last.model_copy(update={"graders": graders}))
        found = RunSummary(recipe="r", algorithm="grpo", model="m", iterations_planned=1, evaluations=evaluations)
        section = results([RunRecord("r", found)])
        assert any("mrt-hpc regrade" in text for text in section.paragraphs) is several
        assert any("points against version 0" in text for text in section.paragraphs) is not several
        assert (section.tables[0].rows[1][6] == DASH) is several
