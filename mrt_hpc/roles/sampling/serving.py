"""Servers of inference and evaluation tasks: settings, start, watch, and sleep while the trainer has the GPUs."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from mrt_hpc.errors import UserError
from mrt_hpc.inference.client import GenerationClient, connect
from mrt_hpc.inference.compiled_code import shared_folder
from mrt_hpc.inference.sampler import Generator
from mrt_hpc.inference.server import VllmServer
from mrt_hpc.inference.server_pool import ServerPool, Servers, spread_over
from mrt_hpc.inference.server_start import ServerProcess, ServerSettings
from mrt_hpc.recipe.base import NumberFormat
from mrt_hpc.recipe.sections import ServerLayout
from mrt_hpc.roles.sampling.ray_cluster import seen_gpus, spans_nodes
from mrt_hpc.roles.task.context import Task
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.turns import Turn
from mrt_hpc.run.weights import Weights

log = logging.getLogger(__name__)


@dataclass
class Rest:
    """Lets servers sleep and wakes them. A task with its own GPUs never rests."""

    turn: Turn
    servers: Sequence[VllmServer]
    _asleep: bool = field(default=False, init=False)

    def begin(self) -> None:
        """Free GPU memory, then pass the turn to the trainer; nothing without the turn."""
        if self.turn.is_shared and self.turn.is_mine:
            for server in self.servers:
                server.sleep()
            self._asleep = True
            self.turn.pass_on()

    def end(self) -> None:
        """Wake the servers once the turn is taken."""
        if self._asleep:
            for server in self.servers:
                server.wake_up()
            self._asleep = False


# The settings of a task's own servers: how its GPUs, cores and memory are divided among them.


def layout_of(task: Task) -> ServerLayout:
    resources = task.job.resources
    return ServerLayout.of(task.experiment.serving, resources.gpus // resources.nodes, resources.nodes)


def gpus_of(task: Task, number: int) -> tuple[str, ...]:
    """One server's GPUs, as CUDA names them; none where a single server takes all that the task sees."""
    layout = layout_of(task)
    if spans_nodes(task) or not task.job.resources.gpus:
        return ()
    seen = seen_gpus(layout.servers * layout.tensor_parallel)
    first = number * layout.tensor_parallel
    return () if layout.servers == 1 else tuple(seen[first : first + layout.tensor_parallel])


def _threads(task: Task) -> int:
    """The task's cores, unless OMP_NUM_THREADS is set: the site decides there."""
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(threads) if threads.isdecimal() else task.job.resources.cpus_per_rank


LOOK_EVERY_S = 0.2
"""Between looks at the counters of a server that has not sampled yet."""


async def record_first_token(task: Task, server: VllmServer, client: GenerationClient) -> None:
    """Record an attempt's first token, once: the server's counters show it while the client has work, and a long sample
    arrives long after it.
    """
    try:
        while not task.events.has_emitted(EventKind.FIRST_TOKEN):
            await asyncio.sleep(LOOK_EVERY_S)
            if client.unfinished and (await asyncio.to_thread(server.control.tokens_done) or 0) > 0:
                _record_first_token(task)
    finally:
        if client.generated_tokens:  # all work ended between two looks
            _record_first_token(task)


def _record_first_token(task: Task) -> None:
    if not task.events.has_emitted(EventKind.FIRST_TOKEN):  # another server of the task may have been first
        task.events.emit(EventKind.FIRST_TOKEN, seconds=task.age_s)
        log.info("the first token came %.1f s after the attempt began", task.age_s)


@dataclass(frozen=True)
class OwnServers:
    """A task's own vLLM servers of one model, with the run's key."""

    task: Task
    common_seeds: bool = False
    """Whether samples of equal seeds must share random numbers."""
    share: float = 1.0
    """Their part of serving memory and of the task's cores."""
    dtype: NumberFormat | None = None
    """None takes that of ``serving``."""
    name: str = "vllm"
    """Of their logs."""
    _begun: list[ServerProcess] = field(default_factory=list, init=False, repr=False)

    @contextmanager
    def load_ahead(self) -> Iterator[None]:
        """Start processes that load vLLM while the task verifies weights. :meth:`serve` takes them; the rest end with
        the block. Servers across nodes load nothing here.
        """
        try:
            for number, log in enumerate(self._logs if not spans_nodes(self.task) else ()):
                self._begun.append(ServerProcess.begin_early(self.settings(number), self._key, log))
            yield
        finally:
            self.give_up()

    def give_up(self) -> None:
        while self._begun:
            self._begun.pop().give_up()

    @contextmanager
    def serve(
        self, weights: Weights, max_model_len: int, while_starting: Callable[[], None] | None = None
    ) -> Iterator[Servers]:
        """Serve a model during the block. ``max_model_len`` is in tokens; ``while_starting`` is called until the
        servers answer, and raises when they are not needed.
        """
        logs, key = self._logs, self._key
        settings = [self.settings(number, weights.directory, max_model_len) for number in range(len(logs))]
        made = [
            VllmServer(own, log, weights.version, key, while_starting, self._begun.pop(0) if self._begun else None)
            for own, log in zip(settings, logs, strict=True)
        ]
        began = time.monotonic()
        with made[0] if len(made) == 1 else ServerPool(tuple(made)) as servers:
            seconds = time.monotonic() - began
            for server in servers.each:
                started = {"version": weights.version, "server_pid": server.pid, "seconds": seconds}
                self.task.events.emit(EventKind.SERVER_STARTED, **started)
            log.info("%d vLLM server(s) answer after %.1f s", len(servers.each), seconds)
            yield servers

    def settings(self, number: int, model_dir: Path = Path(), max_model_len: int = 0) -> ServerSettings:
        recipe, resources, layout = self.task.experiment, self.task.job.resources, layout_of(self.task)
        return ServerSettings.of(
            recipe,
            layout.tensor_parallel,
            _threads(self.task) / layout.servers,
            self.share,
            model_dir=model_dir,
            max_model_len=max_model_len,
            dtype=self.dtype or recipe.serving.dtype,
            stages=layout.stages,
            over_ray=spans_nodes(self.task) and resources.gpus > 0,
            gpus=gpus_of(self.task, number),
            pause_deadline_s=recipe.serving.stall_limit_s,
            sleeps=self.task.turn.is_shared,
            noise_by_request=self.common_seeds,
            compiled_code=shared_folder() or self.task.layout.compiled_code,
        )

    @property
    def _logs(self) -> list[Path]:
        count = layout_of(self.task).servers
        return [self.task.log(self.name if count == 1 else f"{self.name}-{number}") for number in range(count)]

    @property
    def _key(self) -> str:
        return (self.task.layout.secrets / "server_key").read_text()


def room_of(task: Task, servers: Servers) -> asyncio.Semaphore:
    """One place for each trace that the task's servers sample at a time."""
    return asyncio.Semaphore(task.experiment.serving.max_concurrent_sequences * len(servers.each))


# Clients of a task's servers, and what watches over each server: one that dies or hangs is started again.


LOOKS_A_STALL = 5
"""Looks within the limit after which a server counts as hung."""


@asynccontextmanager
async def client_of(task: Task, servers: Servers) -> AsyncIterator[Generator]:
    """Samples through the servers during the block. A dead or hung server is restarted while others go on."""
    watches: list[asyncio.Task[None]] = []
    async with AsyncExitStack() as connections:
        clients = [
            await connections.enter_async_context(_connect_client(task, server, watches)) for server in servers.each
        ]
        try:
            yield spread_over(clients)
        finally:
            for watch in watches:
                watch.cancel()
            if task.shutdown.leaving:
                task.shutdown.announce()  # recorded before the seconds that the servers take to end
                servers.close()  # threads that wait for their answers stop waiting
            for watch in watches:
                with suppress(asyncio.CancelledError):
                    await watch


@asynccontextmanager
async def _connect_client(
    task: Task, server: VllmServer, watches: list[asyncio.Task[None]]
) -> AsyncIterator[GenerationClient]:
    """A client of one server; its watcher joins ``watches``."""
    limit_s = task.experiment.serving.stall_limit_s

    def record_restart() -> None:
        task.events.emit(EventKind.SERVER_RESTARTED, version=server.weights_version, server_pid=server.pid)

    async def revive() -> None:
        if await asyncio.to_thread(server.restart_if_dead):
            record_restart()

    async def restart() -> None:
        log.warning("the server has done nothing for %g s and is started again", limit_s)
        await asyncio.to_thread(server.restart)
        record_restart()

    control = server.control
    connected = connect(control.socket, control.key, revive=revive, where=control.where, advice=control.advice)
    async with connected as client:
        watches.append(asyncio.create_task(restart_when_hung(server, client, limit_s, restart)))
        watches.append(asyncio.create_task(record_first_token(task, server, client)))
        yield client


async def restart_when_hung(
    server: VllmServer, client: GenerationClient, limit_s: float, restart: Callable[[], Awaitable[None]]
) -> None:
    """Watch a server's counters until cancelled, and restart it when they stand still while it has work. A failed
    restart is repeated. The client knows the work best: a hung server's own count stops with its engine.
    """
    last: int | None = None  # a round that ends before the first look asks nothing
    since = time.monotonic()
    while True:
        await asyncio.sleep(limit_s / LOOKS_A_STALL)
        now = await asyncio.to_thread(server.control.tokens_done)
        if not client.unfinished or server.is_loading or (now is not None and now != last):
            last, since = now, time.monotonic()
        elif time.monotonic() - since > limit_s:
            try:
                await restart()
            except (UserError, OSError) as error:
                log.warning("the server could not be started again: %s", error)
            last, since = await asyncio.to_thread(server.control.tokens_done), time.monotonic()
