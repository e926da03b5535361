"""Rendezvous of a trainer's ranks, and the messages between them; independent of Slurm.

Rank 0 makes a private folder and writes its path to the address file; the other ranks wait for that file. The path must
be new for every attempt (a job's restart is an attempt), so that no rank meets those of an ended one. On one node the
folder is one of the node's and holds torch's FileStore, and ranks connect over the loopback address only. Ranks of
several nodes meet in a folder of the run directory. In neither case does a store listen.

What is left are the connections between ranks. Any process that reaches a node can connect to gloo's listeners: at the
address of the host's name (on one node: 127.0.0.1), at a port for each group. gloo takes a process that sends the
number that it expects first, so each connection of the first group is proved with a key from the folder before
anything else crosses it; a stranger can end the attempt, and it runs again. Groups made later carry numbers only, and
are not proved.
NCCL (for the tensors of GPUs) drops who does not send a random number of 64 bits, which ranks pass on through the
store. Messages are JSON and never a pickle, so what a stranger sends cannot run as the run's owner. They cross by gloo
also where there are GPUs, so that a rank that waits leaves its GPU idle. Neither library encrypts.
"""

import atexit
import hashlib
import hmac
import json
import os
import secrets
import shutil
import socket
import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import distributed
from torch._C._distributed_c10d import FileStore, HashStore, Store

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.run.access import ON_LOOPBACK, is_private
from mrt_hpc.run.atomic import make_folder, write_bytes, write_json, write_text
from mrt_hpc.run.retries import FLEETING, FULL, error_number, list_directory, retrying, wait_until
from mrt_hpc.training.accelerator import backend, deepspeed

# A store for the rendezvous of ranks on several nodes: a folder of the run directory that only its owner can enter.
#
# torch's own TCPStore listens on all addresses of a node, and every process that connects may change its keys.
# Here nothing listens: a rank proves that it belongs to the run by writing to the folder, as the run's owner alone can.


LONGEST_PAUSE_S = 0.2
ADDED = ".add."
"""Stands in the name of a file between the key of a counter and what was added; the rest makes the name unique."""


class FolderStore(Store):
    """A file for each key. C++ calls these methods, also from its own threads.

    Whoever makes one keeps it as long as there are process groups: they hold its C++ half only, and without its Python
    half each call fails with "Not implemented".
    """

    def __init__(self, folder: Path, timeout: timedelta) -> None:
        super().__init__()
        self._folder, self._timeout = folder, timeout

    def set(self, key: str, value: bytes | str) -> None:
        """Write a key; a reader sees the whole value."""
        data = value.encode() if isinstance(value, str) else value
        retrying(lambda: write_bytes(self._file(key), data, durable=False), f"key {key} of the rendezvous")

    def get(self, key: str) -> bytes:
        """Return the value of a key when it is there.

        Raises:
            UserError: no rank has written it in time.
        """
        self.wait([key])
        return retrying(self._file(key).read_bytes, f"key {key} of the rendezvous")

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, and return its sum after that. A counter has no value for :meth:`get`."""
        counter = self._file(key).name + ADDED
        if amount:
            path = self._folder / f"{counter}{uuid.uuid4().hex}"
            retrying(lambda: write_text(path, str(amount), durable=False), f"counter {key} of the rendezvous")
        added = list_directory(self._folder, f"{counter}*")
        return sum(int(retrying(path.read_text, f"counter {key} of the rendezvous")) for path in added)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there. The listing refreshes what a network filesystem remembers as absent."""
        there = {path.name for path in list_directory(self._folder)}
        return all(self._file(key).name in there for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are there.

        Raises:
            UserError: no rank has written them in time.
        """
        wait_until(
            lambda: self.check(keys),
            reason=f"{', '.join(keys)} of another rank",
            deadline_s=(timeout or self._timeout).total_seconds(),
            where=self._folder,
            advice="read the logs of all ranks: one may have ended; all nodes of the task must see that folder",
            longest_pause_s=LONGEST_PAUSE_S,
        )

    def delete_key(self, key: str) -> bool:
        """Remove a key; False if it was not there."""
        try:
            retrying(self._file(key).unlink, f"key {key} of the rendezvous")
        except FileNotFoundError:
            return False
        return True

    def clone(self) -> "FolderStore":
        """Return this store: it has no connection that two threads could not share."""
        return self

    def _file(self, key: str) -> Path:
        return self._folder / hashlib.sha256(key.encode()).hexdigest()


Json = None | bool | int | float | str | list[Any] | dict[str, Any]
"""What crosses between ranks."""
T = TypeVar("T", bound=Json)
U = TypeVar("U")

KEY = "mrt-hpc-key"
"""The key in the store under which rank 0 writes the secret of this attempt."""
PROOF_BYTES = 32
PROOF_TIMEOUT_S = 60.0
"""The longest wait for the proofs of the other ranks, which have all connected before."""


@dataclass(frozen=True)
class Ranks:
    """The place of this process among those of one trainer."""

    rank: int = 0
    """The rank, from 0 to world_size - 1."""
    world_size: int = 1
    local_rank: int = 0
    """The rank within this node; it selects the GPU where a process sees several."""
    nodes: int = 1
    """The number of nodes that the ranks are on."""


def join(ranks: Ranks, address_file: Path | None = None, timeout_s: float = 1800.0) -> None:
    """Join the process group of ``ranks.world_size`` processes; return when all of them have joined.

    Args:
        ranks: the place of this process among the ranks.
        address_file: the file for the path of the ranks' folder; new for every attempt; not needed by a single rank.
        timeout_s: the longest wait for the other ranks, here and in every later exchange.

    Raises:
        UserError: the file exists already, rank 0 did not write it in time, others may enter the folder that it names,
            or a process that is no rank of this attempt has connected.
    """
    timeout = timedelta(seconds=timeout_s)
    store = _store(ranks, address_file, timeout)
    _set_environment(ranks)
    distributed.init_process_group(
        backend(), store=store, rank=ranks.rank, world_size=ranks.world_size, timeout=timeout
    )
    if ranks.world_size > 1:
        try:
            _prove(ranks, _key(ranks, store))
        except BaseException:
            leave()
            raise
    deepspeed.init_distributed(
        backend(), auto_mpi_discovery=False, rank=ranks.rank, world_size=ranks.world_size, timeout=timeout
    )


def leave() -> None:
    """Leave the process group."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def exchange(value: Json) -> list[Any]:
    """Pass a value to all ranks, and return the values of all, by rank; collective. Tuples come back as lists."""
    text = json.dumps(value).encode()
    if distributed.get_world_size() == 1:
        return [json.loads(text)]
    sizes = [int(size) for size in _gathered(torch.tensor([len(text)]))]
    sent = torch.zeros(max(sizes), dtype=torch.uint8)
    sent[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return [json.loads(bytes(got[:size].tolist())) for got, size in zip(_gathered(sent), sizes, strict=True)]


def on_rank_zero(action: Callable[[], T]) -> T:
    """Run ``action`` on rank 0 and return its result on every rank; raise its error on every rank.

    The result crosses as JSON.
    """
    outcome: dict[str, Any] = {}
    failure: Exception | None = None
    if distributed.get_rank() == 0:
        try:
            outcome["result"] = json.loads(json.dumps(action()))
        except Exception as error:
            failure = _shared_error(error)
            outcome["error"] = _record(failure)
    first = exchange(outcome)[0]
    if "error" in first:
        raise failure or _error(first["error"])
    result: T = first["result"]
    return result


def together(action: Callable[[], U]) -> U:
    """Run ``action`` on every rank, which waits for no other rank in it, and return its result; collective.

    Raises:
        UserError, OSError: the first rank's error, on every rank, if any rank failed.
    """
    values: list[U] = []
    failure: Exception | None = None
    try:
        values.append(action())
    except Exception as error:
        failure = error
    agree(failure)
    return values[0]


def agree(failure: Exception | None) -> None:
    """Raise the first rank's error on every rank, if any rank failed; collective.

    Args:
        failure: the error of this rank. A full disk or a temporary error stays an OSError with its number, so that the
            caller can retry; any other error becomes a UserError.
    """
    shared = None if failure is None else _shared_error(failure)
    for rank, record in enumerate(exchange(None if shared is None else _record(shared))):
        if record is not None:
            raise shared if shared is not None and rank == distributed.get_rank() else _error(record)


def _gathered(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors of all ranks, which have one shape, in the memory of the CPU, where this one is."""
    tensors = [torch.empty_like(tensor) for _ in range(distributed.get_world_size())]
    distributed.all_gather(tensors, tensor)
    return tensors


def _set_environment(ranks: Ranks) -> None:
    """Set the variables that DeepSpeed and the libraries of communication read. A process that sees only one GPU uses
    that one.
    """
    local_device = ranks.local_rank
    if torch.cuda.is_available():
        local_device %= torch.cuda.device_count()
        torch.cuda.set_device(local_device)
    os.environ |= {"RANK": str(ranks.rank), "WORLD_SIZE": str(ranks.world_size), "LOCAL_RANK": str(local_device)}
    os.environ.setdefault("NCCL_RAS_ENABLE", "0")  # it would answer questions about the ranks at a port of its own
    if ranks.nodes == 1:
        os.environ |= ON_LOOPBACK


def _store(ranks: Ranks, address_file: Path | None, timeout: timedelta) -> Store:
    if ranks.world_size == 1:
        return HashStore()
    if address_file is None:
        raise UserError("several ranks need an address file for their rendezvous", value=ranks)
    folder = _make_folder(ranks, address_file) if ranks.rank == 0 else _find_folder(address_file, timeout)
    if ranks.nodes > 1:
        return _kept(FolderStore(folder, timeout))
    store = FileStore(str(folder / "store"), ranks.world_size)
    store.set_timeout(timeout)
    return store


def _kept(store: FolderStore) -> FolderStore:
    """Keep a store as long as this process: process groups end with it at the latest."""
    atexit.register(lambda: store)
    return store


def _make_folder(ranks: Ranks, address_file: Path) -> Path:
    """Make the private folder of an attempt, and write its path for the other ranks."""
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
    retrying(lambda: write_json(address_file, {"folder": str(folder)}), "the address of rank 0")
    return folder


def _find_folder(address_file: Path, timeout: timedelta) -> Path:
    wait_until(
        address_file.exists,
        reason="rank 0's address",
        deadline_s=timeout.total_seconds(),
        where=address_file,
        advice="read the log of rank 0, which writes that file; all nodes of the task must see it",
    )
    folder = Path(json.loads(retrying(address_file.read_text, "the address of rank 0"))["folder"])
    _require_private(folder)
    return folder


def _require_private(folder: Path) -> None:
    if not is_private(folder):
        raise UserError(
            "the folder in which the ranks meet is not there, or other users may enter it",
            where=folder,
            expected="a folder of this user alone, which all ranks see under this path",
            advice="nothing: the task runs again, with another folder; if that does not help, set TMPDIR to a folder "
            "that all ranks of a node share",
            exit_code=ExitCode.RETRYABLE,
        )


def _key(ranks: Ranks, store: Store) -> bytes:
    """Return the secret of this attempt."""
    if ranks.rank == 0:
        store.set(KEY, secrets.token_hex(PROOF_BYTES))
    return store.get(KEY)


def _prove(ranks: Ranks, key: bytes) -> None:
    """Show the key to each other rank, over the connection that there is to it, and check theirs."""
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
    return UserError(
        "a process that is no rank of this attempt has connected to one, or a rank has ended",
        value=what,
        where=socket.gethostname(),
        expected="a proof of each rank that it has read the key of this attempt",
        advice="read the logs of the other ranks; the task runs again by itself, and so does mrt-hpc submit RUN",
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
        advice=f"read the traceback in the log of rank {rank}; mrt-hpc submit RUN runs the task again",
        exit_code=ExitCode.RETRYABLE,
    )


def _record(error: Exception) -> dict[str, Any]:
    """Return what crosses of an error that :func:`_shared_error` has given."""
    if isinstance(error, UserError):
        known = {"what": error.what, "expected": error.expected, "advice": error.advice, "code": int(error.exit_code)}
        where = None if error.where is None else str(error.where)
        return known | {"where": where, "value": json.loads(json.dumps(error.value, default=str))}
    return {"number": error_number(error), "text": str(error.args[-1])}


def _error(record: dict[str, Any]) -> Exception:
    """Return the error that another rank has recorded."""
    if "number" in record:
        return OSError(record["number"], record["text"])
    return UserError(
        record["what"],
        value=record["value"],
        where=record["where"],
        expected=record["expected"],
        advice=record["advice"],
        exit_code=ExitCode(record["code"]),
    )
