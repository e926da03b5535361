"""Who samples what: how the groups of an iteration are shared out, also among another number of tasks than before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mrt_hpc.attempt.entry import load_task
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.sampling.round_sampler import GroupPlace, NeedWatch, NotNeededError, Round, Rounds
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.groups import Sampled, commit_group
from mrt_hpc.run.records import GroupStatistics
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task
from mrt_hpc.run.weights import publish
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from mrt_hpc.run.layout import RunLayout

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
GROUPS, ITERATIONS = 10, 3
TRAINER, INFERENCE = "segment-000.trainer", "segment-000.inference"
NOTHING = GroupStatistics(
    rollouts=0, branches=0, rollout_tokens=0, branch_tokens=0, prompt_tokens=0, cached_tokens=0, prefilled_tokens=0,
    seconds={},
)  # fmt: skip


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    changes = {
        "sampling.problems_per_iteration": GROUPS,
        "schedule.iterations": ITERATIONS,
        "schedule.iterations_per_job": ITERATIONS,
        "schedule.max_staleness": 1,
        "resources.inference.tasks": 4,
    }
    recipe = load_recipe(QUICKSTART, tuple(f"{field}={value}" for field, value in changes.items()))
    layout = create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite()))
    publish_version(layout, 0)
    say(layout, TRAINER, 0, TaskState.RUNNING)
    return layout


def publish_version(layout: RunLayout, version: int) -> None:
    publish(layout, version, lambda directory: (directory / "model.safetensors").touch())


def say(layout: RunLayout, job: str, index: int, state: TaskState) -> None:
    """The state of a task; one that runs has a heart that has just begun to beat."""
    write_task(layout, job, index, TaskRecord(state, attempt=f"a{index}"))
    write_json(layout.heart(job, index), {"attempt": f"a{index}", "beat": 1})


def complete(layout: RunLayout, iteration: int, *positions: int) -> None:
    for position in positions:
        commit_group(layout.group(iteration, position), Sampled(rollouts=[], statistics=NOTHING))


def rounds(layout: RunLayout, index: int) -> Rounds:
    return Rounds(load_task(layout, INFERENCE, index, Placement(0, 1, 0, f"a{index}")), problems=1000)


def found(layout: RunLayout, index: int) -> Round:
    work = rounds(layout, index).awaited()
    assert work is not None
    return work


@pytest.mark.parametrize("at_work", [(0,), (0, 2), (0, 1, 2, 3)])
def test_every_missing_group_has_one_taker_among_those_at_work(layout: RunLayout, at_work: tuple[int, ...]) -> None:
    complete(layout, 0, 3, 7)
    for index in range(4):
        say(layout, INFERENCE, index, TaskState.RUNNING if index in at_work else TaskState.STOPPED)
    shares = [found(layout, index).positions for index in at_work]
    assert sorted(p for share in shares for p in share) == [p for p in range(GROUPS) if p not in (3, 7)]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_what_others_hold_is_not_offered_until_they_are_lost(layout: RunLayout) -> None:
    say(layout, INFERENCE, 0, TaskState.RUNNING)
    say(layout, INFERENCE, 1, TaskState.RUNNING)
    held = found(layout, 0)
    assert all(held.leases.claim(position) for position in held.positions)
    assert set(found(layout, 1).positions).isdisjoint(held.positions)
    layout.heart(INFERENCE, 0).unlink()
    say_stopped = TaskRecord(TaskState.STOPPED, attempt="a0")
    write_task(layout, INFERENCE, 0, say_stopped)
    assert found(layout, 1).positions == list(range(GROUPS))


def test_work_goes_no_further_ahead_than_the_staleness_limit(layout: RunLayout) -> None:
    complete(layout, 0, *range(GROUPS))
    assert found(layout, 0).iteration == 1
    complete(layout, 1, *range(GROUPS))
    assert rounds(layout, 0)._look() is None, "the trainer may bring the next weights version"
    publish_version(layout, 1)
    assert (found(layout, 0).iteration, found(layout, 0).version) == (2, 1)


def test_what_follows_depends_on_the_weights_that_the_server_holds(layout: RunLayout) -> None:
    """Not on the newest published ones, which it may not have loaded yet."""
    complete(layout, 0, *range(GROUPS))
    publish_version(layout, 1)
    complete(layout, 1, *range(GROUPS))
    assert rounds(layout, 0).following(0, sampling=()) is None
    work = rounds(layout, 0).following(1, sampling=())
    assert work is not None
    assert (work.iteration, work.version) == (2, 1)


def test_a_task_does_not_begin_once_more_what_it_is_sampling(layout: RunLayout) -> None:
    """It could: the lease of an attempt that was interrupted is its own."""
    complete(layout, 0, 0)
    held = found(layout, 0)
    assert all(held.leases.claim(position) for position in (1, 2, 3))
    work = rounds(layout, 0).following(0, sampling={GroupPlace(0, 1), GroupPlace(0, 3)})
    assert work is not None
    assert work.positions == [2, 4, 5, 6, 7, 8, 9]
    nothing_left = {GroupPlace(iteration, position) for iteration in range(2) for position in range(GROUPS)}
    assert rounds(layout, 0).following(0, nothing_left) is None


def test_inference_ends_when_the_segment_is_trained(layout: RunLayout) -> None:
    publish_version(layout, ITERATIONS)
    assert rounds(layout, 0)._look() == (None,), "at once, though the trainer still runs"
    assert rounds(layout, 0).awaited() is None


def test_a_server_that_is_starting_is_given_up_when_the_segment_is_trained(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrt_hpc.roles.sampling.round_sampler.LOOK_WHILE_STARTING_S", 0.0)
    watch = NeedWatch(rounds(layout, 0))
    watch.look()
    publish_version(layout, ITERATIONS)
    with pytest.raises(NotNeededError):
        watch.look()


def test_inference_ends_when_all_is_sampled_and_the_trainer_does_not_run(layout: RunLayout) -> None:
    for iteration in range(ITERATIONS):
        complete(layout, iteration, *range(GROUPS))
    assert rounds(layout, 0)._look() is None, "the trainer may find a group damaged"
    say(layout, TRAINER, 0, TaskState.STOPPED)
    assert rounds(layout, 0).awaited() is None


def test_inference_ends_soon_after_the_trainer_has_failed(layout: RunLayout) -> None:
    assert found(layout, 0).positions
    say(layout, TRAINER, 0, TaskState.FAILED)
    with pytest.raises(UserError, match=f"{TRAINER} has failed") as caught:
        rounds(layout, 0).awaited()
    assert caught.value.exit_code is ExitCode.FATAL
