"""The samples of a shard in the results folder, as the tasks of two evaluations use them at the same time."""

from __future__ import annotations

import shutil
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from samples import rollout, sampled

from mrt_hpc.attempt.entry import load_task
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.benchmarks.stored_parts import StoredParts
from mrt_hpc.roles.evaluation import UnitEvaluation
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.data import read_problems, share
from mrt_hpc.run.heartbeats import Heart, Observer
from mrt_hpc.run.weights import Weights
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from mrt_hpc.run.groups import Sampled

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
CHANGES = (
    "evaluation.benchmarks=[{name: b, samples: 2, problems: {type: small_world, split: held_out, problems: 5}}]",
    "evaluation.problem_shards=2",
)
BOTH = range(2)
"""The numbers of the samples of a problem."""


def parts_of(root: Path, shard: int = 0, *changes: str) -> StoredParts:
    """The samples of a shard, as the task of one of two evaluations with a common results folder sees them."""
    recipe = load_recipe(QUICKSTART, (*CHANGES, *changes))
    layout = create_or_open(root, recipe, compile_plan(recipe, LocalSite()))
    task = load_task(layout, "segment-000.evaluation", shard, Placement(0, 1, 0, root.name))
    weights = Weights(0, "digest", layout.weights_version(0))
    (benchmark,) = recipe.evaluation.benchmarks
    results = root.parent / "results"
    results.mkdir(exist_ok=True)
    return StoredParts.of(task, task.job.evaluations[shard], benchmark, weights, results)


def samples_of_problem(parts: StoredParts, position: int, *, reward: float = 0.0) -> Sampled:
    """Two samples of a problem of the first shard: a right one and a wrong one, whatever their rewards say."""
    problem = read_problems(parts.task.layout.benchmark_data("b"))[2 * position]
    texts = (f"</think>\n\n\\boxed{{{problem.answer}}}", "</think>\n\n\\boxed{no}")
    return sampled(*(rollout(problem.id, number, text, reward=reward) for number, text in enumerate(texts)))


def test_a_shard_has_every_second_problem_of_the_benchmark(tmp_path: Path) -> None:
    first, second = (parts_of(tmp_path / "run", shard) for shard in (0, 1))
    assert first.lacking(range(3)) == {BOTH: [0, 1, 2]}
    first.commit(1, BOTH, samples_of_problem(first, 1))
    assert first.lacking(range(3)) == {BOTH: [0, 2]}
    assert second.lacking(range(2)) == {BOTH: [0, 1]}
    assert [path.name for path in (first.store.directory / "problems").iterdir()] == ["00002"]


def test_two_evaluations_share_the_problems(tmp_path: Path) -> None:
    one, two = parts_of(tmp_path / "one"), parts_of(tmp_path / "two")
    assert one.store.directory == two.store.directory
    with one.alive(), two.alive():
        assert one.claimed({BOTH: [0, 1]}) == {BOTH: [0, 1]}
        assert two.claimed({BOTH: [0, 1, 2]}) == {BOTH: [2]}
        one.commit(0, BOTH, samples_of_problem(one, 0))
        assert two.lacking(range(3)) == {BOTH: [1, 2]}
        assert two.claimed({BOTH: [1]}) == {}


def test_one_waits_for_the_samples_of_the_other(tmp_path: Path) -> None:
    one, two = parts_of(tmp_path / "one"), parts_of(tmp_path / "two")
    with one.alive():
        one.claimed({BOTH: [0]})
        waiting = threading.Thread(target=two.wait, args=({BOTH: [0]},), daemon=True)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive(), "the other one still samples"
        one.commit(0, BOTH, samples_of_problem(one, 0))
        waiting.join(20)
        assert not waiting.is_alive()
    assert two.lacking(range(1)) == {}


def test_one_takes_over_what_the_other_leaves(tmp_path: Path) -> None:
    one, two = parts_of(tmp_path / "one"), parts_of(tmp_path / "two")
    with one.alive():
        one.claimed({BOTH: [0]})
    waiting = threading.Thread(target=two.wait, args=({BOTH: [0]},), daemon=True)
    waiting.start()
    waiting.join(20)
    assert not waiting.is_alive(), "the other one has ended without the samples"
    assert two.claimed({BOTH: [0]}) == {BOTH: [0]}


# -- the run directory of the other evaluation: closed to this user, or not bound in the container of this task


@dataclass
class Clock:
    """Time as a test sets it."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def seen_by(parts: StoredParts, clock: Clock) -> StoredParts:
    """The same with an observer whose clock the test sets, and whose limit is 10 seconds."""
    return replace(parts, task=replace(parts.task, observer=Observer(10.0, clock)))


def test_a_living_lease_is_respected_without_a_look_at_the_run_of_its_holder(tmp_path: Path) -> None:
    one, two = parts_of(tmp_path / "one"), parts_of(tmp_path / "two")
    with one.alive():
        assert one.claimed({BOTH: [0]}) == {BOTH: [0]}
        shutil.rmtree(tmp_path / "one")
        assert two.claimed({BOTH: [0, 1]}) == {BOTH: [1]}
    assert two.claimed({BOTH: [0]}) == {BOTH: [0]}, "the task of the other run has ended"


def test_the_lease_of_a_task_that_was_killed_is_taken_over_after_the_limit(tmp_path: Path) -> None:
    """Its heart stays as it was at the last beat."""
    clock = Clock()
    one, two = parts_of(tmp_path / "one"), seen_by(parts_of(tmp_path / "two"), clock)
    one.claimed({BOTH: [0]})
    heart = one.store.heart(one.task.holder)
    write_json(heart, {"attempt": one.task.attempt, "beat": 7})
    shutil.rmtree(tmp_path / "one")
    assert two.claimed({BOTH: [0]}) == {}
    clock.now += 9.0
    write_json(heart, {"attempt": one.task.attempt, "beat": 8})
    assert two.claimed({BOTH: [0]}) == {}
    clock.now += 9.0
    assert two.claimed({BOTH: [0]}) == {}, "it has moved in between"
    clock.now += 2.0
    assert two.claimed({BOTH: [0]}) == {BOTH: [0]}


def test_the_lease_of_an_earlier_attempt_of_the_same_task_passes_on_at_once(tmp_path: Path) -> None:
    one, two = parts_of(tmp_path / "one"), parts_of(tmp_path / "two")
    again = replace(one, task=replace(one.task, attempt="again"))
    one.claimed({BOTH: [0]})
    with again.alive():
        assert two.claimed({BOTH: [0]}) == {BOTH: [0]}


def test_a_lease_without_a_heart_in_the_results_folder_expires(tmp_path: Path) -> None:
    """As an earlier version of mrt-hpc wrote it; the heart in the run directory counts for nothing here."""
    one, two = parts_of(tmp_path / "one"), parts_of(tmp_path / "two")
    write_json(one.store.leases / "00000.000", one.task.holder.as_json())
    with Heart(one.task.layout.heart(one.task.job.name, 0), one.task.attempt, 60.0):
        assert two.claimed({BOTH: [0]}) == {BOTH: [0]}


def test_a_task_of_an_evaluation_beats_in_the_results_folder_while_it_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = parts_of(tmp_path / "one"), parts_of(tmp_path / "two")
    seen: list[object] = []

    def sample(*_: object) -> None:
        seen.append(two.claimed({BOTH: [0, 1]}))
        for position in range(3):
            one.commit(position, BOTH, samples_of_problem(one, position))

    monkeypatch.setattr(UnitEvaluation, "_sample_missing", sample)
    problems = share(read_problems(one.task.layout.benchmark_data("b")), 0, 2)
    UnitEvaluation(one.task, one.task.job.evaluations[0])._fill(
        Weights(0, "digest", one.task.layout.weights_version(0)), one, problems
    )
    assert seen == [{}]
    assert not list((one.store.directory / "hearts").iterdir())


# -- what is in the results folder


def test_samples_come_back_with_the_version_of_this_run(tmp_path: Path) -> None:
    parts = parts_of(tmp_path / "one")
    parts.commit(0, BOTH, samples_of_problem(parts, 0))
    found = parts.sampled(range(3))
    assert set(found) == {0}
    assert [r.sample for r in found[0].rollouts] == [0, 1]


def test_another_rule_of_extraction_judges_the_samples_again(tmp_path: Path) -> None:
    """The box stands in the thought only: ``any_box`` takes it, and the default does not."""
    one = parts_of(tmp_path / "one")
    problem = read_problems(one.task.layout.benchmark_data("b"))[0]
    text = f"\\boxed{{{problem.answer}}} </think>\n\nI do not know."
    one.commit(0, BOTH, sampled(*(rollout(problem.id, number, text, reward=0.0) for number in BOTH)))
    two = parts_of(tmp_path / "two", 0, "evaluation.benchmarks.0.problems.extraction=any_box")
    assert two.store.directory == one.store.directory, "no samples are drawn for it"
    assert [r.reward for r in two.sampled(range(1))[0].rollouts] == [1.0, 1.0]
    assert [r.reward for r in one.sampled(range(1))[0].rollouts] == [0.0, 0.0]


@pytest.mark.parametrize("position", [0, 1])
def test_damaged_samples_are_set_aside_and_lack_again(tmp_path: Path, position: int) -> None:
    parts = parts_of(tmp_path / "one")
    for number in range(2):
        parts.commit(number, BOTH, samples_of_problem(parts, number))
    (batch,) = parts.store.batches(2 * position)
    (batch.path / "rollouts.parquet").write_bytes(b"damaged")
    assert set(parts.sampled(range(2))) == {1 - position}
    assert parts.lacking(range(2)) == {BOTH: [position]}


def test_what_another_grader_has_judged_is_judged_again_and_kept(tmp_path: Path) -> None:
    strict, lenient = parts_of(tmp_path / "one"), parts_of(tmp_path / "two", 0, "grading.strict=false")
    strict.commit(0, BOTH, samples_of_problem(strict, 0, reward=0.5))
    assert [r.reward for r in strict.sampled(range(1))[0].rollouts] == [0.5, 0.5], "by this very grader"
    assert [r.reward for r in lenient.sampled(range(1))[0].rollouts] == [1.0, 0.0]
    assert len(lenient.store.batches(0)) == 2
    assert [r.reward for r in strict.sampled(range(1))[0].rollouts] == [0.5, 0.5]
