"""The servers of inference and evaluation tasks, their own ones or one that the recipe names: settings, start, watch,
and sleep while the trainer has the GPUs.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from mrt_hpc.errors import UserError
from mrt_hpc.inference.attached_server import AGAIN, AttachedServer
from mrt_hpc.inference.client import GenerationClient, connect
from mrt_hpc.inference.compiled_code import kept_by_all_runs
from mrt_hpc.inference.sampler import Generator
from mrt_hpc.inference.server import VllmServer
from mrt_hpc.inference.server_control import Address, Server, ServerControl, Servers
from mrt_hpc.inference.server_pool import ServerPool, spread_over
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
    """Lets the servers sleep, and wakes them. A task that has its GPUs for itself never rests."""

    turn: Turn
    servers: Sequence[Server]
    _asleep: bool = field(default=False, init=False)

    def begin(self) -> None:
        """Free the memory of the GPUs, and then give the turn to the trainer; does nothing without the turn.

        Raises:
            UserError: a server does not answer.
        """
        if self.turn.is_shared and self.turn.is_mine:
            for server in self.servers:
                server.sleep()
            self._asleep = True
            self.turn.pass_on()

    def end(self) -> None:
        """Wake the servers, after the turn was taken.

        Raises:
            UserError: a server does not answer.
        """
        if self._asleep:
            for server in self.servers:
                server.wake_up()
            self._asleep = False


# The settings of a task's own servers: how its GPUs, cores and memory are divided among them.


def layout_of(task: Task) -> ServerLayout:
    """How the task's GPUs are divided among its own servers."""
    resources = task.job.resources
    return ServerLayout.of(task.experiment.serving, resources.gpus // resources.nodes, resources.nodes)


def gpus_of(task: Task, number: int) -> tuple[str, ...]:
    """The GPUs of one of a task's servers, as CUDA names them; none where it is the only one and takes those that the
    task sees.

    Raises:
        UserError: the task sees fewer than its servers need.
    """
    layout = layout_of(task)
    if spans_nodes(task) or not task.job.resources.gpus:
        return ()
    seen = seen_gpus(layout.servers * layout.tensor_parallel)
    first = number * layout.tensor_parallel
    return () if layout.servers == 1 else tuple(seen[first : first + layout.tensor_parallel])


def _threads(task: Task) -> int:
    """The number of the task's cores, unless its environment sets OMP_NUM_THREADS: the site decides there."""
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(threads) if threads.isdecimal() else task.job.resources.cpus_per_rank


LOOK_EVERY_S = 0.2
"""The time between two looks at the counters of a server that has not sampled yet."""


def record_started(task: Task, servers: Servers, version: int, seconds: float) -> None:
    """Record that servers answer.

    Args:
        task: whose.
        servers: of one model.
        version: the number of their weights.
        seconds: from when they were given the model to their answer.
    """
    for server in servers.each:
        task.events.emit(EventKind.SERVER_STARTED, version=version, server_pid=server.pid, seconds=seconds)
    log.info("%d vLLM server(s) answer after %.1f s", len(servers.each), seconds)


async def record_first_token(task: Task, server: Server, client: GenerationClient) -> None:
    """Record, once in an attempt, that its first token has come; returns then.

    The counters of the server show it while the client has work: samples arrive whole, and a long one arrives long
    after its first token.
    """
    before = 0 if server.pid is not None else await _tokens_of(server)  # what runs already
    try:
        while not task.events.has_emitted(EventKind.FIRST_TOKEN):
            await asyncio.sleep(LOOK_EVERY_S)
            if client.unfinished and await _tokens_of(server) > before:
                _record_first_token(task)
    finally:
        if client.generated_tokens:  # all work ended between two looks
            _record_first_token(task)


async def _tokens_of(server: Server) -> int:
    """The tokens that a server has read and generated; 0 while it does not answer."""
    done: int | None = await asyncio.to_thread(server.control.tokens_done)
    return done or 0


def _record_first_token(task: Task) -> None:
    if not task.events.has_emitted(EventKind.FIRST_TOKEN):  # another server of the task may have been first
        task.events.emit(EventKind.FIRST_TOKEN, seconds=task.age_s)
        log.info("the first token came %.1f s after the attempt began", task.age_s)


@dataclass(frozen=True)
class OwnServers:
    """A task's own vLLM servers of one model, with the key of the run."""

    task: Task
    common_seeds: bool = False
    """Whether samples of equal seeds have to share their random numbers."""
    share: float = 1.0
    """The share of the memory for serving and of the task's cores that they take."""
    dtype: NumberFormat | None = None
    """Their number format; None takes that of ``serving``."""
    name: str = "vllm"
    """The name of their logs."""
    _begun: list[ServerProcess] = field(default_factory=list, init=False, repr=False)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Begin processes that load vLLM while the task verifies the weights and reads the tokenizer. :meth:`running`
        takes them; those that it has not taken end with the block. Servers that span nodes load nothing here.
        """
        try:
            for number, log in enumerate(self._logs if not spans_nodes(self.task) else ()):
                self._begun.append(ServerProcess.begun_early(self.settings(number), self._key, log))
            yield
        finally:
            self.give_up()

    def give_up(self) -> None:
        """End the processes that load vLLM already."""
        while self._begun:
            self._begun.pop().give_up()

    @contextmanager
    def running(
        self, weights: Weights, max_model_len: int, while_starting: Callable[[], None] | None = None
    ) -> Iterator[Servers]:
        """Serve a model for the length of the block.

        Args:
            weights: what they start with.
            max_model_len: tokens of the longest sequence.
            while_starting: called again and again until they answer; raises when they are not needed any more.
        """
        logs, key = self._logs, self._key
        settings = [self.settings(number, weights.directory, max_model_len) for number in range(len(logs))]
        made = [
            VllmServer(own, log, weights.version, key, while_starting, self._begun.pop(0) if self._begun else None)
            for own, log in zip(settings, logs, strict=True)
        ]
        began = time.monotonic()
        with made[0] if len(made) == 1 else ServerPool(tuple(made)) as servers:
            record_started(self.task, servers, weights.version, time.monotonic() - began)
            yield servers

    def settings(self, number: int, model_dir: Path = Path(), max_model_len: int = 0) -> ServerSettings:
        """The settings of one of them; without model and length, as long as these are not known."""
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
            compiled_code=kept_by_all_runs() or self.task.layout.compiled_code,
        )

    @property
    def _logs(self) -> list[Path]:
        count = layout_of(self.task).servers
        return [self.task.log(self.name if count == 1 else f"{self.name}-{number}") for number in range(count)]

    @property
    def _key(self) -> str:
        return (self.task.layout.secrets / "server_key").read_text()


def room_of(task: Task, servers: Servers) -> asyncio.Semaphore:
    """One place for each trace that the servers of a task sample at a time."""
    return asyncio.Semaphore(task.experiment.serving.max_concurrent_sequences * len(servers.each))


@contextmanager
def policy_server(
    own: OwnServers, weights: Weights, max_model_len: int, while_starting: Callable[[], None]
) -> Iterator[Servers]:
    """The servers of the inference role: the one that the recipe names, or this task's own ones.

    Args:
        own: the task's own ones.
        weights: what they have to hold first.
        max_model_len: see :meth:`OwnServers.running`.
        while_starting: see :meth:`OwnServers.running`.

    Raises:
        UserError: the server that the recipe names does not answer, or was started with settings that do not fit.
    """
    task, serving = own.task, own.task.experiment.serving
    if serving.attach is None:
        with own.running(weights, max_model_len, while_starting) as server:
            yield server
        return
    address, key = Address(serving.attach.address), read_key(Path(serving.attach.key_file))
    control = ServerControl(address, key, serving.attach.address, AGAIN)
    attached = AttachedServer(
        control=control,
        model_dir=weights.directory,
        weights_version=weights.version,
        max_model_len=max_model_len,
        dtype=serving.dtype,
        common_seeds=own.common_seeds,
        read_deadline_s=serving.start_limit_s,
        pause_deadline_s=serving.stall_limit_s,
        while_starting=while_starting,
    )
    began = time.monotonic()
    with attached as server:
        record_started(task, server, weights.version, time.monotonic() - began)
        yield server


def read_key(path: Path) -> str:
    """The key of a server that runs already.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        return path.read_text().strip()
    except OSError as error:
        raise UserError(
            f"the key of the attached vLLM server cannot be read: {error}",
            where="serving.attach.key_file",
            expected="the file that mrt-hpc serve has written",
            advice=AGAIN,
        ) from error


# Clients of a task's servers, and what watches over each server: one that dies or hangs is started again.


LOOKS_A_STALL = 5
"""The number of looks at a server's counters within the limit after which the server counts as hung."""


@asynccontextmanager
async def client_of(task: Task, servers: Servers) -> AsyncIterator[Generator]:
    """What samples through the servers for the length of the block. A server that dies or hangs is started again, while
    the others go on.
    """
    watches: list[asyncio.Task[None]] = []
    async with AsyncExitStack() as connections:
        clients = [await connections.enter_async_context(_connected(task, server, watches)) for server in servers.each]
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
        watches.append(asyncio.create_task(record_first_token(task, server, client)))
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
    says. What work there is the client knows best: the server's own count stands still with its engine.
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
