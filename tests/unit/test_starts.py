"""A task writes when its server answers and when its first token has come, each once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from run_of import read_events
from test_task_endings import task

from mrt_hpc.roles.sampling import serving
from mrt_hpc.roles.sampling.serving import record_first_token
from mrt_hpc.run.events import EventKind


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

    @property
    def control(self) -> Counted:
        return self

    def tokens_done(self) -> int | None:
        self.asked += 1
        return self.counts.pop(0)


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(serving, "LOOK_EVERY_S", 0.001)
    return task(tmp_path)


def first_tokens(one: Any, server: Any, client: Any) -> list[float]:
    async def watched() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(5 if server.counts else 0.05):
                await record_first_token(one, server, client)

    asyncio.run(watched())
    return [event["seconds"] for event in read_events(one.layout.events, EventKind.FIRST_TOKEN)]


@pytest.mark.parametrize(("counts", "pid"), [([0, None, 0, 4], 7), ([100, 100, None, 101], None)])
def test_the_first_token_is_written_once_when_the_counters_move(one: Any, counts: list[int | None], pid: int) -> None:
    """Also where the server is not the task's own and has worked before."""
    server = Counted(counts, pid)
    (seconds,) = first_tokens(one, server, server)
    assert not server.counts, "it was written before the counters had moved"
    assert 0 < seconds <= one.age_s
    assert len(first_tokens(one, again := Counted([9]), server)) == 1
    assert again.asked == 0


@pytest.mark.parametrize(("tokens", "events"), [(0, 0), (3, 1)])
def test_a_server_without_work_is_left_alone(one: Any, tokens: int, events: int) -> None:
    """Also where a round has ended between two looks."""
    idle = Counted([], unfinished=0, generated_tokens=tokens)
    assert len(first_tokens(one, idle, idle)) == events
    assert idle.asked == 0
