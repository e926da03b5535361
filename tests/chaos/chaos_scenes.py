"""Each named fault against each role at each phase that it can hit, on a real cluster.

A scene waits for its phase, which is read off the files of the run, and strikes. As many runs follow one another as the
scenes need: a run has one preparation and one report.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import psutil
from chaos_faults import FaultKind, strike
from run_of import read_events

from mrt_hpc.run.atomic import is_temporary
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.groups import complete_groups
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.weights import published_versions

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from chaos_target import Target

    from mrt_hpc.run.layout import RunLayout

SNIPE_S = 1.0


class Phase(StrEnum):
    ANY = "at work"
    STARTING = "starting"
    WAITING = "waiting"
    SAMPLING = "sampling"
    COMMITTING = "committing a group"
    LOADING = "loading weights"
    STEPPING = "updating"
    SAVING = "saving a checkpoint"
    PUBLISHING = "publishing weights"


BRIEF = (Phase.COMMITTING, Phase.LOADING, Phase.STEPPING, Phase.SAVING, Phase.PUBLISHING)
"""Phases of milliseconds: too short for one of Slurm's commands."""
PHASES = {
    "prepare": (Phase.ANY,),
    "trainer": (Phase.STARTING, Phase.WAITING, Phase.STEPPING, Phase.SAVING, Phase.PUBLISHING),
    "inference": (Phase.STARTING, Phase.SAMPLING, Phase.COMMITTING, Phase.LOADING),
    "evaluation": (Phase.STARTING, Phase.SAMPLING),
    "report": (Phase.ANY,),
}
COMMANDED = (FaultKind.CUT_NODE, FaultKind.PREEMPT, FaultKind.REQUEUE)


@dataclass(frozen=True)
class Scene:
    role: str
    phase: Phase
    fault: FaultKind

    @property
    def alone(self) -> bool:
        """Whether the role's task does only one thing, with no other task of the role."""
        return self.role in ("prepare", "report")

    def __str__(self) -> str:
        return f"{self.role}, {self.phase}: {self.fault}"


def scenes(words: Sequence[str] = ()) -> list[Scene]:
    """All of them, or those whose names hold one of the words."""
    found = [
        Scene(role, phase, fault)
        for role, phases in PHASES.items()
        for phase in phases
        for fault in (FaultKind.KILL_TASK, *(() if phase in BRIEF else COMMANDED))
    ]
    found += [Scene(role, Phase.ANY, FaultKind.TIME_LIMIT) for role in ("trainer", "inference", "evaluation")]
    return [scene for scene in found if not words or any(word in str(scene) for word in words)]


def played(scene: Scene, target: Target, rng: random.Random) -> str | None:
    """Strike if a task of the role is in the phase; what was hit, None where it is not."""
    aimed = replace(target, focus=(scene.role,))
    if scene.phase in BRIEF:
        return _sniped(scene, aimed, rng)
    if not _CONDITIONS[scene.phase](scene.role, target.layout) or not aimed.tasks(scene.role):
        return None
    return strike(scene.fault, aimed, rng)


def _sniped(scene: Scene, target: Target, rng: random.Random) -> str | None:
    """Choose the victim first, then look for the phase without a pause for a while, and kill at once."""
    victims, end = target.tasks(scene.role), time.monotonic() + SNIPE_S
    if not victims:
        return None
    victim = rng.choice(victims)
    while not _CONDITIONS[scene.phase](scene.role, target.layout):
        if time.monotonic() > end:
            return None
    try:
        victim.kill()
    except psutil.NoSuchProcess:
        return None
    return f"process {victim.pid}"


# -- phases, as the files show them ------------------------------------------------------------------------------------


def _starting(role: str, layout: RunLayout) -> bool:
    """The newest attempt of the role has said nothing but that it started."""
    mine = next(reversed(attempts(role, layout)), [])
    return bool(mine) and set(mine) <= {EventKind.TASK_STARTED, EventKind.SET_ASIDE}


def _sampling(role: str, layout: RunLayout) -> bool:
    """An attempt of the role has a server, and samples something."""
    over = {EventKind.TASK_ENDED, *((EventKind.SHARD_COMMITTED,) if role == "evaluation" else ())}
    serving = [said for said in attempts(role, layout) if EventKind.SERVER_STARTED in said and over.isdisjoint(said)]
    return bool(serving) and (role == "evaluation" or bool(_leased(layout)))


def _stepping(_: str, layout: RunLayout) -> bool:
    """All groups of the iteration are there, and the next weights version is not."""
    newest = max(published_versions(layout), default=-1)
    return newest >= 0 and len(complete_groups(layout.groups(newest))) == len(list_directory(layout.leases(newest))) > 0


def _loading(_: str, layout: RunLayout) -> bool:
    """A weights version has just been published, and no task works on it yet."""
    newest = max(published_versions(layout), default=0)
    return newest > 0 and not list_directory(layout.leases(newest))


def _leased(layout: RunLayout) -> set[str]:
    """The groups that are being sampled in the current iteration."""
    newest = max(published_versions(layout), default=0)
    complete = {f"{position:05d}" for position in complete_groups(layout.groups(newest))}
    return {path.stem for path in list_directory(layout.leases(newest)) if not is_temporary(path)} - complete


def attempts(role: str, layout: RunLayout) -> list[list[str]]:
    """Kinds of the events of each attempt at a task of the role, in the order in which they started."""
    said: dict[int, list[str]] = {}
    for event in read_events(layout.events):
        if event["kind"] == EventKind.TASK_STARTED:
            said.pop(event["pid"], None)
            if _is_first_of(role, event):
                said[event["pid"]] = []
        if event["pid"] in said:
            said[event["pid"]].append(event["kind"])
    return list(said.values())


def _is_first_of(role: str, start: dict[str, Any]) -> bool:
    """Whether the process that has started speaks for a task of the role: its first rank, or the process that samples
    for a colocated task.
    """
    if start["job"].endswith(".colocated"):
        return bool(start["rank"] == {"trainer": 0, "inference": start["world_size"]}.get(role))
    return bool(start["job"].endswith(role) and start["rank"] == 0)


def _unfinished(find: Callable[[RunLayout], Path]) -> Callable[[str, RunLayout], bool]:
    """Somebody is writing there."""
    return lambda _, layout: any(is_temporary(path) for path in list_directory(find(layout)))


_CONDITIONS: dict[Phase, Callable[[str, RunLayout], bool]] = {
    Phase.ANY: lambda role, layout: bool(attempts(role, layout)),
    Phase.STARTING: _starting,
    Phase.WAITING: lambda _, layout: not _starting("trainer", layout) and bool(_leased(layout)),
    Phase.SAMPLING: _sampling,
    Phase.COMMITTING: _unfinished(lambda layout: layout.groups(max(published_versions(layout), default=0))),
    Phase.LOADING: _loading,
    Phase.STEPPING: _stepping,
    Phase.SAVING: _unfinished(lambda layout: layout.checkpoints),
    Phase.PUBLISHING: _unfinished(lambda layout: layout.weights),
}
