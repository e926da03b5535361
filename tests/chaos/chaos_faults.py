"""Faults: whom they hit, and how."""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil
from chaos_target import Target
from slurm_cluster import Cluster
from submitted import current_ids

from mrt_hpc.attempt.placement import RANK
from mrt_hpc.backends.slurm.queue import queue_states
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.run.archive import sampled_positions
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import wait_until
from mrt_hpc.run.weights import published_versions

Blow = Callable[[Target, random.Random], "str | None"]

LONGEST_TO_NOTICE_S = 240.0
"""Until a controller that has just been restarted, on a busy machine, calls a node down; and until a run whose trainer
has just been killed writes something, and finds the disk full.
"""
ROOM_FOR_MESSAGES = "64KiB"  # kept in each log, which is on the same disk: a full one takes no message either
ANY = ("trainer", "inference", "evaluation")  # the roles of whose tasks one is hit, by faults that may hit any
ENOUGH_GROUPS = 12  # completed by others while one is frozen: two iterations


class FaultKind(StrEnum):
    KILL_TRAINER = "kill -9 of a trainer rank"
    KILL_INFERENCE = "kill -9 of an inference task"
    KILL_SERVER = "kill -9 of a vLLM server"
    KILL_ENGINE = "kill -9 of a vLLM engine"
    HANG_ENGINE = "SIGSTOP of a vLLM engine"
    KILL_RAY = "kill -9 of a process of Ray"
    TERM_TRAINER = "SIGTERM to the trainer"
    TERM_INFERENCE = "SIGTERM to an inference task"
    FREEZE_INFERENCE = "SIGSTOP of an inference task, until its lease has passed on"
    KILL_ALL = "kill -9 of everything, and the same command again"
    CORRUPT_CHECKPOINT = "a byte changed in the newest checkpoint, and kill -9 of the trainer"
    TEAR_CHECKPOINT = "the newest checkpoint cut short, and kill -9 of the trainer"
    CORRUPT_WEIGHTS = "a byte changed in the newest weights version, and kill -9 of inference"
    FULL_DISK = "a full disk for some seconds"
    CUT_NODE = "a power cut of a node, which returns"
    REQUEUE = "scontrol requeue"
    PREEMPT = "preemption"
    TIME_LIMIT = "the time limit"
    KILL_CONTROLLER = "kill -9 of slurmctld, for some seconds"
    KILL_ACCOUNTING = "kill -9 of slurmdbd, for some seconds"
    RESUBMIT = "mrt-hpc cancel, and the same command again"


LOCAL_ONLY = frozenset({FaultKind.KILL_ALL})
SLURM_ONLY = frozenset(
    {
        FaultKind.CUT_NODE, FaultKind.REQUEUE, FaultKind.PREEMPT, FaultKind.TIME_LIMIT, FaultKind.KILL_CONTROLLER,
        FaultKind.KILL_ACCOUNTING, FaultKind.RESUBMIT,
    }
)  # fmt: skip


def possible(*, slurm: bool, disk: bool, ray: bool = False, never: Collection[FaultKind] = ()) -> list[FaultKind]:
    """The kinds that can strike a run, on Slurm or on this machine alone, on a small disk of its own or not, with tasks
    of several nodes or not; and ``never`` those.
    """
    impossible = {*(LOCAL_ONLY if slurm else SLURM_ONLY), *(() if disk else (FaultKind.FULL_DISK,))}
    impossible |= set() if ray else {FaultKind.KILL_RAY}
    impossible |= set(never)
    return [kind for kind in FaultKind if kind not in impossible]


def strike(kind: FaultKind, target: Target, rng: random.Random) -> str | None:
    """Do it; what was hit, or None where there is nothing to hit just now."""
    try:
        return _STRIKES[kind](target, rng)
    except (psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):
        return None  # it ended by itself in that moment


def _signal(find: Callable[[Target], list[psutil.Process]], number: signal.Signals) -> Blow:
    def hit(target: Target, rng: random.Random) -> str | None:
        if not (found := find(target)):
            return None
        victim = rng.choice(found)
        os.kill(victim.pid, number)
        return f"process {victim.pid}"

    return hit


def _kill_all(target: Target, _: random.Random) -> str | None:
    """Servers have sessions of their own: that they follow is part of the test."""
    if target.leader is None:
        return None
    os.killpg(target.leader, signal.SIGKILL)
    return f"process group {target.leader}"


def _freeze(target: Target, rng: random.Random) -> str | None:
    found = _first_ranks(target)
    if len(found) < 2:
        return None  # no other task could replace it
    victim = rng.choice(found)
    victim.suspend()
    try:
        passed, done = _passed_leases(target), _groups(target)
        wait_until(
            lambda: (
                _passed_leases(target) - passed
                or _groups(target) > done + ENOUGH_GROUPS  # the victim may have held none
                or not target.tasks("trainer")
                or len(_first_ranks(target)) < 2  # the other one has ended, and this cluster may not start it again
            ),
            reason="a lease to pass on",
            deadline_s=240,
        )
    finally:
        victim.resume()
    return f"process {victim.pid}"


def _first_ranks(target: Target) -> list[psutil.Process]:
    return [process for process in target.tasks("inference") if _rank(process) == "0"]


def _rank(process: psutil.Process) -> str:
    variables = process.environ()
    return variables.get("SLURM_PROCID", variables.get(RANK, ""))


def _groups(target: Target) -> int:
    iterations = [int(p.name) for p in target.layout.root.glob("iterations/*")]
    return sum(len(sampled_positions(target.layout, iteration)) for iteration in iterations)


def _passed_leases(target: Target) -> set[Path]:
    return {p for p in target.layout.root.glob("iterations/*/leases/*") if p.suffix != ".000"}


def _damage_checkpoint(tear: bool) -> Blow:
    def hit(target: Target, rng: random.Random) -> str | None:
        steps = [p for p in target.layout.checkpoints.iterdir() if target.layout.step_of(p) is not None]
        trainers = target.tasks("trainer")
        if not steps or not trainers:
            return None
        file = rng.choice(sorted(p for p in max(steps).rglob("*") if p.is_file() and p.stat().st_size))
        os.truncate(file, rng.randrange(file.stat().st_size)) if tear else _flip(file, rng)
        os.kill(rng.choice(trainers).pid, signal.SIGKILL)
        return str(file.relative_to(target.layout.root))

    return hit


def _damage_newest(target: Target, rng: random.Random) -> str | None:
    newest = max(published_versions(target.layout), default=0)
    return _damage_weights(target, newest, rng) if _is_still_read(target.layout, newest) else None


def _is_still_read(layout: RunLayout, version: int) -> bool:
    """Whether inference has yet to sample with a version. Damage to a version that no task reads any more is found by
    the first that does, perhaps after the run; and the last version is made again only when the command is typed again.
    """
    recipe = read_recipe_lock(layout.recipe_lock, looking=True)
    if not 0 < version < recipe.schedule.iterations:
        return False
    return len(sampled_positions(layout, version)) < recipe.sampling.problems_per_iteration


def _damage_weights(target: Target, version: int, rng: random.Random) -> str | None:
    if not (tasks := target.tasks("inference")):
        return None
    _flip(max(target.layout.weights_version(version).iterdir(), key=lambda file: file.stat().st_size), rng)
    for task in tasks:
        os.kill(task.pid, signal.SIGKILL)
    return f"version {version}"


def _flip(file: Path, rng: random.Random) -> None:
    place = rng.randrange(file.stat().st_size)
    with file.open("r+b") as stream:
        stream.seek(place)
        byte = stream.read(1)[0]
        stream.seek(place)
        stream.write(bytes([byte ^ (1 << rng.randrange(8))]))


def _fill_disk(target: Target, _: random.Random) -> str | None:
    if target.small_disk is None:
        return None
    filler, before = target.small_disk / "filler", _pauses(target)
    for log in _logs(target):
        room = ("--offset", str(log.stat().st_size), "--length", ROOM_FOR_MESSAGES)
        subprocess.run(["fallocate", "--keep-size", *room, log], check=True)
    with contextlib.suppress(OSError), filler.open("wb") as stream:  # until it is full
        while True:
            stream.write(b"\0" * 65536)
    try:
        wait_until(lambda: _pauses(target) > before or not target.tasks(*ANY),
                   reason="the run to notice the full disk", deadline_s=LONGEST_TO_NOTICE_S)  # fmt: skip
    finally:
        filler.unlink()
    return str(target.small_disk)


def _pauses(target: Target) -> int:
    return sum(log.read_bytes().count(b"PAUSED") for log in _logs(target))


def _logs(target: Target) -> list[Path]:
    return [p for p in target.layout.logs.rglob("*") if p.suffix in (".log", ".err")]


@dataclass(frozen=True)
class SlurmTask:
    name: str  # as scontrol takes it
    node: str
    process: psutil.Process


def _on_slurm(blow: Callable[[Cluster, SlurmTask], object]) -> Blow:
    def hit(target: Target, rng: random.Random) -> str | None:
        found = target.tasks(*ANY)
        if target.cluster is None or not found:
            return None
        process = rng.choice(found)
        variables = process.environ()
        array, index = variables.get("SLURM_ARRAY_JOB_ID"), variables.get("SLURM_ARRAY_TASK_ID")
        name = f"{array}_{index}" if array else variables["SLURM_JOB_ID"]
        blow(target.cluster, task := SlurmTask(name, variables["SLURMD_NODENAME"], process))
        return f"task {task.name} on {task.node}"

    return hit


def _gone(task: SlurmTask, deadline_s: float) -> None:
    wait_until(lambda: not task.process.is_running(), reason=f"the end of task {task.name}", deadline_s=deadline_s)


def _cut_node(cluster: Cluster, task: SlurmTask) -> None:
    """The node returns when Slurm has found out, as after a reboot."""
    asked = ("sinfo", "--noheader", f"--nodes={task.node}", "--Format=StateComplete")
    assert cluster.onehost("kill-node", task.node).returncode == 0
    try:
        wait_until(lambda: "down" in cluster.as_user(*asked).stdout.lower(),
                   reason=f"{task.node} to be down", deadline_s=LONGEST_TO_NOTICE_S)  # fmt: skip
    finally:
        assert cluster.onehost("start-node", task.node).returncode == 0


def _preempt(cluster: Cluster, task: SlurmTask) -> None:
    """Somebody with a right to the node wants it, by partition or by QOS, whichever the cluster goes by."""
    cluster.push_out(task.node)
    _gone(task, 120)


def _limit_time(cluster: Cluster, task: SlurmTask) -> None:
    """As if the limit were near: it is lowered until the signal that announces it comes within a minute."""
    query = ("squeue", "--noheader", f"--jobs={task.name}", "--format=%M")
    *_, minutes, _seconds = ("0:" + cluster.as_user(*query).stdout.strip()).split(":")
    cluster.as_user("scontrol", "update", f"JobId={task.name}", f"TimeLimit={int(minutes or 0) + 2}")
    try:
        _gone(task, 200)
    finally:  # the next attempt is to have its whole time again, which only root may give
        subprocess.run(["scontrol", "update", f"JobId={task.name}", "TimeLimit=30"], check=False)


def _kill_daemon(name: str) -> Blow:
    def hit(target: Target, rng: random.Random) -> str | None:
        if target.cluster is None:
            return None
        assert target.cluster.onehost(f"kill-{name}").returncode == 0
        end = time.monotonic() + rng.uniform(2.0, 15.0)
        wait_until(lambda: time.monotonic() > end, reason=f"the restart of the {name}", deadline_s=60)
        assert target.cluster.onehost(f"start-{name}").returncode == 0
        return name

    return hit


def _resubmit(target: Target, _: random.Random) -> str | None:
    """The user changes their mind twice; after the first time the queue holds nothing of the run, nor of its earlier
    submissions.
    """
    if (cluster := target.cluster) is None:
        return None
    ids = current_ids(target.layout)
    cancelled = cluster.mrt_hpc("cancel", str(target.layout.root))
    assert cancelled.returncode == 0, cancelled.stderr

    def is_over() -> bool:
        queue = cluster.as_user("squeue", "--noheader", "--format=%j")
        assert queue.returncode == 0, queue.stderr
        left = [name for name in queue.stdout.splitlines() if name.startswith(f"{target.layout.root.name}.")]
        return not left and not target.tasks(*ANY) and all(s.has_ended for s in queue_states(ids).values())

    wait_until(is_over, reason="a queue without jobs of the run", deadline_s=90)
    sent = cluster.mrt_hpc(*json.loads((target.layout.root.parent / "submission.json").read_text()))
    assert sent.returncode == 0, sent.stderr
    return f"jobs {' '.join(ids)}"


_STRIKES = {
    FaultKind.KILL_TRAINER: _signal(lambda t: t.tasks("trainer"), signal.SIGKILL),
    FaultKind.KILL_INFERENCE: _signal(lambda t: t.tasks("inference"), signal.SIGKILL),
    FaultKind.KILL_SERVER: _signal(Target.servers, signal.SIGKILL),
    FaultKind.KILL_ENGINE: _signal(Target.engines, signal.SIGKILL),
    FaultKind.HANG_ENGINE: _signal(Target.engines, signal.SIGSTOP),
    FaultKind.KILL_RAY: _signal(Target.ray_processes, signal.SIGKILL),
    FaultKind.TERM_TRAINER: _signal(lambda t: t.tasks("trainer"), signal.SIGTERM),
    FaultKind.TERM_INFERENCE: _signal(lambda t: t.tasks("inference"), signal.SIGTERM),
    FaultKind.FREEZE_INFERENCE: _freeze,
    FaultKind.KILL_ALL: _kill_all,
    FaultKind.CORRUPT_CHECKPOINT: _damage_checkpoint(tear=False),
    FaultKind.TEAR_CHECKPOINT: _damage_checkpoint(tear=True),
    FaultKind.CORRUPT_WEIGHTS: _damage_newest,
    FaultKind.FULL_DISK: _fill_disk,
    FaultKind.CUT_NODE: _on_slurm(_cut_node),
    FaultKind.REQUEUE: _on_slurm(lambda cluster, task: cluster.as_user("scontrol", "requeue", task.name)),
    FaultKind.PREEMPT: _on_slurm(_preempt),
    FaultKind.TIME_LIMIT: _on_slurm(_limit_time),
    FaultKind.KILL_CONTROLLER: _kill_daemon("controller"),
    FaultKind.KILL_ACCOUNTING: _kill_daemon("accounting"),
    FaultKind.RESUBMIT: _resubmit,
}
