"""The one reader of the small files that a run directory and the folders beside it hold: JSON of a known type.

A file may be damaged, of another version, or no file at all. It is opened without waiting (a pipe in its place would
hold a reader for ever), read up to a limit, and checked against the type that the reader asks for; what does not fit is
refused with the file, the reason and what to do. Fields that the type does not have are passed over, so that files of a
later version can be read as well, unless the type itself forbids them.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar

import msgspec
from msgspec import Meta

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.run.retries import FLEETING, retrying

T = TypeVar("T")
U = TypeVar("U")
D = TypeVar("D")

MOST_BYTES = 256 * 2**20
"""A longer file is none of those that are read whole."""
Whole = Annotated[int, Meta(ge=0, le=2**53)]
"""A number of things, or the number of a thing."""
ProcessNumber = Annotated[int, Meta(ge=1, le=2**31)]
Moment = Annotated[float, Meta(ge=0, le=1e11)]
"""Seconds since the epoch."""
_NO_FILE = {
    errno.EISDIR: "it is a folder, not a file",
    errno.ENXIO: "it is a socket, not a file",
    errno.ELOOP: "its links lead in a circle",
}


class UnreadableError(UserError):
    """A file that is there and is not what it should be, or cannot be read."""

    @property
    def line(self) -> str:
        """Reason and file in one line."""
        return f"{self.what} ({self.where})"


def read_typed(path: Path, kind: type[T], what: str, *, advice: str) -> T:
    """What a file of JSON holds.

    Args:
        path: the file.
        kind: its type: a dataclass, a typed dictionary, a container of plain values, or a pydantic model.
        what: the file is, for the message, as in "the state of a task".
        advice: what to type where it cannot be read.

    Raises:
        FileNotFoundError: there is none.
        UnreadableError: it is no file, cannot be read, or holds something else.
    """
    try:
        return typed(retrying(lambda: file_bytes(path), f"reading {path}"), kind)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        passing = isinstance(error, OSError) and error.errno in FLEETING
        code = ExitCode.RETRYABLE if passing else ExitCode.FATAL
        raise UnreadableError(f"{what} cannot be read: {reason}", where=path, advice=advice, exit_code=code) from error


def read_if_there(path: Path, kind: type[T], what: str, otherwise: D, *, advice: str) -> T | D:
    """As :func:`read_typed`; ``otherwise`` where there is no file.

    Raises:
        UnreadableError: it is no file, cannot be read, or holds something else.
    """
    try:
        return read_typed(path, kind, what, advice=advice)
    except FileNotFoundError:
        return otherwise


def file_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a file, without waiting for a writer.

    Args:
        path: the file.
        most: bytes that it may have.

    Raises:
        OSError: it is not there, or cannot be read.
        ValueError: it is no regular file, or is longer.
    """
    with _opened(path) as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"it is {'a pipe' if stat.S_ISFIFO(status.st_mode) else 'a device'}, not a file")
        if status.st_size > most:
            raise ValueError(f"it has {status.st_size:,} bytes, more than the {most:,} that such a file may have")
        return stream.read()


def _opened(path: Path) -> BinaryIO:
    try:
        return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    except OSError as error:
        if (reason := _NO_FILE.get(error.errno or 0)) is not None:
            raise ValueError(reason) from error
        raise


def typed(data: bytes, kind: type[T]) -> T:
    """What JSON holds, of a type as in :func:`read_typed`.

    Raises:
        ValueError: it is no JSON, or of another type.
    """
    try:
        if (validated := getattr(kind, "model_validate_json", None)) is not None:
            return _of_model(validated, data)
        return msgspec.json.decode(data, type=kind, dec_hook=_as_path)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ValueError(str(error)) from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _of_model(validated: Callable[[bytes], T], data: bytes) -> T:
    """What a pydantic model takes; of its faults the first is named, in a line."""
    try:
        return validated(data)
    except ValueError as error:
        errors: Callable[..., list[dict[str, Any]]] | None = getattr(error, "errors", None)
        if errors is None:
            raise
        first = errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{first['msg']}{f' (at {place})' if place else ''}") from error


def _as_path(kind: type, value: Any) -> Any:
    """Make of a text what msgspec has no type for."""
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(f"no JSON holds a {kind.__name__}")


def readable(items: Iterable[T], read: Callable[[T], U]) -> tuple[list[U], list[str]]:
    """What can be read of many files, and a line for each of the others. A file that vanishes meanwhile is neither."""
    values: list[U] = []
    faults: list[str] = []
    for item in items:
        try:
            values.append(read(item))
        except FileNotFoundError:
            continue
        except UnreadableError as fault:
            faults.append(fault.line)
    return values, faults
