"""Explores every crash state of the protocols, what a network filesystem may do, and interleavings of the contests.

    PYTHONPATH=tests/support python tests/crash/explore.py                      once, as the tests do
    PYTHONPATH=tests/support python tests/crash/explore.py --times 0.1          a tenth of it
    PYTHONPATH=tests/support python tests/crash/explore.py --hours 8 --seed 5   further seeds, for so long

A state is built, what was promised is looked for in it, a task resumes from it, and the outcome must be that of an
undisturbed run. Some resumptions are recorded themselves, and crash as well.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from contests import Contest
from damage import Damaging, Killed, Losing
from disk import Crash, Recording, crashes, tree_after
from file_calls import calls_seen_by
from interleaving import AtCalls, AtRandom, Schedule, Simulation
from network import CALLS, STAYS, NetworkFilesystem
from protocols import Protocol
from tiny_training import ATTEMPTS, MEANWHILE

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.run import archive, atomic
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.leases import Heart
from mrt_hpc.training import checkpoint, export

IN_MEMORY = Path("/dev/shm")
RESUMPTIONS, SUBSETS = 5, 120
MOST_NAPS = 2000  # of a whole exploration, which may try again what fails
NETWORK, DAMAGES = 25, 100  # mistakes of a network filesystem, and damages, of a protocol
AGAIN = 5  # crash states of a resumption
ATTEMPTS_AT_MOST = 4  # at a protocol with damaged files


@dataclass
class Found:
    """What an exploration has found."""

    states: set[bytes] = field(default_factory=set)
    """The crash states, or the interleavings, that differ."""
    violations: list[str] = field(default_factory=list)
    sites: set[str] = field(default_factory=set)
    """The lines of the package that have changed files or names: there was a crash before and after each."""


@dataclass
class Exploration:
    """Explores one protocol in a folder."""

    protocol: Protocol
    layout: RunLayout
    random: Random
    subsets: int
    """Random choices of what is lost, after each step."""
    found: Found = field(default_factory=Found)
    wanted: Any = None

    def all(self, states: int, resumptions: int) -> Found:
        """Explore so many crash states, and further ones of so many resumptions that crash as well."""
        self.protocol.make(self.layout)
        recording = self.recorded()
        self.wanted = self.protocol.outcome(self.layout)
        self._look_at_every_step(recording)
        self._explore(recording, states)
        lost = crashes(recording, self.random, self.subsets, resumptions)
        points = range(len(recording.steps))
        killed = map(Crash, self.random.sample(points, min(2 * resumptions, len(points))))
        for crash in [*lost, *killed]:
            self._build(recording, crash)
            kept = [p for p in recording.promises if p.after <= crash.after]
            resumed = self.recorded(*((recording, crash.after) if crash == Crash(crash.after) else ()))
            resumed.promises[:0] = [p._replace(after=0) for p in kept]
            self._explore(resumed, AGAIN, of=f"{describe(recording, crash)}, and again ")
        return self.found

    def over_a_network(self, most: int) -> Found:
        """Make each mistake of a network filesystem at so many calls, and let the next attempt go on."""
        self.protocol.make(self.layout)
        begin = Recording(self.layout.root)
        self.recorded()
        self.wanted = self.protocol.outcome(self.layout)
        for mistake in CALLS:
            calls = self._mistaken(begin, NetworkFilesystem(mistake, at=0))
            for number in self.random.sample(range(1, calls + 1), min(most, calls)):
                self._mistaken(begin, NetworkFilesystem(mistake, number))
        return self.found

    def _mistaken(self, begin: Recording, filesystem: NetworkFilesystem) -> int:
        """Run the protocol on a filesystem; the number of calls at which it might have made the mistake."""
        self._build(begin, Crash(0))
        promised: list[Any] = []
        with suppress(OSError, UserError), calls_seen_by(filesystem, self.layout.root):
            self.protocol.act(self.layout, promised.append)
        begin_process()
        for closed in self.layout.root.rglob(f"{STAYS}*"):  # by the end of the process
            closed.unlink()
        where = f"{self.protocol.name}: call {filesystem.at}, {filesystem.mistake}"
        self.found.violations += [f"{where}: {wrong}" for wrong in self._violations(promised)]
        self.found.states.add(where.encode())
        return filesystem.calls

    def damaged(self, most: int) -> Found:
        """Damage what is finished, at so many calls; and lose the newest weights, at a fifth as many calls between two
        publications.
        """
        self.protocol.make(self.layout)
        begin = Recording(self.layout.root)
        with calls_seen_by(counter := Damaging(self.layout, self.random, 0, kills=False), self.layout.root):
            self.protocol.act(self.layout, lambda _: None)
        self.wanted = self.protocol.outcome(self.layout)
        for number in range(most):
            at = self.random.randrange(counter.calls // 8, counter.calls)  # before, nothing is finished
            self._damage(begin, Damaging(self.layout, self.random, at, kills=number % 2 == 0))
        for first, last in pairwise(counter.published):
            for at in self.random.sample(range(first + 1, last), min(most // 5, last - first - 1)):
                self._damage(begin, Losing(self.layout, self.random, at, kills=False))
        return self.found

    def _damage(self, begin: Recording, damaging: Damaging) -> None:
        self._build(begin, Crash(0))
        wrong = self._wrong_after(damaging)
        self.found.states.add(f"{damaging.at} {damaging.what}".encode())
        if wrong is not None:
            self.found.violations.append(f"{self.protocol.name}: {damaging.what} at call {damaging.at}: {wrong}")

    def _wrong_after(self, damaging: Damaging) -> str | None:
        """What is wrong with a run in which damage was done."""
        try:
            errors = self._errors(damaging)
            if len(errors) == ATTEMPTS_AT_MOST:
                return "it does not end"
            mends = not damaging.kills and self.protocol.mends_itself(self.layout, damaging.unit)
            if errors and mends and str(damaging.unit) not in str(errors[0]):  # else it was just reading that
                return f"it takes another attempt: {errors[0]}"
            if not errors and (later := damaging.set_aside_later):
                return f"{later}, made after the damage, were set aside"
            if len(self._errors(damaging)) == ATTEMPTS_AT_MOST:  # it may have been damaged at its end
                return "it does not end again"
            if damaging.unit is not None and not self.protocol.accepts(self.layout, damaging.unit):
                damaging.undo()  # what no reader takes makes no difference
            elif damaging.is_still_there:
                return "its readers take it for what was written"
            begin_process()
            outcome = self.protocol.outcome(self.layout)
        except UserError as error:
            refused = damaging.unit == self.layout.weights_version(0)  # only the first job can make it again
            return None if refused and str(damaging.unit) in str(error) else repr(error)
        except Exception as error:
            return repr(error)
        return None if outcome == self.wanted else f"the outcome is {outcome}, not {self.wanted}"

    def _errors(self, damaging: Damaging) -> list[UserError | Killed]:
        """The ends of the attempts before the one that ends well, which asked for another one or were killed."""
        errors: list[UserError | Killed] = []
        while len(errors) < ATTEMPTS_AT_MOST:
            try:
                with calls_seen_by(damaging, self.layout.root):
                    self.protocol.act(self.layout, lambda _: None)
                break
            except Killed as killed:
                errors.append(killed)
            except UserError as error:
                if error.exit_code is not ExitCode.RETRYABLE:
                    raise
                errors.append(error)
            finally:
                begin_process()
        return errors

    def recorded(self, *earlier: Any) -> Recording:
        """The steps of the protocol from what lies at the layout; or after the steps of a process that was killed."""
        begin_process()
        recording = Recording(self.layout.root, *earlier)
        with calls_seen_by(recording, self.layout.root):
            self.protocol.act(self.layout, recording.promise)
        recording.end()
        self.found.sites |= recording.sites
        return recording

    def _explore(self, recording: Recording, states: int, of: str = "") -> None:
        seen: set[tuple[int, bytes]] = set()
        for crash in crashes(recording, self.random, self.subsets, AGAIN if of else None):
            promised = [p.what for p in recording.promises if p.after <= crash.after]
            digest = tree_after(recording, crash).digest()
            if (len(promised), digest) in seen:
                continue
            seen.add((len(promised), digest))
            self._build(recording, crash)
            where = f"{self.protocol.name}: {of}{describe(recording, crash)}"
            self.found.violations += [f"{where}: {wrong}" for wrong in self._violations(promised)]
            if len(seen) >= states:
                break
        self.found.states |= {digest for _, digest in seen}

    def _look_at_every_step(self, recording: Recording) -> None:
        """Whether readers find what they need beside a task that has come so far."""
        if type(self.protocol).stands is Protocol.stands:
            return
        for after in range(recording.first, len(recording.steps) + 1):
            self._build(recording, crash := Crash(after))
            if not self.protocol.stands(self.layout):
                where = f"{self.protocol.name}: {describe(recording, crash)}"
                self.found.violations.append(f"{where}: what readers need is not there")

    def _build(self, recording: Recording, crash: Crash) -> None:
        shutil.rmtree(self.layout.root)
        tree_after(recording, crash).build(self.layout.root)
        begin_process()

    def _violations(self, promised: list[Any]) -> Iterator[str]:
        """What is wrong with a state, before and after a task resumes from it."""
        for what in promised:
            try:
                if not self.protocol.kept(self.layout, what):
                    yield f"{what} was done, and is lost"
            except Exception as error:  # whatever a reader raises
                yield f"{what} was done, and is not whole: {error!r}"
        try:
            self.protocol.act(self.layout, lambda _: None)
            if (outcome := self.protocol.outcome(self.layout)) != self.wanted:
                yield f"the outcome is {outcome}, not {self.wanted}"
        except Exception as error:  # the resumed task may raise anything
            yield f"it does not end: {error!r}"


def begin_process() -> None:
    """What a process remembers of files is forgotten."""
    MEANWHILE.act = None
    archive._cached_archive.cache_clear()
    atomic._sync_above.cache_clear()


@contextmanager
def in_memory() -> Iterator[Path]:
    """A folder in memory; during the block, what the package does in threads is done one after the other, and a heart
    beats once, but in a simulation, which has its own clock: more beats would come between any two steps, in each run
    between others.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module in (atomic, checkpoint, export):
            patch.setattr(module, "ThreadPoolExecutor", OneAfterTheOther)
        patch.setattr(Heart, "_run", lambda _: None)
        patch.setattr(time, "sleep", Naps().nap)
        atomic._sync_pool.cache_clear()
        place = IN_MEMORY if IN_MEMORY.is_dir() else None
        with tempfile.TemporaryDirectory(prefix="mrt-hpc-crash-", dir=place) as folder:
            yield Path(folder)
    atomic._sync_pool.cache_clear()


@contextmanager
def on_one_core() -> Iterator[None]:
    """Threads that take turns hand over in two thirds of the time there."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@dataclass
class Naps:
    """A process that is alone waits for no time: other tasks act in its pauses. Too many of them are an error."""

    taken: int = 0

    def nap(self, _: float) -> None:
        self.taken += 1
        if MEANWHILE.act is not None:
            MEANWHILE.act()
        if self.taken > MOST_NAPS:
            self.taken = 0
            raise RuntimeError(f"{MOST_NAPS} pauses, and no end")


class OneAfterTheOther(Executor):
    """Stands where the package has a pool of threads."""

    def __init__(self, *_: object, **__: object) -> None:
        """It takes the arguments of the other, and needs none."""

    def submit(self, action: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(action(*given, **named))
        except Exception as error:  # the one who waits raises it
            done.set_exception(error)
        return done


def explored(protocol: Protocol, *, seed: int = 0, states: int = 500, resumptions: int = RESUMPTIONS) -> Found:
    """Explore a protocol in a folder in memory; see :class:`Exploration`."""
    with in_memory() as folder:
        return Exploration(protocol, RunLayout(folder / "run"), Random(seed), SUBSETS).all(states, resumptions)


def damaged(protocol: Protocol, *, seed: int = 0, most: int = DAMAGES) -> Found:
    """Run a protocol with damage at one of its calls; see :class:`Exploration`."""
    with in_memory() as folder:
        return Exploration(protocol, RunLayout(folder / "run"), Random(seed), SUBSETS).damaged(most)


def over_a_network(protocol: Protocol, *, seed: int = 0, most: int = NETWORK) -> Found:
    """Run a protocol with mistakes of a network filesystem; see :class:`Exploration`."""
    with in_memory() as folder:
        return Exploration(protocol, RunLayout(folder / "run"), Random(seed), SUBSETS).over_a_network(most)


def contested(contest: Contest, *, seed: int = 0, interleavings: int = 500) -> Found:
    """Run a contest so often: without a disturbance, with a switch at each call, with two switches, at random, and with
    the seeds that once found a fault.
    """
    random, found = Random(seed), Found()
    with in_memory() as folder, on_one_core():
        layout = RunLayout(folder / "run")
        calls = _interleaved(contest, layout, AtCalls(frozenset()), "undisturbed", found)
        singles = [frozenset({call}) for call in range(calls)]
        pairs = [frozenset(random.sample(range(calls), 2)) for _ in range(interleavings // 8)]
        for switches in [*random.sample(singles, min(calls, interleavings // 8)), *pairs]:
            _interleaved(contest, layout, AtCalls(switches), f"switches at {sorted(switches)}", found)
        for name in (*contest.kept, *(f"{seed} {number}" for number in range(interleavings * 3 // 4))):
            _interleaved(contest, layout, AtRandom(Random(name)), f"seed {name}", found)
    return found


def _interleaved(contest: Contest, layout: RunLayout, schedule: Schedule, name: str, found: Found) -> int:
    """One interleaving of a contest; the number of its calls."""
    shutil.rmtree(layout.root, ignore_errors=True)
    ATTEMPTS.begin()
    contest.make(layout)
    begin_process()
    simulation = Simulation(contest.acts(layout), schedule)
    with calls_seen_by(simulation, layout.root):
        processes = simulation.run()
    errors = [process.error for process in processes if process.error is not None and not process.was_killed]
    wrong = [repr(error) for error in errors if not isinstance(error, contest.allowed)]
    try:
        wrong += contest.wrong(layout, processes)
    except Exception as error:  # what is left is not whole
        wrong.append(repr(error))
    found.violations += [f"{contest.name}, {name}: {each}" for each in wrong]
    found.states.add(simulation.history.digest())
    return simulation.calls


def describe(recording: Recording, crash: Crash) -> str:
    """A crash in words, with the lines of the package."""
    at = recording.steps[crash.after - 1].site if crash.after else "the beginning"
    lost, torn = ([f"{n}:{recording.steps[n].site}" for n in sorted(some)] for some in (crash.lost, crash.torn))
    return f"after step {crash.after} ({at}), lost {lost}, torn {torn}"


def main() -> int:
    from contests import CONTESTS
    from protocols_of_runs import DAMAGED, PROTOCOLS
    from tiny_training import tiny_engines

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--times", type=float, default=1.0)
    asked = parser.parse_args()
    end, seed, wrong = time.monotonic() + asked.hours * 3600, asked.seed, 0
    while True:
        with tiny_engines():
            for protocol in PROTOCOLS:
                states, resumptions = int(protocol.states * asked.times), int(RESUMPTIONS * asked.times)
                found = explored(protocol(), seed=seed, states=states, resumptions=resumptions)
                wrong += _show(f"seed {seed}, crash states of {protocol.name}", found)
                found = over_a_network(protocol(), seed=seed, most=int(NETWORK * asked.times))
                wrong += _show(f"seed {seed}, mistakes of a network filesystem in {protocol.name}", found)
            for protocol in DAMAGED:
                found = damaged(protocol(), seed=seed, most=int(DAMAGES * asked.times))
                wrong += _show(f"seed {seed}, damage in {protocol.name}", found)
        with tiny_engines(noisy=True):
            for contest in CONTESTS:
                found = contested(contest(), seed=seed, interleavings=int(contest.interleavings * asked.times))
                wrong += _show(f"seed {seed}, interleavings of {contest.name}", found)
        seed += 1
        if time.monotonic() >= end:
            return int(bool(wrong))


def _show(what: str, found: Found) -> int:
    print(f"{what}: {len(found.states)}, {len(found.violations)} violations", *found.violations, sep="\n", flush=True)
    return len(found.violations)


if __name__ == "__main__":
    sys.exit(main())
