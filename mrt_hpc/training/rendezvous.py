"""Rendezvous of a trainer's ranks through a file, on a port that the system chose; independent of Slurm.

Rank 0 opens a store on a free port and writes its address to the file; the other ranks wait for that file. The path
must be new for every attempt (a job's restart is an attempt), so that no rank reads the address of an ended store.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import distributed
from torch._C._distributed_c10d import HashStore, Store, TCPStore

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.retries import FLEETING, FULL, error_number, retrying
from mrt_hpc.run.waiting import wait_until
from mrt_hpc.training.accelerator import backend, deepspeed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10.0
TOKEN = "mrt-hpc-attempt"
"""The key in the store under which rank 0 writes the token of this attempt."""


@dataclass(frozen=True)
class Ranks:
    """The place of this process among those of one trainer."""

    rank: int = 0
    """The rank, from 0 to world_size - 1."""
    world_size: int = 1
    local_rank: int = 0
    """The rank within this node; it selects the GPU where a process sees several."""


def join(ranks: Ranks, address_file: Path | None = None, timeout_s: float = 1800.0) -> None:
    """Join the process group of ``ranks.world_size`` processes; return when all of them have joined.

    Args:
        ranks: the place of this process among the ranks.
        address_file: the file for the address of rank 0; new for every attempt; not needed by a single rank.
        timeout_s: the longest wait for the other ranks, here and in every later exchange.

    Raises:
        UserError: the file exists already, rank 0 did not write it in time, or no address in it answers.
    """
    timeout = timedelta(seconds=timeout_s)
    store = _store(ranks, address_file, timeout)
    _set_deepspeed_environment(ranks)
    distributed.init_process_group(
        backend(), store=store, rank=ranks.rank, world_size=ranks.world_size, timeout=timeout
    )
    deepspeed.init_distributed(
        backend(), auto_mpi_discovery=False, rank=ranks.rank, world_size=ranks.world_size, timeout=timeout
    )


def leave() -> None:
    """Leave the process group."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def on_rank_zero(action: Callable[[], T]) -> T:
    """Run ``action`` on rank 0 and return its result on every rank; raise its error on every rank."""
    outcome: list[Any] = [None, None]
    if distributed.get_rank() == 0:
        try:
            outcome[0] = action()
        except Exception as error:
            outcome[1] = _shared_error(error)
    if distributed.get_world_size() > 1:
        distributed.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def agree(failure: Exception | None) -> None:
    """Raise the first rank's error on every rank, if any rank failed; collective.

    Args:
        failure: the error of this rank. A full disk or a temporary error stays an OSError with its number, so that the
            caller can retry; any other error becomes a UserError.
    """
    failures: list[Exception | None] = [None] * distributed.get_world_size()
    distributed.all_gather_object(failures, None if failure is None else _shared_error(failure))
    for error in failures:
        if error is not None:
            raise error


def _set_deepspeed_environment(ranks: Ranks) -> None:
    """Set the environment variables that DeepSpeed reads; a process that sees only one GPU uses that one."""
    local_device = ranks.local_rank
    if torch.cuda.is_available():
        local_device %= torch.cuda.device_count()
        torch.cuda.set_device(local_device)
    os.environ |= {"RANK": str(ranks.rank), "WORLD_SIZE": str(ranks.world_size), "LOCAL_RANK": str(local_device)}


def _store(ranks: Ranks, address_file: Path | None, timeout: timedelta) -> Store:
    if ranks.world_size == 1:
        return HashStore()
    if address_file is None:
        raise UserError("several ranks need an address file for their rendezvous", value=ranks)
    if ranks.rank == 0:
        return _open_store(ranks, address_file, timeout)
    return _find_store(ranks, address_file, timeout)


def _open_store(ranks: Ranks, address_file: Path, timeout: timedelta) -> Store:
    if address_file.exists():
        raise UserError(
            "the address file was written by an earlier attempt",
            where=address_file,
            expected="a path that is new for every attempt",
            advice="the same submit command starts another attempt, which has another path",
        )
    store = TCPStore("localhost", 0, ranks.world_size, True, timeout, wait_for_workers=False)
    token = secrets.token_hex(16)
    store.set(TOKEN, token)
    address = {"host": socket.gethostname(), "addresses": _own_addresses(), "port": store.port, "token": token}
    retrying(lambda: write_json(address_file, address), "the address of rank 0")
    return store


def _find_store(ranks: Ranks, address_file: Path, timeout: timedelta) -> Store:
    seconds = timeout.total_seconds()
    wait_until(
        address_file.exists,
        reason="rank 0's address",
        deadline_s=seconds,
        where=address_file,
        advice="read the log of rank 0, which writes that file; all nodes of the task must see it",
    )
    written = json.loads(retrying(address_file.read_text, "the address of rank 0"))
    addresses = ["localhost"] if written["host"] == socket.gethostname() else written["addresses"]
    host = _reachable(addresses, written["port"])
    store = TCPStore(host, written["port"], ranks.world_size, False, timeout, wait_for_workers=False)
    _require_token(store, written["token"], f"{host}:{written['port']}")
    return store


def _require_token(store: Store, token: str, where: str) -> None:
    """Check that the listening process is rank 0 of this attempt, which may have ended and its port been reused."""
    try:
        store.wait([TOKEN], timedelta(seconds=CONNECT_TIMEOUT_S))
        found = store.get(TOKEN).decode(errors="replace")
    except distributed.DistStoreError:
        found = ""
    if found != token:
        raise UserError(
            "the process that answers at rank 0's address is not rank 0 of this attempt",
            where=where,
            expected="the token that rank 0 wrote to the address file",
            advice="nothing: the task runs again, with another address; otherwise the same submit command",
            exit_code=ExitCode.RETRYABLE,
        )


def _own_addresses() -> list[str]:
    """Return the names and numeric addresses under which other nodes may reach this one, best first."""
    name = socket.gethostname()
    try:
        numbers = [str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except socket.gaierror:
        numbers = []
    return list(dict.fromkeys([name, socket.getfqdn(), *numbers]))


def _reachable(addresses: list[str], port: int) -> str:
    """Return the first address at which the port answers."""
    problems = []
    for address in addresses:
        try:
            socket.create_connection((address, port), CONNECT_TIMEOUT_S).close()
            return address
        except OSError as error:
            problems.append(f"{address}: {error}")
    raise UserError(
        "rank 0 cannot be reached: " + "; ".join(problems),
        value=addresses,
        expected=f"an open TCP port {port} between the nodes",
        advice="ask the administrators whether compute nodes reach each other's ports, or train on one node: "
        "--set resources.trainer.ranks_per_node=null",
        exit_code=ExitCode.RETRYABLE,
    )


def _shared_error(error: Exception) -> Exception:
    """Return the error that all ranks raise for this one."""
    rank = distributed.get_rank()
    if isinstance(error, UserError):
        return error
    if (number := error_number(error)) in FULL | FLEETING:
        return OSError(number, f"{error} (on rank {rank})")
    return UserError(
        f"rank {rank} failed: {type(error).__name__}: {error}",
        where=f"rank {rank} on {socket.gethostname()}",
        advice=f"read the traceback in the log of rank {rank}; the same submit command runs the task again",
        exit_code=ExitCode.RETRYABLE,
    )
