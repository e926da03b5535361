"""What of an evaluation is sampled already: a part a problem, merged into the shard when all are there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mrt_hpc.attempt.entry import load_task
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.sampling.parts import Parts
from mrt_hpc.run.evaluation_settings import EvaluationSettings, RecordedSettings
from mrt_hpc.run.groups import Sampled, commit_group, complete_groups, merged
from mrt_hpc.run.records import FinishReason, GroupStatistics, Rollout
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from mrt_hpc.roles.task.context import Task

UNNAMED = RecordedSettings("first", "first summary")
BOTH = range(2)
"""The numbers of the samples of a problem."""
QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"


@pytest.fixture
def task(tmp_path: Path) -> Task:
    recipe = load_recipe(QUICKSTART, ("schedule.iterations=2", "schedule.iterations_per_job=2"))
    layout = create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite()))
    return load_task(layout, "segment-000.evaluation", 0, Placement(0, 1, 0, "a"))


def parts_of(task: Task, *, weights: str = "digest", settings: str = "these") -> Parts:
    now = RecordedSettings(settings, "summary")
    directory = task.layout.evaluation_parts(0, "held-out", 0)
    return Parts(task, directory, weights, EvaluationSettings(now, UNNAMED), samples=2)


def sampled(problem: str, *, tokens: int = 3, seconds: float = 1.0) -> Sampled:
    rollouts = [
        Rollout(
            iteration=0, problem_id=problem, sample=number, seed=1, weights_version=0, prompt_ids=[1], forced=0,
            token_ids=[2], logprobs=[-0.5], finish_reason=FinishReason.STOP, text="7", answer="7", reward=1.0,
            boundaries=[0, 1], started=0.0, seconds=1.0,
        )
        for number in (1, 0)
    ]  # fmt: skip
    return Sampled(rollouts=rollouts, statistics=GroupStatistics(2, 0, tokens, 0, 0, 0, 5, {"generation": seconds}))


def test_a_part_is_found_again_and_written_once(task: Task) -> None:
    assert parts_of(task).commit(4, BOTH, sampled("e"))
    assert not parts_of(task).commit(4, BOTH, sampled("late"))
    found = parts_of(task).sampled(range(10))
    assert {p: part.rollouts[0].problem_id for p, part in found.items()} == {4: "e"}


def test_parts_that_cannot_be_used_are_set_aside(task: Task) -> None:
    """Of other weights, of other settings, and damaged."""
    for position in range(4):
        parts_of(task, weights="other" if position == 0 else "digest").commit(position, BOTH, sampled("e"))
    directory = parts_of(task).directory
    (directory / "00001" / "rollouts.parquet").write_bytes(b"damaged")
    assert set(parts_of(task).sampled(range(4))) == {2, 3}
    assert complete_groups(directory) == {2, 3}
    assert parts_of(task, settings="others").sampled(range(4)) == {}
    reasons = "".join(path.read_text() for path in task.layout.set_aside.rglob("REASON"))
    assert "other weights" in reasons
    assert "differs from the manifest" in reasons
    assert "settings other than those of the recipe" in reasons


def test_a_part_that_names_no_settings_was_made_with_the_first(task: Task) -> None:
    parts = parts_of(task)
    for position in range(2):
        commit_group(parts.directory / f"{position:05d}", sampled("e"), weights="digest")
    assert set(parts_of(task, settings=UNNAMED.sampled).sampled(range(2))) == {0, 1}
    assert parts.sampled(range(2)) == {}


def test_parts_are_merged_in_the_order_of_problems_and_samples() -> None:
    whole = merged([sampled("b", tokens=3, seconds=2.0), sampled("a", tokens=4, seconds=1.5)])
    assert [(r.problem_id, r.sample) for r in whole.rollouts] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert whole.statistics == GroupStatistics(4, 0, 7, 0, 0, 0, 10, {"generation": 2.0})


def test_parts_are_removed_when_the_shard_has_them(task: Task) -> None:
    parts = parts_of(task)
    parts.commit(0, BOTH, sampled("a"))
    parts.remove()
    assert not parts.directory.exists()
    parts.remove()
