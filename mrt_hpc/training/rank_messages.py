"""Messages between a trainer's ranks, and failures that all ranks share.

Messages are JSON, never pickles that could run a stranger's code. They cross by gloo also where there are GPUs, so that
a waiting rank leaves its GPU idle.
"""

import json
import socket
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import distributed

from mrt_hpc.errors import Advice, ExitCode, UserError, retryable_error
from mrt_hpc.run.retries import FLEETING, FULL, error_number

Json = None | bool | int | float | str | list[Any] | dict[str, Any]
T = TypeVar("T", bound=Json)
U = TypeVar("U")


def exchange(value: Json) -> list[Any]:
    """Pass a value to all ranks; return the values of all, by rank. Collective. Tuples come back as lists."""
    text = json.dumps(value).encode()
    if distributed.get_world_size() == 1:
        return [json.loads(text)]
    sizes = [int(size) for size in _gather_tensors(torch.tensor([len(text)]))]
    sent = torch.zeros(max(sizes), dtype=torch.uint8)
    sent[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return [json.loads(bytes(got[:size].tolist())) for got, size in zip(_gather_tensors(sent), sizes, strict=True)]


def run_on_rank_zero(action: Callable[[], T]) -> T:
    """Return the result, or raise the error, of rank 0 on every rank. The result crosses as JSON."""
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
    """Run ``action``, which waits for no other rank, on every rank; collective. Every rank raises the first one's
    error.
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
    """Raise the first rank's error on every rank; collective. A full disk or a temporary error stays an OSError with
    its number, so that the caller can retry; others become UserErrors.
    """
    shared = None if failure is None else _shared_error(failure)
    for rank, record in enumerate(exchange(None if shared is None else _record(shared))):
        if record is not None:
            raise shared if shared is not None and rank == distributed.get_rank() else _error(record)


def _gather_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Tensors of one shape in the memory of the CPU, by rank."""
    tensors = [torch.empty_like(tensor) for _ in range(distributed.get_world_size())]
    distributed.all_gather(tensors, tensor)
    return tensors


def _shared_error(error: Exception) -> Exception:
    """The error that all ranks raise."""
    rank = distributed.get_rank()
    if isinstance(error, UserError):
        return error
    if (number := error_number(error)) in FULL | FLEETING:
        return OSError(number, f"{error} (on rank {rank})", getattr(error, "filename", None))  # shortage asks about it
    return retryable_error(
        f"rank {rank} failed: {type(error).__name__}: {error}",
        where=f"rank {rank} on {socket.gethostname()}",
        advice=Advice(
            "read the traceback in the log of rank {rank}; mrt-hpc submit RUN, which runs the task again", rank=rank
        ),
    )


def _record(error: Exception) -> dict[str, Any]:
    if isinstance(error, UserError):
        known = {"expected": error.expected, "advice": error.advice, "exit_code": int(error.exit_code)}
        where = None if error.where is None else str(error.where)
        return {"what": error.what, **known, "where": where, "value": json.loads(json.dumps(error.value, default=str))}
    assert isinstance(error, OSError), "_shared_error gives no other"
    name = error.filename if isinstance(error.filename, str) else None
    return {"number": error.errno, "text": str(error.strerror), "file": name}


def _error(record: dict[str, Any]) -> Exception:
    if "number" in record:
        return OSError(record["number"], record["text"], record["file"])
    return UserError(**record | {"exit_code": ExitCode(record["exit_code"])})
