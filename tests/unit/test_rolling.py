"""Rounds that overlap: the next one begins when the last group of the one before has a place."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest

from mrt_hpc.errors import UserError
from mrt_hpc.roles.sampling import round_sampler
from mrt_hpc.roles.sampling.round_sampler import RollingSampler, Round

if TYPE_CHECKING:
    from collections.abc import Callable

    from mrt_hpc.roles.sampling.round_sampler import RoundSampler


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_sampler, "LONGEST_LOOK_S", 0.01)


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


def a_round(iteration: int) -> Round:
    return Round(iteration, 0, [0], cast("Any", None), 0.0)


def rolled(
    sampled: Sampled, following: Callable[[object], Round | None], swap: Callable[[], bool] = lambda: False
) -> None:
    sampler = RollingSampler(cast("RoundSampler", sampled), following, swap)

    async def all_rounds() -> None:
        async with asyncio.timeout(20):
            await sampler.sample(a_round(0), 2.5)

    asyncio.run(all_rounds())


def test_a_round_begins_while_the_one_before_is_sampled() -> None:
    sampled, left = Sampled(), [1, 2]

    def following(_: object) -> Round | None:
        if not left:  # looked for again at intervals, until the last round has ended
            for end in sampled.ends.values():
                end.set()
            return None
        return a_round(left.pop(0))

    rolled(sampled, following)
    begins = [f"begin {i} ({s} s of loading)" for i, s in ((0, "2.5"), (1, "0"), (2, "0"))]
    assert sampled.told[:3] == begins
    assert sorted(sampled.told[3:]) == ["end 0", "end 1", "end 2"]


def test_newer_weights_are_loaded_while_rounds_are_sampled_and_make_others_possible() -> None:
    sampled, held = Sampled(), [0]

    def swap() -> bool:
        held[0] += bool(sampled.told)
        return bool(sampled.told)

    def following(_: object) -> Round | None:
        if held[0] and len(sampled.told) == 1:
            return a_round(1)
        if len(sampled.told) > 1:
            for end in sampled.ends.values():
                end.set()
        return None

    rolled(sampled, following, swap)
    assert sampled.told[1].startswith("begin 1"), "it could begin only with newer weights"


def test_the_first_failure_ends_all() -> None:
    sampled = Sampled(fails=0)

    def following(_: object) -> Round | None:
        if len(sampled.told) == 1:
            return a_round(1)
        sampled.ends[0].set()
        return None

    with pytest.raises(UserError, match="the server is gone"):
        rolled(sampled, following)
    assert "end 1" not in sampled.told


def test_weights_that_cannot_be_loaded_end_the_sampling() -> None:
    def swap() -> bool:
        raise UserError("the vLLM server refused")

    with pytest.raises(UserError, match="refused"):
        rolled(Sampled(), lambda _: None, swap)
