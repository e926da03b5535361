"""What inference and evaluation share: verified weights, a server, and a grader pool."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrt_hpc.domains.lane import Lane
from mrt_hpc.domains.pool import GraderPool
from mrt_hpc.domains.verifiers import verifier_of
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.inference.attached_server import AGAIN, AttachedServer
from mrt_hpc.inference.client import connect
from mrt_hpc.inference.server import VllmServer
from mrt_hpc.inference.server_control import Address, ServerControl
from mrt_hpc.inference.server_pool import ServerPool
from mrt_hpc.inference.server_settings import ServerSettings
from mrt_hpc.inference.spreading import spread_over
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.evaluation_recipe import EvaluationRecipe
from mrt_hpc.recipe.server_layout import ServerLayout
from mrt_hpc.roles.sampling.ray_cluster import spans_nodes
from mrt_hpc.roles.sampling.starts import tell_first_token, tell_started
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.manifest import DamagedError, verify
from mrt_hpc.run.weights import Weights, published_versions, refuse_delta
from mrt_hpc.run.weights_delta import BrokenChainError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from mrt_hpc.domains.pool import LaneMaker
    from mrt_hpc.inference.client import GenerationClient
    from mrt_hpc.inference.sampler import Generator
    from mrt_hpc.inference.server_control import Server, Servers
    from mrt_hpc.plan.jobs import Plan
    from mrt_hpc.recipe.schema import NumberFormat, ProblemSource
    from mrt_hpc.roles.sampling.local_weights import LocalWeights
    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.layout import RunLayout

log = logging.getLogger(__name__)

SEEDS = 2**32
"""The number of seeds for a server: vLLM passes its own to numpy, which takes 32 bits."""
LOOKS_A_STALL = 5
"""The number of looks at a server's counters within the limit after which the server counts as hung."""


def verified_weights(task: Task, version: int, local: LocalWeights | None = None) -> Weights:
    """A weights version whose checksums are right.

    A damaged one is set aside: the trainer publishes it again, or the first job of an evaluation on its own.

    Args:
        task: who asks.
        version: its number.
        local: puts versions together that were published as deltas; without it only whole models are taken.

    Raises:
        DamagedError: it was damaged.
        UserError: the first job published it, and only this job can make it again; or it is no whole model.
    """
    layout = task.layout
    directory, before = layout.weights_version(version), _identities(layout)
    try:
        return task.retrying(lambda: _found(layout, version, local), f"reading {directory}")
    except DamagedError as damage:
        if version == 0:
            raise UserError(
                f"weights version 0 is damaged: {damage.what}",
                where=damage.where,
                advice=f"rm -r {directory} {layout.root / 'tasks/prepare'}, and the same command again",
            ) from damage
        _set_aside_damaged(task, version, damage, before)
        raise


def _set_aside_damaged(task: Task, version: int, damage: DamagedError, before: dict[int, int]) -> None:
    """Set aside a damaged version, and what it cannot be put together of; but none that was published again.

    Args:
        task: who asked.
        version: what it asked for.
        damage: what it found.
        before: the inodes of all versions when it asked.
    """
    layout, now = task.layout, _identities(task.layout)
    damaged = damage.versions if isinstance(damage, BrokenChainError) else (version,)
    same = [v for v in damaged if v in before and now.get(v) == before[v]]
    if version in same:
        if version == task.plan.iterations:  # no trainer continues from there
            task.reopen(trainer_to(task.plan, version), f"weights version {version}, its last, was damaged")
        if isinstance(task.experiment, EvaluationRecipe):
            publish_again(task, f"model {version} was damaged")
    paths = [layout.weights_version(v) for v in same]
    task.set_aside(paths, f"weights version {version} is damaged: {damage.what} ({damage.where})")


def _found(layout: RunLayout, version: int, local: LocalWeights | None) -> Weights:
    if local is not None:
        return local.of(version)
    directory = layout.weights_version(version)
    digest = verify(directory).digest
    refuse_delta(directory)
    return Weights(version, digest, directory)


def publish_again(task: Task, why: str) -> None:
    """Have the next submission of an evaluation on its own run the first job again, which publishes all models."""
    first = [job.name for job in task.plan.jobs if job.role is Role.PREPARE]
    task.reopen([(name, 0) for name in first], why)


def _identities(layout: RunLayout) -> dict[int, int]:
    """The inodes of the published versions: that of a directory that has taken another's place differs."""
    found: dict[int, int] = {}
    for version in published_versions(layout):
        with suppress(FileNotFoundError):
            found[version] = layout.weights_version(version).stat().st_ino
    return found


def collecting_weights(task: Task, version: int) -> Weights:
    """The weights version that a collection is sampled with, verified.

    The trainer that published it has ended, and no other trains before the collection is whole: where the version is
    damaged, that one has to publish it again.

    Raises:
        UserError: it was damaged.
    """
    try:
        return verified_weights(task, version)
    except DamagedError as damage:
        if max(published_versions(task.layout), default=0) > version:
            raise UserError(
                f"weights version {version} is damaged, which a damaged collection has to be sampled with again, and "
                f"training has gone on from there: {damage.what}",
                where=damage.where,
                advice="the same submit command with another --run directory, which makes a run of its own",
            ) from damage
        task.reopen(trainer_to(task.plan, version), f"weights version {version}, which a collection needs, was damaged")
        raise UserError(
            f"weights version {version}, which a collection is sampled with, was damaged: {damage.what}",
            where=damage.where,
            advice="the same submit command again: the trainer publishes it again",
            exit_code=ExitCode.RETRYABLE,
        ) from damage


def trainer_to(plan: Plan, version: int) -> list[tuple[str, int]]:
    """The task that publishes a weights version at its end."""
    trainers = [job for job in plan.jobs if job.does(Role.TRAINER)]
    return [(job.name, 0) for job in trainers if job.end_iteration == version]


@contextmanager
def running_server(
    task: Task,
    weights: Weights,
    max_model_len: int,
    *,
    name: str = "vllm",
    share: float = 1.0,
    common_seeds: bool = False,
    dtype: NumberFormat | None = None,
    while_starting: Callable[[], None] | None = None,
) -> Iterator[Servers]:
    """This task's own vLLM servers, with the key of the run.

    Args:
        task: whose.
        weights: what it starts with.
        max_model_len: tokens of the longest sequence.
        name: of its log.
        share: of the memory for serving and of the task's cores, what this server takes.
        common_seeds: whether samples of equal seeds have to share their random numbers.
        dtype: its number format; None takes that of ``serving``.
        while_starting: called again and again until it answers; raises when it is not needed any more.
    """
    count = layout_of(task).servers
    names = [name] if count == 1 else [f"{name}-{number}" for number in range(count)]
    key = (task.layout.secrets / "server_key").read_text()
    made = [
        VllmServer(
            server_settings(
                task,
                weights.directory,
                max_model_len,
                share=share,
                common_seeds=common_seeds,
                dtype=dtype,
                number=number,
            ),
            task.log(names[number]),
            weights_version=weights.version,
            key=key,
            while_starting=while_starting,
        )
        for number in range(count)
    ]
    began = time.monotonic()
    with made[0] if count == 1 else ServerPool(tuple(made)) as servers:
        tell_started(task, servers, weights.version, time.monotonic() - began)
        yield servers


def layout_of(task: Task) -> ServerLayout:
    """How the task's GPUs are divided among its own servers."""
    resources = task.job.resources
    return ServerLayout.of(task.experiment.serving, resources.gpus // resources.nodes, resources.nodes)


def room_of(task: Task, servers: Servers) -> asyncio.Semaphore:
    """One place for each trace that the servers of a task sample at a time."""
    return asyncio.Semaphore(task.experiment.serving.max_concurrent_sequences * len(servers.each))


@contextmanager
def policy_server(
    task: Task,
    weights: Weights,
    max_model_len: int,
    *,
    common_seeds: bool,
    while_starting: Callable[[], None],
    **own: Any,
) -> Iterator[Servers]:
    """The servers of the inference role: the one that the recipe names, or this task's own ones.

    Args:
        task: whose.
        weights: what it has to hold first.
        max_model_len: tokens of the longest sequence.
        common_seeds: see :func:`running_server`.
        while_starting: see :func:`running_server`.
        own: further arguments of :func:`running_server`.

    Raises:
        UserError: the server that the recipe names does not answer, or was started with settings that do not fit.
    """
    serving = task.experiment.serving
    if serving.attach is None:
        with running_server(
            task, weights, max_model_len, common_seeds=common_seeds, while_starting=while_starting, **own
        ) as server:
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
        common_seeds=common_seeds,
        read_deadline_s=serving.start_limit_s,
        pause_deadline_s=serving.stall_limit_s,
        while_starting=while_starting,
    )
    began = time.monotonic()
    with attached as server:
        tell_started(task, server, weights.version, time.monotonic() - began)
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


def server_settings(
    task: Task,
    model_dir: Path,
    max_model_len: int,
    *,
    share: float,
    common_seeds: bool,
    dtype: NumberFormat | None = None,
    number: int = 0,
) -> ServerSettings:
    """The settings of one of a task's servers.

    Args:
        task: whose; see :func:`running_server` for all other arguments.
        number: of the server among those of the task.
    """
    serving, layout = task.experiment.serving, layout_of(task)
    return ServerSettings(
        model_dir=model_dir,
        max_model_len=max_model_len,
        dtype=dtype or serving.dtype,
        max_num_seqs=serving.max_concurrent_sequences,
        tensor_parallel=layout.tensor_parallel,
        stages=layout.stages,
        over_ray=spans_nodes(task) and task.job.resources.gpus > 0,
        gpus=gpus_of(task, number),
        gpu_memory_utilization=serving.gpu_memory_utilization * share,
        kv_cache_gib=serving.kv_cache_gib * share / layout.tensor_parallel,
        cpu_threads=max(1, round(_threads(task) * share / (layout.servers * layout.tensor_parallel))),
        seed=task.experiment.seed % SEEDS,
        start_deadline_s=serving.start_limit_s,
        pause_deadline_s=serving.stall_limit_s,
        sleeps=task.turn.is_shared,
        noise_by_request=common_seeds,
        extra_args=("--enforce-eager",) if serving.enforce_eager else (),
    )


def gpus_of(task: Task, number: int) -> tuple[str, ...]:
    """The GPUs of one of a task's servers, as CUDA names them; none where it is the only one and takes those that the
    task sees.
    """
    layout = layout_of(task)
    if layout.servers == 1 or not task.job.resources.gpus:
        return ()
    told = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    seen = told.split(",") if told else [str(gpu) for gpu in range(task.job.resources.gpus)]
    first = number * layout.tensor_parallel
    return tuple(seen[first : first + layout.tensor_parallel])


def _threads(task: Task) -> int:
    """The number of the task's cores, unless its environment sets OMP_NUM_THREADS: the site decides there."""
    told = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(told) if told.isdecimal() else task.job.resources.cpus_per_rank


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

    async with connect(server.control.address, server.control.key, revive=revive) as client:
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
        if not client.under_way or server.is_loading or (now is not None and now != last):
            last, since = now, time.monotonic()
        elif time.monotonic() - since > limit_s:
            try:
                await restart()
            except (UserError, OSError) as error:
                log.warning("the server could not be started again: %s", error)
            last, since = await asyncio.to_thread(server.tokens_done), time.monotonic()


@contextmanager
def grader_pool(task: Task, problems: ProblemSource, nodes: tuple[str, ...] = ()) -> Iterator[GraderPool]:
    """The grader processes of this task.

    Args:
        task: whose.
        problems: the section of the recipe that the problems are from: it names their verifier.
        nodes: the ids of the nodes of the task's Ray cluster, on each of which answers are graded; none where it has no
            cluster.
    """
    grading = task.experiment.grading
    with GraderPool(
        verifier_of(problems, grading),
        grading.processes,
        grading.time_limit_s,
        memory_limit_gib=grading.memory_limit_gib,
        lane=lane_over(nodes) if nodes else Lane,
    ) as pool:
        yield pool


def lane_over(nodes: tuple[str, ...]) -> LaneMaker:
    """What makes lanes of graders on these nodes of a Ray cluster."""
    from mrt_hpc.domains.spread_lane import SpreadLane  # Ray is loaded by tasks of several nodes only

    return partial(SpreadLane, nodes=nodes)
