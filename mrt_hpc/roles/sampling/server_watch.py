"""Clients of a task's servers, and what watches over each server: one that dies or hangs is started again."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING

from mrt_hpc.errors import UserError
from mrt_hpc.inference.client import connect
from mrt_hpc.inference.spreading import spread_over
from mrt_hpc.roles.sampling.starts import tell_first_token
from mrt_hpc.run.events import EventKind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from mrt_hpc.inference.client import GenerationClient
    from mrt_hpc.inference.sampler import Generator
    from mrt_hpc.inference.server_control import Server, Servers
    from mrt_hpc.roles.task.context import Task

log = logging.getLogger(__name__)

LOOKS_A_STALL = 5
"""The number of looks at a server's counters within the limit after which the server counts as hung."""


@asynccontextmanager
async def client_of(task: Task, servers: Servers) -> AsyncIterator[Generator]:
    """What samples through the servers for the length of the block. A server that dies or hangs is started again, while
    the others go on.
    """
    watches: list[asyncio.Task[None]] = []
    async with AsyncExitStack() as connections:
        clients = [await connections.enter_async_context(_connected(task, one, watches)) for one in servers.each]
        try:
            yield spread_over(clients)
        finally:
            for watch in watches:
                watch.cancel()
            if task.shutdown.leaving:
                task.shutdown.announce()  # recorded before the seconds that the servers take to end
                servers.close()  # threads that wait for their answers stop waiting
            for watch in watches:
                await _ended(watch)


@asynccontextmanager
async def _connected(task: Task, server: Server, watches: list[asyncio.Task[None]]) -> AsyncIterator[GenerationClient]:
    """A client of one server; what watches the server is added to ``watches``."""
    limit_s = task.experiment.serving.stall_limit_s

    def started_again() -> None:
        task.events.emit(EventKind.SERVER_RESTARTED, version=server.weights_version, server_pid=server.pid)

    async def revive() -> None:
        if await asyncio.to_thread(server.restart_if_dead):
            started_again()

    async def restart() -> None:
        log.warning("the server has done nothing for %g s and is started again", limit_s)
        await asyncio.to_thread(server.restart)
        started_again()

    control = server.control
    connected = connect(control.address, control.key, revive=revive, where=control.where, advice=control.advice)
    async with connected as client:
        watches.append(asyncio.create_task(restart_when_hung(server, client, limit_s, restart)))
        watches.append(asyncio.create_task(tell_first_token(task, server, client)))
        yield client


async def _ended(watch: asyncio.Task[None]) -> None:
    """Wait for the end of a cancelled task."""
    with suppress(asyncio.CancelledError):
        await watch


async def restart_when_hung(
    server: Server, client: GenerationClient, limit_s: float, restart: Callable[[], Awaitable[None]]
) -> None:
    """Look at the counters of a server until cancelled, and restart the server when they have not changed while it had
    work. A restart that fails is tried again; the client raises its error to what waits for samples.

    A hung server may still answer, and one that answers nothing for a while may be busy: only work that does not go on
    tells. What work there is the client knows best: the server's own count stands still with its engine.
    """
    last: int | None = None  # a round that ends before the first look asks nothing
    since = time.monotonic()
    while True:
        await asyncio.sleep(limit_s / LOOKS_A_STALL)
        now = await asyncio.to_thread(server.tokens_done)
        if not client.unfinished or server.is_loading or (now is not None and now != last):
            last, since = now, time.monotonic()
        elif time.monotonic() - since > limit_s:
            try:
                await restart()
            except (UserError, OSError) as error:
                log.warning("the server could not be started again: %s", error)
            last, since = await asyncio.to_thread(server.tokens_done), time.monotonic()
