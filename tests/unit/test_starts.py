"""A task tells when its server answers and when its first token has come, each once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from test_task_endings import task

from mrt_hpc.roles.sampling import serving
from mrt_hpc.roles.sampling.serving import tell_first_token, tell_started
from mrt_hpc.run.events import EventKind, read_events

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Counted:
    """A server whose counters take these values one after the other, and a client of it."""

    counts: list[int | None]
    pid: int | None = 7
    unfinished: int = 1
    generated_tokens: int = 0
    asked: int = field(default=0, init=False)

    @property
    def each(self) -> tuple[Counted]:
        return (self,)

    def tokens_done(self) -> int | None:
        self.asked += 1
        return self.counts.pop(0)


def told(one: Any, server: Any, client: Any) -> list[float]:
    """The seconds of the first token, as the events tell them after a while."""

    async def watched() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(5 if server.counts else 0.05):
                await tell_first_token(one, server, client)

    asyncio.run(watched())
    return [event["seconds"] for event in read_events(one.layout.events, EventKind.FIRST_TOKEN)]


@pytest.fixture(autouse=True)
def looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "LOOK_EVERY_S", 0.001)


def test_a_server_that_answers_is_told_with_the_seconds_it_took(tmp_path: Path) -> None:
    one: Any = task(tmp_path)
    tell_started(one, Counted([]), 3, 1.5)  # type: ignore[arg-type]
    (event,) = read_events(one.layout.events, EventKind.SERVER_STARTED)
    assert (event["version"], event["server_pid"], event["seconds"]) == (3, 7, 1.5)


@pytest.mark.parametrize(
    ("counts", "pid"),
    [([0, None, 0, 4], 7), ([100, 100, None, 101], None)],
    ids=["a server of the task's own", "one that has worked before"],
)
def test_the_first_token_is_told_when_the_counters_move(tmp_path: Path, counts: list[int | None], pid: int) -> None:
    one: Any = task(tmp_path)
    server = Counted(counts, pid)
    (seconds,) = told(one, server, server)
    assert not server.counts, "it was told before the counters had moved"
    assert 0 < seconds <= one.age_s


def test_it_is_told_once(tmp_path: Path) -> None:
    one: Any = task(tmp_path)
    told(one, Counted([5]), first := Counted([5]))
    assert len(told(one, second := Counted([9]), first)) == 1
    assert second.asked == 0


def test_a_server_without_work_is_left_alone(tmp_path: Path) -> None:
    idle = Counted([], unfinished=0)
    assert told(task(tmp_path), idle, idle) == []
    assert idle.asked == 0


def test_a_round_that_ends_between_two_looks_is_told(tmp_path: Path) -> None:
    over = Counted([], unfinished=0, generated_tokens=3)
    assert len(told(task(tmp_path), over, over)) == 1
