"""A shard whose samples the results folder keeps: what is claimed while other evaluations add samples, what another
grader has judged, and what decides the fingerprint.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from samples import rollout, sampled

from mrt_hpc.attempt.entry import load_task
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.domains.base import grader_digest
from mrt_hpc.domains.verifiers import verifier_of
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.sections import Grading, SmallWorldProblems
from mrt_hpc.roles.benchmarks.stored_parts import StoredParts, grader_of, writing
from mrt_hpc.run.data import read_problems
from mrt_hpc.run.evaluation_settings import fingerprint_of
from mrt_hpc.run.weights import Weights
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.groups import Sampled

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
BENCHMARK = (
    "evaluation.benchmarks=[{name: held-out, samples: 4, problems: {type: small_world, split: held_out, problems: 3}}]"
)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    recipe = load_recipe(QUICKSTART, (BENCHMARK, "evaluation.prover=null"))
    layout = create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite()))
    return load_task(layout, "segment-000.evaluation", 0, Placement(0, 1, 0, "a"))


def stored(task: Task, results: Path) -> StoredParts:
    (benchmark,) = task.experiment.evaluation.benchmarks
    unit = task.job.evaluations[0]
    weights = Weights(0, "w", task.layout.weights_version(0))
    results.mkdir(exist_ok=True)
    return StoredParts.of(task, unit, benchmark, weights, results)


def batch(parts: StoredParts, position: int, numbers: range, *, reward: float = 1.0) -> Sampled:
    problem = read_problems(parts.task.layout.benchmark_data("held-out"))[position]
    text = f"</think>\n\n\\boxed{{{problem.answer}}}"
    return sampled(*(rollout(problem.id, number, text, reward=reward) for number in numbers))


def grader(task: Task) -> str:
    return grader_of(task.experiment, task.experiment.evaluation.benchmarks[0])


def test_samples_that_came_between_the_look_and_the_lease_are_not_drawn_again(task: Task, tmp_path: Path) -> None:
    """Another evaluation commits 2 of the 4 samples of problem 0 and all of problem 1 after this one has looked."""
    parts = stored(task, tmp_path / "results")
    lacking = parts.lacking(range(3))
    assert lacking == {range(4): [0, 1, 2]}
    parts.store.commit(0, range(2), batch(parts, 0, range(2)), grader(task))
    parts.store.commit(1, range(4), batch(parts, 1, range(4)), grader(task))
    assert parts.claimed(lacking) == {range(2, 4): [0], range(4): [2]}
    assert sorted(path.name for path in parts.store.leases.iterdir()) == ["00000.000", "00002.000"]


def test_a_damaged_batch_that_another_task_has_moved_is_missing_and_no_error(task: Task, tmp_path: Path) -> None:
    parts = stored(task, tmp_path / "results")
    parts.commit(0, range(4), batch(parts, 0, range(4)))
    ((chosen, numbers),) = parts.store.chosen(0, 4, grader(task))
    parts.store.set_aside(chosen)
    assert parts._readable(chosen, numbers) is None
    assert parts.lacking(range(1)) == {range(4): [0]}


def test_verdicts_of_another_grader_are_made_again_and_kept(task: Task, tmp_path: Path) -> None:
    parts = stored(task, tmp_path / "results")
    parts.store.commit(0, range(4), batch(parts, 0, range(4), reward=0.0), "b" * 64)
    assert [r.reward for r in parts.sampled(range(1))[0].rollouts] == [1.0] * 4
    assert {one.grader for one in parts.store.batches(0)} == {"b" * 12, grader(task)[:12]}


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOENT])
def test_a_folder_that_takes_no_files_is_refused_with_the_way_out(task: Task, tmp_path: Path, number: int) -> None:
    def refused() -> None:
        raise OSError(number, os.strerror(number), str(tmp_path))

    with pytest.raises(UserError, match="the results folder cannot be written") as told:
        writing(task, tmp_path, refused)
    assert "--set evaluation.results=DIR" in str(told.value.advice)


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module of the user's own with a function that judges, a way of evaluating, and a prover."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "own_of_results.py"
    path.write_text(
        "from mrt_hpc.modes.base import Direct\n\n\n"
        "def same(answer: str, gold: str) -> bool:\n    return answer == gold\n\n\n"
        "class Own(Direct):\n    type: str\n"
    )
    yield path
    sys.modules.pop("own_of_results", None)


def test_another_rule_of_extraction_is_another_grader() -> None:
    """It finds other answers in the same samples, so that they have to be judged again."""
    rules = [SmallWorldProblems(extraction=rule) for rule in (None, "after_thought", "any_box", "last_mathematics")]
    digests = [grader_digest(verifier_of(problems, Grading()), 5.0, 1.0) for problems in rules]
    assert digests[0] == digests[1], "the default"
    assert len(set(digests)) == 3


def test_a_changed_function_of_the_user_is_another_grader(own_module: Path) -> None:
    problems = SmallWorldProblems.model_validate({"verifier": "own_of_results:same"})
    before = grader_digest(verifier_of(problems, Grading()), 5.0, 1.0)
    assert grader_digest(verifier_of(problems, Grading()), 5.0, 1.0) == before
    documented = own_module.read_text().replace(
        "    return answer ==", '    """Whether both are the same."""\n    return answer =='
    )
    own_module.write_text(f'"""A module."""  # a comment\n\n{documented}')
    assert grader_digest(verifier_of(problems, Grading()), 5.0, 1.0) == before, "docstrings and comments are no code"
    own_module.write_text(documented.replace("answer == gold", "answer.lower() == gold"))
    assert grader_digest(verifier_of(problems, Grading()), 5.0, 1.0) != before


def test_a_changed_way_of_evaluating_of_the_user_is_another_fingerprint(task: Task, own_module: Path) -> None:
    (benchmark,) = task.experiment.evaluation.benchmarks
    own = benchmark.model_validate({**benchmark.model_dump(), "mode": {"type": "own_of_results:Own"}})
    before = fingerprint_of(task.layout, task.experiment, own, "w")
    assert before == fingerprint_of(task.layout, task.experiment, own, "w")
    own_module.write_text(own_module.read_text() + "\n    extra: int = 1\n")
    assert fingerprint_of(task.layout, task.experiment, own, "w").digest != before.digest
    assert fingerprint_of(task.layout, task.experiment, benchmark, "w").mode == {}
