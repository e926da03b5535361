"""Who samples what: how the groups of an iteration are shared out, and rounds that overlap."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
from basics import INFERENCE, TRAINER
from commands import refusal
from run_of import publish_some, run_of, say, task_of
from samples import sampled

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.roles.sampling import rolling_sampler, round_sampler
from mrt_hpc.roles.sampling.rolling_sampler import RollingSampler
from mrt_hpc.roles.sampling.round_sampler import GroupPlace, NeedWatch, NotNeededError, Round, Rounds, RoundSampler
from mrt_hpc.run.groups import commit_group
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskState

GROUPS, ITERATIONS = 10, 3


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    schedule = f"schedule={{iterations: {ITERATIONS}, iterations_per_job: {ITERATIONS}, max_staleness: 1}}"
    changes = (f"sampling.problems_per_iteration={GROUPS}", schedule, "resources.inference.tasks=4")
    layout = run_of(tmp_path / "run", *changes)
    publish_some(layout, 0)
    say(layout, TRAINER, TaskState.RUNNING)
    return layout


def complete(layout: RunLayout, iteration: int, *positions: int) -> None:
    for position in positions or range(GROUPS):
        commit_group(layout.group(iteration, position), sampled())


def rounds(layout: RunLayout, index: int = 0) -> Rounds:
    return Rounds(task_of(layout, INFERENCE, index), problems=1000)


def found(layout: RunLayout, index: int = 0) -> Round:
    return cast("Round", rounds(layout, index).await_round())


@pytest.mark.parametrize("at_work", [(0,), (0, 2), (0, 1, 2, 3)])
def test_every_missing_group_has_one_taker_among_those_at_work(layout: RunLayout, at_work: tuple[int, ...]) -> None:
    complete(layout, 0, 3, 7)
    for index in range(4):
        say(layout, INFERENCE, TaskState.RUNNING if index in at_work else TaskState.STOPPED, index)
    shares = [found(layout, index).positions for index in at_work]
    assert sorted(p for share in shares for p in share) == [p for p in range(GROUPS) if p not in (3, 7)]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_what_others_hold_is_not_offered_until_they_are_lost(layout: RunLayout) -> None:
    for index in (0, 1):
        say(layout, INFERENCE, TaskState.RUNNING, index)
    held = found(layout, 0)
    assert all(held.leases.claim(position) for position in held.positions)
    assert set(found(layout, 1).positions).isdisjoint(held.positions)
    say(layout, INFERENCE, TaskState.STOPPED)
    layout.heart(INFERENCE, 0).unlink()
    assert found(layout, 1).positions == list(range(GROUPS))


def test_work_goes_no_further_ahead_than_the_staleness_limit(layout: RunLayout) -> None:
    complete(layout, 0)
    assert found(layout).iteration == 1
    complete(layout, 1)
    assert rounds(layout)._look() is None, "the trainer may bring the next weights version"
    publish_some(layout, 1)
    assert (found(layout).iteration, found(layout).version) == (2, 1)
    assert rounds(layout).next_round(0, sampling=()) is None, "the server has not loaded it yet"
    work = rounds(layout).next_round(1, sampling=())
    assert work and (work.iteration, work.version) == (2, 1)


def test_a_task_does_not_begin_once_more_what_it_is_sampling(layout: RunLayout) -> None:
    """It could: the lease of an attempt that was interrupted is its own."""
    complete(layout, 0, 0)
    held = found(layout)
    assert all(held.leases.claim(position) for position in (1, 2, 3))
    work = rounds(layout).next_round(0, sampling={GroupPlace(0, 1), GroupPlace(0, 3)})
    assert work and work.positions == [2, 4, 5, 6, 7, 8, 9]
    nothing_left = {GroupPlace(iteration, position) for iteration in range(2) for position in range(GROUPS)}
    assert rounds(layout).next_round(0, nothing_left) is None


def test_inference_ends_when_the_segment_is_trained(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_sampler, "LOOK_WHILE_STARTING_S", 0.0)
    watch = NeedWatch(rounds(layout))
    watch.look()
    publish_some(layout, ITERATIONS)
    assert rounds(layout)._look() == (None,), "at once, though the trainer still runs"
    assert rounds(layout).await_round() is None
    with pytest.raises(NotNeededError):  # a server that is starting is given up
        watch.look()


def test_inference_ends_soon_after_the_trainer_has_failed_or_when_all_is_sampled_without_it(layout: RunLayout) -> None:
    assert found(layout).positions
    say(layout, TRAINER, TaskState.FAILED)
    refused = refusal(rounds(layout).await_round)
    assert (refused.exit_code, TRAINER in refused.message()) == (ExitCode.FATAL, True)
    say(layout, TRAINER, TaskState.RUNNING)
    for iteration in range(ITERATIONS):
        complete(layout, iteration)
    assert rounds(layout)._look() is None, "the trainer may find a group damaged"
    say(layout, TRAINER, TaskState.STOPPED)
    assert rounds(layout).await_round() is None


@dataclass
class Sampled:
    """Stands where a sampler stands: each round is claimed at once, and ends when it is told to."""

    ends: dict[int, asyncio.Event] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    fails: int | None = None
    sampling: frozenset[object] = frozenset()

    async def sample(self, work: Round, loading_s: float, all_claimed: asyncio.Event) -> None:
        self.told.append(f"begin {work.iteration} ({loading_s:g} s of loading)")
        all_claimed.set()
        await self.ends.setdefault(work.iteration, asyncio.Event()).wait()
        if work.iteration == self.fails:
            raise UserError("the server is gone")
        self.told.append(f"end {work.iteration}")

    def end_all(self) -> None:
        for end in self.ends.values():
            end.set()


def a_round(iteration: int) -> Round:
    return Round(iteration, 0, [0], cast("Any", None), 0.0)


def rolled(sampled: Sampled, following: Callable[[], Round | None], swap: Callable[[], bool] = lambda: False) -> None:
    sampler = RollingSampler(cast("RoundSampler", sampled), lambda _: following(), swap)
    with pytest.MonkeyPatch.context() as quick:
        quick.setattr(rolling_sampler, "LONGEST_LOOK_S", 0.01)
        asyncio.run(asyncio.wait_for(sampler.sample(a_round(0), 2.5), timeout=20))


def test_a_round_begins_while_the_one_before_is_sampled() -> None:
    sampled, left = Sampled(), [1, 2]

    def following() -> Round | None:
        if left:
            return a_round(left.pop(0))
        sampled.end_all()  # looked for again at intervals, until the last round has ended
        return None

    rolled(sampled, following)
    assert sampled.told[:3] == [f"begin {i} ({s} s of loading)" for i, s in ((0, "2.5"), (1, "0"), (2, "0"))]
    assert sorted(sampled.told[3:]) == ["end 0", "end 1", "end 2"]


def test_newer_weights_are_loaded_while_rounds_are_sampled_and_make_others_possible() -> None:
    sampled, held = Sampled(), [0]

    def swap() -> bool:
        held[0] += bool(sampled.told)
        return bool(sampled.told)

    def following() -> Round | None:
        if held[0] and len(sampled.told) == 1:
            return a_round(1)
        if len(sampled.told) > 1:
            sampled.end_all()
        return None

    rolled(sampled, following, swap)
    assert sampled.told[1].startswith("begin 1"), "it could begin only with newer weights"


def test_the_first_failure_ends_all() -> None:
    sampled = Sampled(fails=0)

    def following() -> Round | None:
        if len(sampled.told) == 1:
            return a_round(1)
        sampled.ends[0].set()
        return None

    assert "the server is gone" in str(refusal(rolled, sampled, following))
    assert "end 1" not in sampled.told
    with pytest.raises(UserError, match="refused"):  # weights that cannot be loaded
        rolled(Sampled(), lambda: None, Mock(side_effect=UserError("the vLLM server refused")))
