"""The seam of the simulation: every call of the package on files below a folder is handed to an observer.

The functions of ``os``, ``io.open``, ``fcntl.flock`` and what is built on them (pathlib, shutil, zipfile) are replaced
during a block.
What a library writes by itself (pyarrow, safetensors) is seen when the package syncs or renames it.
"""

import builtins
import fcntl
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

PACKAGE = str(Path(__file__).parents[2] / "mrt_hpc") + os.sep
OPEN = "open"


class FileCall(NamedTuple):
    """A call on one or two paths below the folder."""

    name: str
    """The function: of ``os``, or ``open``."""
    paths: tuple[str, ...]
    changes: bool
    """Whether files or names may be others afterwards."""


class Observer(Protocol):
    """Sees the calls, and makes them."""

    def call(self, call: FileCall, make: Callable[[], Any]) -> Any:
        """Make a call, or raise what it raises in the simulation."""


READING, CHANGING = ("stat", "lstat", "listdir", "scandir", "readlink", "access"), ("fsync", "fdatasync", "truncate")
ON_NAME = ("unlink", "remove", "mkdir", "rmdir", "utime", "chmod")
ON_TWO = ("rename", "replace", "link")
WRITING_MODES = frozenset("wax+")


@contextmanager
def calls_seen_by(observer: Observer, root: Path) -> Iterator[None]:
    """Hand all calls on files below ``root`` to an observer during the block, whichever thread makes them."""
    below, real = f"{root}{os.sep}", {name: getattr(os, name) for name in (*READING, *CHANGING, *ON_NAME, *ON_TWO)}
    open_descriptor, open_file, lock = os.open, io.open, fcntl.flock

    def seen(name: str, paths: tuple[str, ...], changes: bool, make: Callable[[], Any]) -> Any:
        if not any(f"{path}{os.sep}".startswith(below) for path in paths):
            return make()
        return observer.call(FileCall(name, paths, changes), make)

    def on_name(name: str, changes: bool) -> Callable[..., Any]:
        def call(path: Any = ".", *given: Any, **named: Any) -> Any:
            return seen(name, (_path(path, named.get("dir_fd")),), changes, lambda: real[name](path, *given, **named))

        return call

    def on_two(name: str) -> Callable[..., Any]:
        def call(source: Any, target: Any, **named: Any) -> Any:
            places = _path(source, named.get("src_dir_fd")), _path(target, named.get("dst_dir_fd"))
            return seen(name, places, True, lambda: real[name](source, target, **named))

        return call

    def os_open(path: Any, flags: int, *given: Any, **named: Any) -> int:
        changes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))
        place = _path(path, named.get("dir_fd"))
        return seen(OPEN, (place,), changes, lambda: open_descriptor(path, flags, *given, **named))

    def io_open(file: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
        if isinstance(file, int) or named.get("opener") is not None:  # the opener calls os.open
            return open_file(file, mode, *given, **named)
        changes = bool(WRITING_MODES & {*mode})
        return seen(OPEN, (_path(file, None),), changes, lambda: open_file(file, mode, *given, **named))

    def flock(file: Any, operation: int) -> None:
        place = _path(file if isinstance(file, int) else file.fileno(), None)
        seen("flock", (place,), False, lambda: lock(file, operation))

    replaced: dict[tuple[Any, str], Callable[..., Any]] = {
        **{(os, name): on_name(name, name not in READING) for name in (*READING, *CHANGING, *ON_NAME)},
        **{(os, name): on_two(name) for name in ON_TWO},
        (os, "open"): os_open, (io, "open"): io_open, (builtins, "open"): io_open,
        (fcntl, "flock"): flock,
    }  # fmt: skip
    before = {(module, name): getattr(module, name) for module, name in replaced}
    try:
        for (module, name), function in replaced.items():
            setattr(module, name, function)
        yield
    finally:
        for (module, name), function in before.items():
            setattr(module, name, function)


def _path(path: Any, folder: int | None) -> str:
    """The absolute path of what a function was given: a path, also relative to a descriptor, or a descriptor."""
    if isinstance(path, int):
        return _of_descriptor(path)
    text = os.fsdecode(path)
    if folder is not None:
        return os.path.join(_of_descriptor(folder), text)
    return os.path.normpath(os.path.abspath(text))


def _of_descriptor(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def call_sites() -> list[str]:
    """The lines of the package that have led to a call, as ``run/atomic.py:180 sync_file``, the nearest first; none
    where a library called by itself.
    """
    found: list[str] = []
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE):
            found.append(f"{name.removeprefix(PACKAGE)}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return found
