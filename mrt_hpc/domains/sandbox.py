"""Starts Python in a sandbox made by bubblewrap (``bwrap``).

A sandboxed process has user, mount, process, network, IPC and host name namespaces of its own. It sees ``/usr``, the
libraries and this Python's packages, all of them read-only; no ``/proc``, ``/sys``, ``/dev/shm``, home or run
directory; none of the environment. It may not start a process, so that the limits of one process, on memory and
processor time, are those of all together; it cannot open a socket, nor use memory that those limits do not count. When
bwrap ends, or the process that started bwrap, the kernel ends whatever is in the sandbox.
"""

import json
import os
import platform
import secrets
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from mrt_hpc.domains import program_runner
from mrt_hpc.errors import ExitCode, UserError

RUNNER = "/runner.py"
"""Where the program of the sandbox is seen in it."""
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": program_runner.FOLDER,
    "TMPDIR": program_runner.FOLDER,
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
START_S = 1.0
"""Seconds on the clock in which the sandboxes start, beyond those of the program."""
STARTS = 3
"""The number of times that sandboxes are started for one verdict, where they do not start."""
OWN_USER = ("--uid", "65534", "--gid", "65534")
"""Any but 0: a program that is executed must not get back the right to mount that was given up."""
REFUSED_CALLS = {
    "ptrace": 101, "fork": 57, "vfork": 58, "unshare": 272, "setns": 308, "socket": 41,
    "shmget": 29, "msgget": 68, "semget": 64, "mq_open": 240, "memfd_create": 319, "memfd_secret": 447,
    "add_key": 248, "request_key": 249, "keyctl": 250,
    "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425,
}  # fmt: skip
"""System calls of x86-64 that make processes or namespaces, take memory beside the limits, reach what no namespace
separates (keyrings, sockets of virtual machines), or give the kernel work in the name of the process.
"""
_CLONE, _CLONE3, _CLONE_THREAD = 56, 435, 0x10000
_X86_64, _X32 = 0xC000003E, 0x40000000
_LOAD, _EQUAL, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _REFUSE, _UNKNOWN = 0x7FFF0000, 0x80000000, 0x00050000 | 1, 0x00050000 | 38
"""Verdicts of a filter: the last two let the call fail with EPERM and ENOSYS."""


def bwrap() -> str:
    """The path of bubblewrap.

    Raises:
        UserError: there is none.
    """
    if (path := shutil.which("bwrap")) is not None:
        return path
    raise UserError(
        "programs of answers run in a sandbox only, and this machine has no bubblewrap",
        value="bwrap",
        where=f"PATH of {platform.node()}",
        expected="the program bwrap of the package bubblewrap, 0.4 or newer",
        advice="install it (apt-get or dnf install bubblewrap), or ask the administrators to; without root, run the "
        "tasks in an image of `mrt-hpc container build`, which has it. On a cluster `mrt-hpc doctor --on-node` then "
        "tries it on a node",
        exit_code=ExitCode.RETRYABLE,  # another node may have it
    )


def does_not_work(reason: str) -> UserError:
    """The error of a sandbox that cannot be made, or does not hold."""
    return UserError(
        "programs of answers run in a sandbox only, and none can be made on this machine",
        value=reason,
        where=f"bwrap on {platform.node()}",
        expected="namespaces for users without privileges, and seccomp, on x86-64",
        advice="ask the administrators to allow them: sysctl user.max_user_namespaces=15000; on Debian also "
        "kernel.unprivileged_userns_clone=1; on Ubuntu 24.04 and newer a profile of AppArmor for bwrap. Then "
        "`mrt-hpc doctor --recipe RECIPE`, on a cluster with --on-node, tries it again",
        exit_code=ExitCode.RETRYABLE,
    )


@dataclass(frozen=True)
class Limits:
    """What each of the two processes may use."""

    cpu_s: int
    memory_bytes: int


@dataclass(frozen=True)
class Outcome:
    """What the process of the gold answer reported; by default, that it reported nothing within its limits."""

    finished: bool = False
    """Whether the gold answer came to its end."""
    held: frozenset[tuple[int, int]] = frozenset()
    """Line and column of each assertion that ran and held."""
    fault: str | None = None
    """What the gold answer does that cannot be done here."""


def evaluate_apart(program: str, gold: str, limits: Limits, wall_s: float) -> Outcome:
    """Execute an answer in one sandbox, and the assertions of its gold answer in another.

    Raises:
        UserError: there is no sandbox, or none starts.
    """
    nonce = secrets.token_hex()
    job = json.dumps({"gold": gold, "program": program, "nonce": nonce}).encode() + b"\n"
    said = ""
    for _ in range(STARTS):
        with TemporaryFile() as errors:
            lines = _lines(job, limits, wall_s, errors)
            if lines:  # the first one says that both are ready
                return _outcome(json.loads(lines[1]), nonce) if len(lines) > 1 else Outcome()
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip()
    raise does_not_work(said or f"no sandbox started within {wall_s + START_S:g} s")


def _outcome(report: dict[str, Any], nonce: str) -> Outcome:
    held = frozenset((line, column) for line, column in report.get("held", ()))
    return Outcome(secrets.compare_digest(report.get("nonce", ""), nonce), held, report.get("fault"))


def _lines(job: bytes, limits: Limits, wall_s: float, errors: BinaryIO) -> list[bytes]:
    """The whole lines that the process of the gold answer wrote until both processes were ended."""
    here, there = socket.socketpair()
    with here, there, _sandboxed("answer", limits, stdin=here, stdout=subprocess.DEVNULL, stderr=errors, writes=True):
        here.close()
        pipe = subprocess.PIPE
        with _sandboxed("gold", limits, stdin=pipe, stdout=pipe, stderr=errors, keep=there.fileno()) as process:
            there.close()
            try:
                output, _ = process.communicate(job, timeout=wall_s + START_S)
            except subprocess.TimeoutExpired as late:
                output = late.output or b""
    return output.splitlines() if output.endswith(b"\n") else output.splitlines()[:-1]


@contextmanager
def _sandboxed(
    part: str, limits: Limits, *, writes: bool = False, keep: int | None = None, **streams: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Run :mod:`mrt_hpc.domains.program_runner` in a sandbox, and end it with the block.

    Args:
        part: that it plays.
        limits: on its process.
        writes: whether it has a folder of its own to write to.
        keep: an open file that it gets.
        streams: its standard streams, as :class:`subprocess.Popen` takes them.

    Raises:
        UserError: there is no bubblewrap.
    """
    arguments = [part, json.dumps({**asdict(limits), "paths": _packages()}), *(() if keep is None else (str(keep),))]
    with _filter() as rules:
        command = [bwrap(), *_walls(), "--seccomp", str(rules), *(("--cap-add", "CAP_SYS_ADMIN") if writes else ())]
        command += ["--", str(Path(sys.executable).resolve()), "-I", "-S", RUNNER, *arguments]
        files = (rules,) if keep is None else (rules, keep)
        process = subprocess.Popen(command, env=ENVIRONMENT, pass_fds=files, **streams)
    with process:
        try:
            yield process
        finally:
            process.kill()


def _walls() -> list[str]:
    """The options of bwrap but for the filter."""
    walls = ["--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", *OWN_USER, "--cap-drop", "ALL"]
    for path in ("/usr", *_outside_usr()):
        walls += ["--ro-bind", path, path]
    for path in ("/bin", "/lib", "/lib64"):
        if Path(path).is_symlink():
            walls += ["--symlink", str(Path(path).readlink()), path]
        else:
            walls += ["--ro-bind-try", path, path]
    for path in ("/etc/ld.so.cache", "/etc/alternatives"):
        walls += ["--ro-bind-try", path, path]
    for path in ("/dev/null", "/dev/urandom"):
        walls += ["--dev-bind", path, path]
    walls += ["--ro-bind", program_runner.__file__, RUNNER, "--dir", program_runner.FOLDER]
    return [*walls, "--remount-ro", "/", "--chdir", program_runner.FOLDER]


def _packages() -> list[str]:
    """The folders of installed packages."""
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages")) and Path(path).is_dir()]


def _outside_usr() -> list[str]:
    """What this Python consists of that is not below /usr."""
    folders = [sys.base_prefix, *_packages()]
    return [path for path in dict.fromkeys(folders) if not Path(path).is_relative_to("/usr")]


@contextmanager
def _filter() -> Iterator[int]:
    """A pipe with the filter of system calls, as bwrap reads it."""
    reader, writer = os.pipe()
    try:
        with os.fdopen(writer, "wb") as stream:
            stream.write(filter_program())
        yield reader
    finally:
        os.close(reader)


def filter_program() -> bytes:
    """The filter of system calls as the kernel takes it, in instructions of 8 bytes.

    Threads are allowed, and other ways of ``clone`` are not; ``clone3``, whose flags a filter cannot see, is said not
    to exist, and the C library then calls ``clone``.
    """
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _X86_64), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    steps += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _REFUSE)]
    for number in REFUSED_CALLS.values():
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    steps += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _UNKNOWN)]
    steps += [(_EQUAL, 0, 3, _CLONE), (_LOAD, 0, 0, 16), (_HAS_BITS, 1, 0, _CLONE_THREAD), (_RETURN, 0, 0, _REFUSE)]
    steps += [(_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)
