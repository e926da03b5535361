"""Faults for a run on this machine: whom they hit, and how.

Every process of a run is found by its command line, which names the run directory, or as a child of such a one; nothing
else is ever signalled.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import psutil

from mrt_hpc.run.waiting import wait_until
from mrt_hpc.run.weights import published_versions

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from mrt_hpc.run.layout import RunLayout

    Blow = Callable[["Target", random.Random], "str | None"]
    """What it hit; None where there is nothing to hit just now."""


class FaultKind(StrEnum):
    """What can go wrong."""

    KILL_TRAINER = "kill -9 of a trainer rank"
    KILL_INFERENCE = "kill -9 of an inference task"
    KILL_SERVER = "kill -9 of a vLLM server"
    KILL_ENGINE = "kill -9 of a vLLM engine"
    HANG_ENGINE = "SIGSTOP of a vLLM engine"
    TERM_TRAINER = "SIGTERM to the trainer"
    TERM_INFERENCE = "SIGTERM to an inference task"
    FREEZE_INFERENCE = "SIGSTOP of an inference task, until its lease has passed on"
    KILL_ALL = "kill -9 of everything, and the same command again"
    CORRUPT_CHECKPOINT = "a byte changed in the newest checkpoint, and kill -9 of the trainer"
    TEAR_CHECKPOINT = "the newest checkpoint cut short, and kill -9 of the trainer"
    CORRUPT_WEIGHTS = "a byte changed in the newest weights version, and kill -9 of inference"
    FULL_DISK = "a full disk for some seconds"


@dataclass(frozen=True)
class Target:
    """A run under way."""

    layout: RunLayout
    leader: int
    """Process id of ``mrt-hpc submit``, which leads its process group."""
    small_disk: Path | None
    """The small filesystem that the run is on; None when it is on a large one."""

    def tasks(self, role: str) -> list[psutil.Process]:
        """The processes of a role, every rank one."""
        return [p for p in self._family() if _is_task(p, role)]

    def servers(self) -> list[psutil.Process]:
        """The API servers of the run."""
        return [p for p in self._family() if "mrt_hpc.inference.serve" in _words(p)]

    def engines(self) -> list[psutil.Process]:
        """What the servers have started."""
        return [child for server in self.servers() for child in _children(server)]

    def _family(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.leader).children(recursive=True)
        except psutil.NoSuchProcess:
            return []


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _is_task(process: psutil.Process, role: str) -> bool:
    words = _words(process)
    return "mrt_hpc.launch.task" in words and any(word.endswith(f".{role}") for word in words)


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def strike(kind: FaultKind, target: Target, rng: random.Random) -> str | None:
    """Do it; what was hit, or None where there is nothing to hit just now."""
    try:
        return _STRIKES[kind](target, rng)
    except (psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):
        return None  # it ended by itself in that moment


def _signal(find: Callable[[Target], list[psutil.Process]], number: signal.Signals) -> Blow:
    def hit(target: Target, rng: random.Random) -> str | None:
        found = find(target)
        if not found:
            return None
        victim = rng.choice(found)
        os.kill(victim.pid, number)
        return f"process {victim.pid}"

    return hit


def _kill_all(target: Target, _: random.Random) -> str | None:
    """Servers have sessions of their own: that they follow is part of the test."""
    os.killpg(target.leader, signal.SIGKILL)
    return f"process group {target.leader}"


def _freeze(target: Target, rng: random.Random) -> str | None:
    found = target.tasks("inference")
    if len(found) < 2:
        return None  # nobody could take over
    victim = rng.choice(found)
    victim.suspend()
    try:
        before = len(list(target.layout.root.glob("iterations/*/leases/*.001")))
        wait_until(
            lambda: (
                len(list(target.layout.root.glob("iterations/*/leases/*.001"))) > before or not target.tasks("trainer")
            ),
            reason="a lease to pass on",
            deadline_s=120,
        )
    finally:
        victim.resume()
    return f"process {victim.pid}"


def _passed_leases(target: Target) -> int:
    """Leases that are not the first on their group."""
    return sum(p.suffix != ".000" for p in target.layout.root.glob("iterations/*/leases/*"))


def _damage_checkpoint(tear: bool) -> Blow:
    def hit(target: Target, rng: random.Random) -> str | None:
        steps = [p for p in target.layout.checkpoints.iterdir() if target.layout.step_of(p) is not None]
        trainers = target.tasks("trainer")
        if not steps or not trainers:
            return None
        newest = max(steps)
        file = rng.choice(sorted(p for p in newest.rglob("*") if p.is_file() and p.stat().st_size))
        _tear(file, rng) if tear else _flip(file, rng)
        os.kill(rng.choice(trainers).pid, signal.SIGKILL)
        return str(file.relative_to(target.layout.root))

    return hit


def _damage_weights(target: Target, rng: random.Random) -> str | None:
    newest = max(published_versions(target.layout), default=0)
    tasks = target.tasks("inference")
    if newest == 0 or not tasks:
        return None
    _flip(target.layout.weights_version(newest) / "model.safetensors", rng)
    for task in tasks:
        os.kill(task.pid, signal.SIGKILL)
    return f"version {newest}"


def _flip(file: Path, rng: random.Random) -> None:
    with file.open("r+b") as stream:
        place = rng.randrange(file.stat().st_size)
        stream.seek(place)
        byte = stream.read(1)[0]
        stream.seek(place)
        stream.write(bytes([byte ^ (1 << rng.randrange(8))]))


def _tear(file: Path, rng: random.Random) -> None:
    os.truncate(file, rng.randrange(file.stat().st_size))


def _fill_disk(target: Target, _: random.Random) -> str | None:
    if target.small_disk is None:
        return None
    filler = target.small_disk / "filler"
    try:
        with filler.open("wb") as stream:
            while True:
                stream.write(b"\0" * 65536)
    except OSError:
        pass  # it is full now
    try:
        logs = target.layout.logs
        wait_until(
            lambda: any(b"PAUSED" in p.read_bytes() for p in logs.glob("*.log")),
            reason="the run to notice the full disk",
            deadline_s=30,
        )
    finally:
        filler.unlink()
    return str(target.small_disk)


_STRIKES = {
    FaultKind.KILL_TRAINER: _signal(lambda t: t.tasks("trainer"), signal.SIGKILL),
    FaultKind.KILL_INFERENCE: _signal(lambda t: t.tasks("inference"), signal.SIGKILL),
    FaultKind.KILL_SERVER: _signal(Target.servers, signal.SIGKILL),
    FaultKind.KILL_ENGINE: _signal(Target.engines, signal.SIGKILL),
    FaultKind.HANG_ENGINE: _signal(Target.engines, signal.SIGSTOP),
    FaultKind.TERM_TRAINER: _signal(lambda t: t.tasks("trainer"), signal.SIGTERM),
    FaultKind.TERM_INFERENCE: _signal(lambda t: t.tasks("inference"), signal.SIGTERM),
    FaultKind.FREEZE_INFERENCE: _freeze,
    FaultKind.KILL_ALL: _kill_all,
    FaultKind.CORRUPT_CHECKPOINT: _damage_checkpoint(tear=False),
    FaultKind.TEAR_CHECKPOINT: _damage_checkpoint(tear=True),
    FaultKind.CORRUPT_WEIGHTS: _damage_weights,
    FaultKind.FULL_DISK: _fill_disk,
}
