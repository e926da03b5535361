"""Several servers of one task start, load and end together, and requests of one problem stay on one of them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from commands import refusal

from mrt_hpc.errors import UserError
from mrt_hpc.inference.client import Completion
from mrt_hpc.inference.protocol import Request, SamplingSettings
from mrt_hpc.inference.server import VllmServer
from mrt_hpc.inference.server_control import ServerControl
from mrt_hpc.inference.server_pool import MOST_FAMILIES, ServerPool, SpreadGenerator, spread_over
from mrt_hpc.inference.server_start import ServerSettings
from mrt_hpc.recipe.sections import WeightSwap
from mrt_hpc.run.retries import wait_until

DEADLINE_S = 20.0


@dataclass
class ScriptedServer:
    starting: Callable[[], None] = lambda: None
    loading: Callable[[], None] = lambda: None
    seconds: float = 1.0
    while_starting: None = None
    closed: threading.Event = field(default_factory=threading.Event)
    version: int = 0

    def start(self, _: object) -> None:
        self.starting()

    def load_weights(self, _: Path, version: int, __: WeightSwap) -> dict[str, Any]:
        self.loading()
        self.version = version
        return {"seconds": self.seconds}

    def close(self) -> None:
        self.closed.set()

    def works_until_closed(self) -> None:
        assert self.closed.wait(DEADLINE_S)
        raise UserError("the vLLM server was closed")


def pool_of(*servers: ScriptedServer) -> ServerPool:
    return ServerPool(cast("tuple[VllmServer, ...]", servers))


def together(count: int) -> Callable[[], None]:
    barrier = threading.Barrier(count)
    return lambda: cast("None", barrier.wait(DEADLINE_S))


def failing() -> None:
    raise UserError("refused")


def test_servers_start_and_load_at_the_same_time(tmp_path: Path) -> None:
    start, load = together(3), together(3)
    servers = [ScriptedServer(start, load, seconds) for seconds in (1.0, 3.0, 2.0)]
    with pool_of(*servers) as pool:
        assert (pool.load_weights(tmp_path, 4), [one.version for one in servers]) == ({"seconds": 3.0}, [4, 4, 4])
        assert not any(one.closed.is_set() for one in servers)
    assert all(one.closed.is_set() for one in servers)


def test_a_server_that_fails_to_start_ends_those_that_are_still_starting() -> None:
    slow = ScriptedServer()
    slow.starting = slow.works_until_closed
    with pytest.raises(UserError, match="refused"), pool_of(slow, ScriptedServer(failing)):
        pytest.fail("one of them has not started")
    assert slow.closed.is_set()


def test_a_load_that_fails_on_one_server_is_told_when_all_have_ended_theirs(tmp_path: Path) -> None:
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        failing()

    other = ScriptedServer(loading=lambda: cast("None", failed.wait(DEADLINE_S)))
    with pool_of(ScriptedServer(loading=fail), other) as pool:
        assert "refused" in str(refusal(pool.load_weights, tmp_path, 4))
        assert other.version == 4


def test_a_signal_during_a_load_ends_the_servers_and_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, slow = threading.Event(), ScriptedServer()

    def told(*_: object) -> None:
        wait_until(begun.is_set, reason="the load to begin", deadline_s=DEADLINE_S)
        raise KeyboardInterrupt

    def load() -> None:
        begun.set()
        slow.works_until_closed()

    slow.loading = load
    with pool_of(slow, ScriptedServer()) as pool:
        monkeypatch.setattr("mrt_hpc.inference.server_pool.wait", told)
        with pytest.raises(KeyboardInterrupt):
            pool.load_weights(tmp_path, 4)
    assert slow.closed.is_set()


@dataclass
class Held:
    """A generator that answers each sample when it is told to, and notes what it was asked."""

    asked: list[str] = field(default_factory=list)
    answers: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    async def stream(self, requests: Sequence[Request]) -> AsyncIterator[Completion]:
        self.asked += [request.family for request in requests]
        for request in requests:
            for seed in request.seeds:
                await self.answers.acquire()
                yield cast("Completion", seed)


async def asked_for(generator: SpreadGenerator, family: str, samples: int = 1) -> asyncio.Task[int]:
    request = Request([1], list(range(samples)), SamplingSettings(1), family=family)

    async def count() -> int:
        return len([c async for c in generator.stream([request])])

    task = asyncio.create_task(count())
    await asyncio.sleep(0)
    return task


def test_a_problem_goes_where_least_is_to_be_done_and_stays_there() -> None:
    async def ask() -> None:
        held = [Held(), Held()]
        generator = SpreadGenerator(tuple(held))
        work = [await asked_for(generator, family, samples) for family, samples in [("a", 4), ("b", 1), ("c", 1)]]
        assert [one.asked for one in held] == [["a"], ["b", "c"]], "b and c have less to do together than a"
        work.append(await asked_for(generator, "b", 8))
        assert held[1].asked == ["b", "c", "b"], "b stays where its prefixes are, however much is to be done there"
        assert generator.unfinished == [4, 10]
        work.append(await asked_for(generator, "d"))
        assert held[0].asked == ["a", "d"]
        for one in held * 20:
            one.answers.release()
        assert (await asyncio.gather(*work), generator.unfinished) == ([4, 1, 1, 8, 1], [0, 0])

    asyncio.run(ask())


def test_what_is_given_up_is_no_longer_counted_and_few_problems_are_remembered() -> None:
    async def ask() -> None:
        generator = SpreadGenerator((Held(), Held()))
        for number in range(MOST_FAMILIES + 5):
            task = await asked_for(generator, str(number), 4)
            assert generator.unfinished == [4, 0]
            task.cancel()
            await asyncio.wait([task])
            assert generator.unfinished == [0, 0]
        assert len(generator._server_of) == MOST_FAMILIES
        assert "0" not in generator._server_of

    asyncio.run(ask())
    only = Held()
    assert spread_over([only]) is only


class Server(VllmServer):
    def start(self, _: object = None) -> None:
        self.started_with = self.weights_version

    def _recovers(self) -> bool:
        return False


@pytest.mark.parametrize("fails", [False, True])
def test_a_restart_waits_for_the_end_of_a_load(tmp_path: Path, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    loading, go_on = threading.Event(), threading.Event()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).touch()
    server = Server(ServerSettings(tmp_path, 8), tmp_path / "log")

    def load(*_: object, swap: WeightSwap, **__: object) -> dict[str, Any]:
        assert swap is WeightSwap.KEEP
        loading.set()
        assert go_on.wait(DEADLINE_S)
        if fails:
            failing()
        return {}

    monkeypatch.setattr(ServerControl, "load", load)
    with ThreadPoolExecutor(2) as threads:
        load_ends = threads.submit(server.load_weights, tmp_path, 1, WeightSwap.KEEP)
        assert loading.wait(DEADLINE_S)
        wait_until(threads.submit(server.restart_if_dead).running, reason="the restart to begin", deadline_s=DEADLINE_S)
        assert server.is_loading
        assert not hasattr(server, "started_with")
        go_on.set()
    assert server.started_with == (0 if fails else 1), "with the weights that it held last"
    assert isinstance(load_ends.exception(), UserError) == fails
    assert not server.is_loading
