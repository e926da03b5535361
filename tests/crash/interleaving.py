"""Runs several processes of a protocol as threads of which one runs at a time, and switches between them at their
calls on files: at random by a seed, or at chosen calls. Time is simulated. A process can be killed at any call, or
stand still for longer than its heartbeat may.

What happens follows from the schedule alone, so that each interleaving can be repeated.
"""

import errno
import hashlib
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import count
from random import Random
from types import ModuleType
from typing import Any, Protocol

from file_calls import FileCall

from mrt_hpc.run import leases

TICK_S = 0.001  # the simulated time of a call
REMEMBERED_S = 30.0  # for which a node may remember a listing, and that a name is not there
LOOKING = frozenset({"stat", "lstat", "open"})
MOST_CALLS = 20_000
DEADLINE_S = 60.0  # real seconds after which processes that wait for each other are an error


_END = leases.Heart.__exit__


class Killed(BaseException):
    """Ends a process; nothing that it does afterwards has an effect."""


class Schedule(Protocol):
    """Decides what happens at each call."""

    def at(self, call: int, running: int, ready: list[int]) -> int:
        """Which of the ready processes goes on."""

    def strikes(self, call: int, running: int) -> float | None:
        """Seconds for which the running process stands still, infinite for a kill; None for nothing."""

    def is_old(self) -> bool:
        """Whether a node shows what it remembers of a folder."""


@dataclass
class AtRandom:
    """Switches at random, and now and then kills a process or lets it stand still."""

    random: Random
    standing_still: float = 0.01
    killing: float = 0.005
    most_kills: int = 1

    def __post_init__(self) -> None:
        self._switching = self.random.choice((0.02, 0.1, 0.3, 0.6))
        self._old = self.random.choice((0.0, 0.5))

    def is_old(self) -> bool:
        return self.random.random() < self._old

    def at(self, call: int, running: int, ready: list[int]) -> int:
        if running in ready and self.random.random() > self._switching:
            return running
        return self.random.choice(ready)

    def strikes(self, call: int, running: int) -> float | None:
        drawn = self.random.random()
        if drawn < self.killing and self.most_kills:
            self.most_kills -= 1
            return float("inf")
        return self.random.uniform(0.0, 60.0) if drawn < self.killing + self.standing_still else None


@dataclass(frozen=True)
class AtCalls:
    """Switches at the calls with these numbers to the next process that is ready, and nowhere else."""

    switches: frozenset[int]

    def at(self, call: int, running: int, ready: list[int]) -> int:
        if running in ready and call not in self.switches:
            return running
        return next((number for number in ready if number > running), ready[0])

    def strikes(self, call: int, running: int) -> float | None:
        return None

    def is_old(self) -> bool:
        return False


@dataclass
class Process:
    """One process: what it does, and what became of it."""

    act: Callable[[], Any]
    number: int
    turn: threading.Lock = field(default_factory=lambda: held_lock())
    """Held but for the moment in which the process is told to go on: a semaphore takes ten times as long."""
    until: float = 0.0
    """The time at which it goes on; infinite once it has ended or was killed."""
    outcome: Any = None
    error: BaseException | None = None
    hearts: list[leases.Heart] = field(default_factory=list)
    stood_still: list[tuple[float, float]] = field(default_factory=list)
    """From when to when; to infinity where it was killed."""
    listings: dict[str, tuple[float, list[str]]] = field(default_factory=dict)
    """What its node remembers of folders, and since when."""
    absent: dict[str, float] = field(default_factory=dict)
    """The names that its node remembers not to be there, and since when."""

    @property
    def was_killed(self) -> bool:
        return isinstance(self.error, Killed)


def held_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


class Simulation:
    """Runs processes; an observer of their calls on files."""

    def __init__(self, acts: list[Callable[[], Any]], schedule: Schedule) -> None:
        self.processes = [Process(act, number) for number, act in enumerate(acts)]
        self.schedule, self.calls, self.now = schedule, 0, 1000.0
        self.history = hashlib.blake2b(digest_size=12)
        """Of who went on at each call, and of what struck."""
        self._of_thread = threading.local()
        self._beating = False
        self._over = held_lock()

    def run(self) -> list[Process]:
        """Run all processes to their ends.

        Raises:
            TimeoutError: they wait for something that is no file.
        """
        with self._simulated():
            threads = [threading.Thread(target=self._run, args=(process,), daemon=True) for process in self.processes]
            for thread in threads:
                thread.start()
            self._pass_on(self.processes[0])
            if not self._over.acquire(timeout=DEADLINE_S):
                raise TimeoutError("the processes of a simulation wait for each other")
            for thread in threads:
                thread.join(DEADLINE_S)
        return self.processes

    def call(self, call: FileCall, make: Callable[[], Any]) -> Any:
        """A call of a process, before which another one may run."""
        me = self.running
        if me is not None and not self._beating:
            self.calls += 1
            self.now += TICK_S
            if self.calls > MOST_CALLS:
                raise RuntimeError(f"{MOST_CALLS} calls, and no end")
            still = self.schedule.strikes(self.calls, me.number)
            self.history.update(f"{me.number} {still} ".encode())
            if still == float("inf"):
                me.error = Killed()
                me.stood_still.append((self.now, still))
            elif still is not None:
                me.until = self.now + still
                me.stood_still.append((self.now, me.until))
            self._switch(me)
            return self._of_its_node(me, call, make)
        return make()

    def _of_its_node(self, me: Process, call: FileCall, make: Callable[[], Any]) -> Any:
        """A network filesystem: a node may remember for a while what a folder holds, and which names are not there,
        until it changes that folder itself.
        """
        for path in call.paths if call.changes else ():
            self._forget(me, os.path.dirname(path))
        if call.name == "listdir":
            return self._listed(me, call.paths[0], make)
        return self._found(me, call.paths[0], make) if call.name in LOOKING and not call.changes else make()

    def _listed(self, me: Process, folder: str, make: Callable[[], Any]) -> list[str]:
        since, names = me.listings.get(folder, (-REMEMBERED_S, []))
        if self.now - since < REMEMBERED_S and self.schedule.is_old():
            return list(names)
        self._forget(me, folder)
        me.listings[folder] = self.now, make()
        return list(me.listings[folder][1])

    def _found(self, me: Process, path: str, make: Callable[[], Any]) -> Any:
        if self.now - me.absent.get(path, -REMEMBERED_S) < REMEMBERED_S and self.schedule.is_old():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        try:
            found = make()
        except FileNotFoundError:
            me.absent[path] = self.now
            raise
        # A node that finds a file knows of the folders above it.
        me.absent = {name: since for name, since in me.absent.items() if not f"{path}/".startswith(f"{name}/")}
        return found

    def _forget(self, me: Process, folder: str) -> None:
        me.listings.pop(folder, None)
        me.absent = {path: since for path, since in me.absent.items() if os.path.dirname(path) != folder}

    @property
    def running(self) -> Process | None:
        """The process of this thread; None for one that a process has started, which counts as its part."""
        return getattr(self._of_thread, "process", None)

    def sleep(self, seconds: float) -> None:
        if (me := self.running) is None:
            time.sleep(seconds)
            return
        me.until = self.now + seconds
        self._switch(me)

    def _run(self, process: Process) -> None:
        self._of_thread.process = process
        process.turn.acquire()
        try:
            process.outcome = process.act()
        except BaseException as error:
            process.error = process.error or error
        process.until = float("inf")
        process.hearts.clear()
        if all(other.until == float("inf") for other in self.processes):
            self._over.release()
        else:
            self._pass_on(self._next(process))

    def _switch(self, me: Process) -> None:
        if me.was_killed:
            raise Killed
        following = self._next(me)
        if following is not me:
            self._pass_on(following)
            me.turn.acquire()
        if me.was_killed:
            raise Killed

    def _next(self, me: Process) -> Process:
        alive = [process for process in self.processes if process.until != float("inf")]
        if not any(process.until <= self.now for process in alive):
            self._pass_time(min(process.until for process in alive), alive)
        ready = [process.number for process in alive if process.until <= self.now]
        return self.processes[self.schedule.at(self.calls, me.number, ready)]

    def _pass_on(self, process: Process) -> None:
        process.turn.release()

    def _pass_time(self, until: float, alive: list[Process]) -> None:
        """All wait: time goes on. The hearts beat of those that wait and do not stand still."""
        self.now, self._beating = until, True
        for process in alive:
            if not any(start <= until < end for start, end in process.stood_still):
                for heart in process.hearts:
                    heart.beat()
        self._beating = False

    @contextmanager
    def _simulated(self) -> Iterator[None]:
        clock, names = _Clock(self), count()
        timed, locked = what_is_replaced(len(sys.modules))
        with replaced(
            *((module, "time", clock) for module in timed),
            *((cached, "lock", nullcontext()) for cached in locked),
            # temporary names begin with the first digits
            (uuid, "uuid4", lambda: uuid.UUID(int=next(names) << 80)),
            (socket, "gethostname", lambda: f"node{me.number}" if (me := self.running) else "node"),
            (leases.Heart, "__enter__", lambda heart: self._beats(heart)),
            (leases.Heart, "__exit__", lambda heart, *_: self._ends(heart)),
        ):
            yield

    def _beats(self, heart: leases.Heart) -> leases.Heart:
        """Takes the place of the beginning of a heart, which has no thread here."""
        heart.beat()
        if (me := self.running) is not None:
            me.hearts.append(heart)
        return heart

    def _ends(self, heart: leases.Heart) -> None:
        if (me := self.running) is not None and heart in me.hearts:
            me.hearts.remove(heart)
        heart._thread = NoThread()
        _END(heart)


@contextmanager
def replaced(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Attributes have other values during the block; pytest's own patches take as long as a simulation."""
    before = [(holder, name, getattr(holder, name)) for holder, name, _ in changes]
    try:
        for holder, name, value in changes:
            setattr(holder, name, value)
        yield
    finally:
        for holder, name, value in before:
            setattr(holder, name, value)


class NoThread(threading.Thread):
    """A thread that never began."""

    def join(self, timeout: float | None = None) -> None:
        """There is nothing to wait for."""


@cache
def what_is_replaced(loaded: int) -> tuple[list[ModuleType], list[Any]]:
    """The modules of the package that have ``time``, and the cached properties with a lock, where so many modules are
    loaded. They are looked for once, as that takes longer than a simulation.
    """
    modules = [module for name, module in sys.modules.items() if name.startswith("mrt_hpc.")]
    timed = [module for module in modules if getattr(module, "time", None) is time]
    return timed, [found for module in modules for found in locked_properties(module)]


def locked_properties(module: ModuleType) -> Iterator[Any]:
    """Cached properties whose lock all objects of a class share (until Python 3.12), and so here all processes."""
    for kind in vars(module).values():
        for value in vars(kind).values() if isinstance(kind, type) else ():
            if isinstance(value, cached_property) and hasattr(value, "lock"):
                yield value


class _Clock:
    """Stands where modules have ``time``."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def sleep(self, seconds: float) -> None:
        self._simulation.sleep(seconds)

    def monotonic(self) -> float:
        return self._simulation.now

    time = perf_counter = monotonic
