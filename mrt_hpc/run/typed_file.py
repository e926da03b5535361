"""The one reader of small JSON files of known types in and beside run directories.

A file may be damaged, of another version, or a pipe: it is opened without waiting and read up to a limit. Unknown
fields are skipped, so that later versions' files can be read, unless the type forbids them.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from pydantic_core import ValidationError

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.recipe.ownership import file_bytes
from mrt_hpc.run.retries import filesystem_advice, retry_action

T = TypeVar("T")
U = TypeVar("U")
D = TypeVar("D")

Whole = Annotated[int, Meta(ge=0, le=2**53)]
"""A count or an index."""
ProcessNumber = Annotated[int, Meta(ge=1, le=2**31)]
Moment = Annotated[float, Meta(ge=0, le=1e11)]
"""Seconds since the epoch."""


class UnreadableError(UserError):
    """A file that exists and is not what it should be, or cannot be read."""

    @property
    def line(self) -> str:
        return f"{self.what} ({self.where})"


def read_typed(path: Path, kind: type[T], what: str, *, advice: str) -> T:
    """The content of a JSON file.

    Args:
        kind: a dataclass, typed dictionary, container of plain values, or pydantic model.
        what: for messages, as in "the state of a task".
        advice: what to type where the content is wrong.

    Raises:
        FileNotFoundError, UnreadableError: missing; or not readable as ``kind``.
    """
    try:
        return decode_typed(retry_action(lambda: file_bytes(path), f"reading {path}"), kind)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnreadableError(
            f"{what} cannot be read: {error.strerror or error}",
            where=path,
            advice=filesystem_advice(error),
            exit_code=ExitCode.RETRYABLE,
        ) from error
    except ValueError as error:
        raise UnreadableError(f"{what} cannot be read: {error}", where=path, advice=advice) from error


def read_if_there(path: Path, kind: type[T], what: str, otherwise: D, *, advice: str) -> T | D:
    """As :func:`read_typed`; ``otherwise`` where there is no file."""
    try:
        return read_typed(path, kind, what, advice=advice)
    except FileNotFoundError:
        return otherwise


def decode_typed(data: bytes, kind: type[T]) -> T:
    """JSON as a type, see :func:`read_typed`.

    Raises:
        ValueError: no JSON, or of another type.
    """
    try:
        if (validated := getattr(kind, "model_validate_json", None)) is not None:
            content: T = validated(data)
            return content
        return msgspec.json.decode(data, type=kind, dec_hook=_decode_path)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ValueError(str(error)) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{first['msg']}{f' (at {place})' if place else ''}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _decode_path(kind: type, value: Any) -> Any:
    """A path, which msgspec has no type for."""
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(f"no JSON holds a {kind.__name__}")


def readable(items: Iterable[T], read: Callable[[T], U]) -> tuple[list[U], list[str]]:
    """The readable files' contents, and a line for each other. Vanished files are neither."""
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
