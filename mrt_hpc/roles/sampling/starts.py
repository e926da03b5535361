"""How long a task takes from its start to its first token, in its events and its log."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from mrt_hpc.run.events import EventKind

if TYPE_CHECKING:
    from mrt_hpc.inference.client import GenerationClient
    from mrt_hpc.inference.server_control import Server, Servers
    from mrt_hpc.roles.task.context import Task

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.2
"""The time between two looks at the counters of a server that has not sampled yet."""


def tell_started(task: Task, servers: Servers, version: int, seconds: float) -> None:
    """Tell that servers answer.

    Args:
        task: whose.
        servers: of one model.
        version: the number of their weights.
        seconds: from their start to their answer.
    """
    for server in servers.each:
        task.events.emit(EventKind.SERVER_STARTED, version=version, server_pid=server.pid, seconds=seconds)
    log.info("%d vLLM server(s) answer after %.1f s", len(servers.each), seconds)


async def tell_first_token(task: Task, server: Server, client: GenerationClient) -> None:
    """Tell, once in an attempt, that its first token has come; returns then.

    The counters of the server tell it while the client has work: samples arrive whole, and a long one arrives long
    after its first token.
    """
    before = 0 if server.pid is not None else await _tokens_of(server)  # what runs already
    try:
        while not task.events.has_told(EventKind.FIRST_TOKEN):
            await asyncio.sleep(LOOK_EVERY_S)
            if client.unfinished and await _tokens_of(server) > before:
                _tell(task)
    finally:
        if client.generated_tokens:  # all work ended between two looks
            _tell(task)


async def _tokens_of(server: Server) -> int:
    """The tokens that a server has read and generated; 0 while it does not answer."""
    done: int | None = await asyncio.to_thread(server.tokens_done)
    return done or 0


def _tell(task: Task) -> None:
    if not task.events.has_told(EventKind.FIRST_TOKEN):  # another server of the task may have been first
        task.events.emit(EventKind.FIRST_TOKEN, seconds=task.age_s)
        log.info("the first token came %.1f s after the attempt began", task.age_s)
