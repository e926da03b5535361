"""Rendezvous of a trainer's ranks; independent of Slurm.

Rank 0 makes a private folder and writes its path to the address file, for which the other ranks wait. That file is new
for every attempt, so that no rank meets those of an ended one. On one node the folder is the node's own and holds
torch's FileStore; several nodes meet in a folder of the run directory. No store listens.

Any process that reaches a node can connect to gloo's listeners: a port for each group, at the node's address towards
another node of the task or at the interface that the site names (on one machine: 127.0.0.1). gloo takes the first
process that sends the expected number. So each connection of the first group is proved with a key from the folder
before anything else crosses it; a stranger can end the attempt, which then runs again. Later groups are not proved:
they carry numbers only.
"""

import atexit
import hmac
import json
import os
import secrets
import shutil
import socket
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch._C._distributed_c10d import FileStore, HashStore, Store

from mrt_hpc.errors import UserError, retryable_error
from mrt_hpc.run.access import is_private
from mrt_hpc.run.atomic import make_folder, write_json
from mrt_hpc.run.network import GLOO_INTERFACE, ON_LOOPBACK, gloo_interface
from mrt_hpc.run.retries import retry_action, wait_until
from mrt_hpc.training.accelerator import backend, deepspeed
from mrt_hpc.training.folder_store import FolderStore

KEY = "mrt-hpc-key"
"""Rank 0 writes the secret of this attempt under this key."""
REACH = (
    f"name the interface over which nodes reach each other (ip -brief address shows them), as in environment: "
    f"{{{GLOO_INTERFACE}: ib0}} of the site profile; or put all ranks on one node; then mrt-hpc submit RUN"
)
PROOF_BYTES = 32
PROOF_TIMEOUT_S = 60.0
"""The other ranks have all connected before."""


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    """From 0 to world_size - 1."""
    world_size: int = 1
    local_rank: int = 0
    """The rank within this node; selects the GPU where a process sees several."""
    nodes: int = 1


def join(ranks: Ranks, address_file: Path | None = None, timeout_s: float = 1800.0) -> None:
    """Join the process group of ``ranks.world_size`` processes; return when all have joined.

    Args:
        address_file: new for every attempt; not needed by a single rank.
        timeout_s: for other ranks, here and in every later exchange.

    Raises:
        UserError: the address file exists already, a rank is late, others may enter the folder, or a stranger has
            connected.
    """
    timeout = timedelta(seconds=timeout_s)
    store = _store(ranks, address_file, timeout)
    hosts = []
    if ranks.nodes > 1:
        store.set(f"host of rank {ranks.rank}", socket.gethostname())
        hosts = [store.get(f"host of rank {rank}").decode() for rank in range(ranks.world_size)]
    _set_environment(ranks, hosts)
    _connect(ranks, store, timeout)
    if ranks.world_size > 1:
        try:
            _prove(ranks, _key(ranks, store))
        except BaseException:
            leave()
            raise
    deepspeed.init_distributed(
        backend(), auto_mpi_discovery=False, rank=ranks.rank, world_size=ranks.world_size, timeout=timeout
    )


def _connect(ranks: Ranks, store: Store, timeout: timedelta) -> None:
    """Connect in a thread: where another rank cannot connect, gloo waits five times its time-out."""
    made = Future[None]()

    def make() -> None:
        try:
            distributed.init_process_group(
                backend(), store=store, rank=ranks.rank, world_size=ranks.world_size, timeout=timeout
            )
            made.set_result(None)
        except BaseException as error:
            made.set_exception(error)

    threading.Thread(target=make, daemon=True).start()
    seconds = timeout.total_seconds()
    wait_until(made.done, reason="the connections between the ranks", deadline_s=seconds, advice=REACH)
    if isinstance(error := made.exception(), RuntimeError):
        raise retryable_error(
            "the ranks of this task do not reach each other",
            value=str(error),
            where=f"{socket.gethostname()}, interface {os.environ.get(GLOO_INTERFACE, 'of the host name')}",
            expected="nodes that reach each other's ports over this interface",
            advice=REACH,
        ) from error
    made.result()


def leave() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _set_environment(ranks: Ranks, hosts: Sequence[str]) -> None:
    """A process that sees only one GPU uses that one."""
    local_device = ranks.local_rank
    if torch.cuda.is_available():
        local_device %= torch.cuda.device_count()
        torch.cuda.set_device(local_device)
    os.environ |= {"RANK": str(ranks.rank), "WORLD_SIZE": str(ranks.world_size), "LOCAL_RANK": str(local_device)}
    os.environ.setdefault("NCCL_RAS_ENABLE", "0")  # it would answer questions about the ranks at a port of its own
    os.environ |= ON_LOOPBACK if ranks.nodes == 1 else {GLOO_INTERFACE: gloo_interface(hosts)}


def _store(ranks: Ranks, address_file: Path | None, timeout: timedelta) -> Store:
    if ranks.world_size == 1:
        return HashStore()
    if address_file is None:
        raise UserError("several ranks need an address file for their rendezvous", value=ranks)
    folder = _make_folder(ranks, address_file) if ranks.rank == 0 else _find_folder(address_file, timeout)
    if ranks.nodes > 1:
        kept = FolderStore(folder, timeout)
        atexit.register(lambda: kept)  # its Python half is needed as long as there are process groups
        return kept
    store = FileStore(str(folder / "store"), ranks.world_size)
    store.set_timeout(timeout)
    return store


def _make_folder(ranks: Ranks, address_file: Path) -> Path:
    if address_file.exists():
        raise UserError(
            "the address file was written by an earlier attempt",
            where=address_file,
            expected="a path that is new for every attempt",
            advice="mrt-hpc submit RUN starts another attempt, which has another path",
        )
    make_folder(address_file.parent)
    parent = Path(tempfile.gettempdir()) if ranks.nodes == 1 else address_file.parent.absolute()
    folder = Path(tempfile.mkdtemp(prefix="mrt-hpc-ranks-", dir=parent))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    retry_action(lambda: write_json(address_file, {"folder": str(folder)}), "the address of rank 0")
    return folder


def _find_folder(address_file: Path, timeout: timedelta) -> Path:
    wait_until(
        address_file.exists,
        reason="rank 0's address",
        deadline_s=timeout.total_seconds(),
        where=address_file,
        advice="read the log of rank 0, which writes that file; all nodes of the task must see it",
    )
    folder = Path(json.loads(retry_action(address_file.read_text, "the address of rank 0"))["folder"])
    _require_private(folder)
    return folder


def _require_private(folder: Path) -> None:
    if not is_private(folder):
        raise retryable_error(
            "the folder in which the ranks meet is not there, or other users may enter it",
            where=folder,
            expected="a folder of this user alone, which all ranks see under this path",
            advice="nothing: the task runs again, with another folder; if that does not help, set TMPDIR to a folder "
            "that all ranks of a node share",
        )


def _key(ranks: Ranks, store: Store) -> bytes:
    if ranks.rank == 0:
        store.set(KEY, secrets.token_hex(PROOF_BYTES))
    return store.get(KEY)


def _prove(ranks: Ranks, key: bytes) -> None:
    """Prove the connection to each other rank, in both directions."""
    others = range(ranks.world_size)
    sent = torch.stack([_proof(key, ranks.rank, other) for other in others])
    wanted = torch.stack([_proof(key, other, ranks.rank) for other in others])
    got, options = torch.zeros_like(sent), distributed.AllToAllOptions()
    options.timeout = timedelta(seconds=PROOF_TIMEOUT_S)
    group: Any = distributed.group.WORLD
    try:
        group.alltoall_base(got, sent, [], [], options).wait()
    except RuntimeError as error:
        raise _stranger(str(error)) from error
    if not torch.equal(got, wanted):
        wrong = [other for other in others if not torch.equal(got[other], wanted[other])]
        raise _stranger(f"wrong proofs of ranks {wrong}")


def _proof(key: bytes, sender: int, receiver: int) -> torch.Tensor:
    digest = hmac.digest(key, f"{sender} to {receiver}".encode(), "sha256")
    return torch.frombuffer(bytearray(digest), dtype=torch.uint8)


def _stranger(what: str) -> UserError:
    return retryable_error(
        "a process that is no rank of this attempt has connected to one, or a rank has ended",
        value=what,
        where=socket.gethostname(),
        expected="a proof of each rank that it has read the key of this attempt",
        advice="read the logs of the other ranks; the task runs again by itself, and so does mrt-hpc submit RUN",
    )
