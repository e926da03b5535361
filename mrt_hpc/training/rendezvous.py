"""How the ranks of a trainer find each other: through a file, on a port the system chose. Knows no Slurm.

Rank 0 opens a store on a free port and writes where it listens; the others wait for that file. The file's path must
be new for every attempt (a job's restart is an attempt), so that no rank meets the address of a store that is gone.
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
"""Key in the store under which rank 0 tells who it is."""


@dataclass(frozen=True)
class Ranks:
    """This process among those of one trainer."""

    rank: int = 0
    """0 to world_size - 1."""
    world_size: int = 1
    local_rank: int = 0
    """Among the ranks of this node; chooses the GPU where a process sees several."""


def join(ranks: Ranks, address_file: Path | None = None, timeout_s: float = 1800.0) -> None:
    """Join the process group of ``ranks.world_size`` processes; returns when all of them are there.

    Args:
        ranks: who this process is.
        address_file: where rank 0 tells its address; new for every attempt; not needed by a single rank.
        timeout_s: longest wait for the others, here and in every later exchange.

    Raises:
        UserError: the file exists already, rank 0 did not write it in time, or no address in it answers.
    """
    timeout = timedelta(seconds=timeout_s)
    store = _store(ranks, address_file, timeout)
    _tell_deepspeed(ranks)
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
    """Run ``action`` on rank 0 and give its result to every rank; its failure is raised on every rank."""
    outcome: list[Any] = [None, None]
    if distributed.get_rank() == 0:
        try:
            outcome[0] = action()
        except Exception as error:
            outcome[1] = _told(error)
    if distributed.get_world_size() > 1:
        distributed.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def agree(failure: Exception | None) -> None:
    """Raise on every rank what the first of them failed with, if any did; collective.

    Args:
        failure: this rank's. A full disk or a fleeting error stays an OSError with its number, so that it can be
            waited out; all else becomes a UserError.
    """
    told: list[Exception | None] = [None] * distributed.get_world_size()
    distributed.all_gather_object(told, None if failure is None else _told(failure))
    for error in told:
        if error is not None:
            raise error


def _tell_deepspeed(ranks: Ranks) -> None:
    """Set what DeepSpeed reads from the environment; a process that sees one GPU only uses that one."""
    local_device = ranks.local_rank
    if torch.cuda.is_available():
        local_device %= torch.cuda.device_count()
        torch.cuda.set_device(local_device)
    os.environ |= {"RANK": str(ranks.rank), "WORLD_SIZE": str(ranks.world_size), "LOCAL_RANK": str(local_device)}


def _store(ranks: Ranks, address_file: Path | None, timeout: timedelta) -> Store:
    if ranks.world_size == 1:
        return HashStore()
    if address_file is None:
        raise UserError("several ranks need an address file to meet", value=ranks)
    if ranks.rank == 0:
        return _open_store(ranks, address_file, timeout)
    return _find_store(ranks, address_file, timeout)


def _open_store(ranks: Ranks, address_file: Path, timeout: timedelta) -> Store:
    if address_file.exists():
        raise UserError(
            "this address file is of an earlier attempt",
            where=address_file,
            expected="a path that is new for every attempt",
        )
    store = TCPStore("localhost", 0, ranks.world_size, True, timeout, wait_for_workers=False)
    token = secrets.token_hex(16)
    store.set(TOKEN, token)
    address = {"host": socket.gethostname(), "addresses": _own_addresses(), "port": store.port, "token": token}
    retrying(lambda: write_json(address_file, address), "the address of rank 0")
    return store


def _find_store(ranks: Ranks, address_file: Path, timeout: timedelta) -> Store:
    seconds = timeout.total_seconds()
    wait_until(address_file.exists, reason=f"rank 0's address in {address_file}", deadline_s=seconds)
    told = json.loads(retrying(address_file.read_text, "the address of rank 0"))
    addresses = ["localhost"] if told["host"] == socket.gethostname() else told["addresses"]
    host = _reachable(addresses, told["port"])
    store = TCPStore(host, told["port"], ranks.world_size, False, timeout, wait_for_workers=False)
    _require_token(store, told["token"], f"{host}:{told['port']}")
    return store


def _require_token(store: Store, token: str, where: str) -> None:
    """The process that listens there must be rank 0 of this attempt: it may have ended, and its port been reused."""
    try:
        store.wait([TOKEN], timedelta(seconds=CONNECT_TIMEOUT_S))
        found = store.get(TOKEN).decode(errors="replace")
    except distributed.DistStoreError:
        found = ""
    if found != token:
        raise UserError(
            "what answers at rank 0's address is not rank 0 of this attempt",
            where=where,
            expected="the token that rank 0 wrote down",
            exit_code=ExitCode.RETRYABLE,
        )


def _own_addresses() -> list[str]:
    """The names and numbers under which other nodes may know this one, best first."""
    name = socket.gethostname()
    try:
        numbers = [str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except socket.gaierror:
        numbers = []
    return list(dict.fromkeys([name, socket.getfqdn(), *numbers]))


def _reachable(addresses: list[str], port: int) -> str:
    """The first address where the port answers."""
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
        exit_code=ExitCode.RETRYABLE,
    )


def _told(error: Exception) -> Exception:
    """What the other ranks raise for it."""
    rank = distributed.get_rank()
    if isinstance(error, UserError):
        return error
    if (number := error_number(error)) in FULL | FLEETING:
        return OSError(number, f"{error} (on rank {rank})")
    return UserError(f"rank {rank} failed: {type(error).__name__}: {error}", exit_code=ExitCode.RETRYABLE)
