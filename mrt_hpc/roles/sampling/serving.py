"""The servers of inference and evaluation tasks: their own ones, or one that the recipe names."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrt_hpc.errors import UserError
from mrt_hpc.inference.attached_server import AGAIN, AttachedServer
from mrt_hpc.inference.server import VllmServer
from mrt_hpc.inference.server_control import Address, ServerControl
from mrt_hpc.inference.server_pool import ServerPool
from mrt_hpc.roles.sampling.server_settings import layout_of, server_settings
from mrt_hpc.roles.sampling.starts import tell_started

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mrt_hpc.inference.server_control import Servers
    from mrt_hpc.recipe.base import NumberFormat
    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.weights import Weights


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
