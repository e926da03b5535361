"""``mrt-hpc traces``: the traces of a run as text, with the numbers that the run's own code gives them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from commands import typed
from synthetic_run import Shape, SyntheticRun

from mrt_hpc.algorithms.batch import batch_of
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.run.archive import read_sampled, sampled_positions

if TYPE_CHECKING:
    from mrt_hpc.run.layout import RunLayout


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    return SyntheticRun(tmp_path_factory.mktemp("traces") / "run", Shape(4, 2, problems=4, paragraphs=1)).write()


def samples(text: str) -> list[str]:
    return re.findall(r"^sample \d+: (right|wrong)", text, re.MULTILINE)


def test_traces_of_an_iteration_have_the_values_and_advantages_of_the_run(run: RunLayout) -> None:
    groups = [read_sampled(run, 3, position) for position in sorted(sampled_positions(run, 3))]
    batch = batch_of(groups)
    number = next(n for n, rollout in enumerate(batch.rollouts) if rollout.reward < 1)
    rollout, values = batch.rollouts[number], batch.value_arrays[number]
    learnt = read_recipe_lock(run.recipe_lock).algorithm.learnt(batch).sequences[number]
    shown = typed("traces", run.root, "--iteration", 3, "--problem", rollout.problem_id, "--wrong", "-n", 9).output
    mine = shown.split(f"sample {rollout.sample}: wrong")[1].split("\nsample ")[0]
    begin, end = rollout.boundaries[:2]
    mean = learnt.advantages[begin:end].mean()
    progress = values[1] - values[0]
    assert f"[episode 0] V {values[0]:.2f}, progress {progress:+.2f}, advantage {mean:+.3f}" in mine
    assert f"[after the thought] V {values[-1]:.2f}" in mine and "Solve" in shown
    assert set(samples(shown)) == {"wrong"}
    assert "\x1b" not in typed("traces", run.root, "-n", 99).output, "no text of a model controls the terminal"


def test_traces_of_an_evaluation_and_how_many(run: RunLayout) -> None:
    shown = typed("traces", run.root, "--evaluation", 4, "-n", 3).output
    assert len(samples(shown)) == 3 and "evaluation of version 4 on aime24" in shown and "-n 12" in shown
    right = samples(typed("traces", run.root, "--evaluation", 4, "--benchmark", "math500", "-n", 99).output)
    wrong = samples(typed("traces", run.root, "--evaluation", 4, "--benchmark", "math500", "-n", 99, "--wrong").output)
    assert 0 < len(wrong) < len(right) and set(wrong) == {"wrong"}


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (("--iteration", "77"), "--iteration 3"),
        (("--problem", "x"), "--problem train-"),
        (("--evaluation", "4", "--benchmark", "no"), "aime24, math500"),
        (("--evaluation", "4", "--iteration", "3"), "one of them"),
    ],
)
def test_traces_that_are_not_there_are_refused(run: RunLayout, words: tuple[str, ...], fact: str) -> None:
    assert fact in typed("traces", run.root, *words, exits=2).stderr
