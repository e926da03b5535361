"""Weights versions as an inference task loads them: whole models from the run directory; versions that were published
as deltas from a folder on the node, where the task puts them together.
"""

import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread

from mrt_hpc.errors import ExitCode, UserError, word
from mrt_hpc.plan.jobs import Plan, Role
from mrt_hpc.roles.task.context import LONGEST_LOOK_S, Task
from mrt_hpc.run.access import is_mine
from mrt_hpc.run.atomic import CHECKSUMS_AT_ONCE, checksum, checksums, temporary_sibling, tree
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import DamagedError, verify
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.turns import locked
from mrt_hpc.run.weights import Weights, published_versions, refuse_delta
from mrt_hpc.run.weights_delta import BrokenChainError, Chain, ContentsError, VersionKey, chain_to, put_together

log = logging.getLogger(__name__)


# A folder of one task on its node, for large files that only this task needs. It is removed with the task; what a task
# that was killed has left is removed by the next one on the node.


PREFIX = "mrt-hpc-weights-"
UNMARKED = ".mrt-hpc-weights-new-"
MARK = "in_use"
"""The file that the task keeps locked as long as it lives. The lock ends with the process, however that ends."""


@dataclass(frozen=True)
class NodeFolder:
    """A folder below the node's folder for temporary files. Only this user may enter it."""

    path: Path
    _lock: int
    """The descriptor of the locked mark."""

    @staticmethod
    def make() -> "NodeFolder":
        """Make one, and remove those of tasks that were killed.

        Raises:
            UserError: the filesystem takes no locks.
        """
        parent = Path(tempfile.gettempdir())
        remove_abandoned(parent)
        new = Path(tempfile.mkdtemp(prefix=UNMARKED, dir=parent))
        lock = os.open(new / MARK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            locked(lock, new / MARK)
        except UserError:
            NodeFolder(new, lock).remove()
            raise
        path = new.rename(parent / (PREFIX + new.name.removeprefix(UNMARKED)))  # is locked when it gets its name
        return NodeFolder(path, lock)

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned(parent: Path) -> None:
    """Remove this user's folders whose tasks do not live any more."""
    for path in list_directory(parent, f"{PREFIX}*"):
        if is_mine(path, stat.S_ISDIR) and _is_abandoned(path / MARK):
            log.info("%s was left by a task that was killed, and is removed", path)
            shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(mark: Path) -> bool:
    """Whether no process holds the lock of a folder's mark."""
    try:
        descriptor = os.open(mark, os.O_RDWR)
    except OSError:
        return False  # another task is removing it
    try:
        return locked(descriptor, mark)
    finally:
        os.close(descriptor)


@dataclass
class LocalWeights:
    """The verified weights versions of one task. Two threads may ask for some; one at a time is put together."""

    layout: RunLayout
    _there: dict[VersionKey, Path] = field(default_factory=dict, init=False)
    """Versions that were put together, and their folders."""
    _passed: frozenset[VersionKey] = field(default=frozenset(), init=False)
    """Those of them that are not needed any more."""
    _folder: NodeFolder | None = field(default=None, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Remove everything from the node at the end of the block."""
        try:
            yield
        finally:
            with self._lock:
                if self._folder is not None:
                    self._folder.remove()
                self._folder, self._there = None, {}

    def of(
        self,
        version: int,
        read: Callable[[Sequence[Path]], Iterable[str]] = checksums,
        go_on: Callable[[], None] = lambda: None,
        at_once: int = CHECKSUMS_AT_ONCE,
    ) -> Weights:
        """A weights version as a whole model, verified.

        Args:
            version: its number.
            read: gives the SHA-256 of each file, in their order.
            go_on: called again and again; raises where the version is not wanted any more.
            at_once: the number of files that are written in parallel.

        Raises:
            BrokenChainError: it cannot be had: something of it, or of what it was made of, is damaged or missing.
        """
        with self._lock:
            go_on()
            chain = chain_to(self.layout, version, self._there, read)
            if chain.links:
                chain = self._made(chain, read, go_on, at_once)
            return Weights(version, chain.key.digest, chain.start)

    def served(self, weights: Weights) -> None:
        """Take note of the version that the server holds: of the older ones the task needs none any more."""
        held = VersionKey(weights.version, weights.digest)
        self._passed = frozenset(key for key in [*self._there] if key != held and key.version <= held.version)

    def _made(
        self, chain: Chain, read: Callable[[Sequence[Path]], Iterable[str]], go_on: Callable[[], None], at_once: int
    ) -> Chain:
        """Put a version together, and return the chain that consists of it alone. Where a version on the node does not
        lead to what was published, it is removed, and the task starts with the published model.
        """
        try:
            directory = self._put_together(chain, go_on, at_once)
        except ContentsError as damage:
            if chain.held is None:
                raise BrokenChainError(damage, chain.versions) from damage
            log.warning("the copy of weights version %d on this node is damaged, and removed", chain.held.version)
            self._remove(chain.held)
            again = chain_to(self.layout, chain.key.version, self._there, read)
            return self._made(again, read, go_on, at_once) if again.links else again
        self._there[chain.key] = directory
        return Chain(chain.key, directory, (), (), chain.key)

    def _put_together(self, chain: Chain, go_on: Callable[[], None], at_once: int) -> Path:
        """Make the folder of a version, whole or not at all."""
        if self._folder is None:
            self._folder = NodeFolder.make()
        final = self._folder.path / f"v{chain.key.version:06d}-{chain.key.digest[:16]}"
        temporary = temporary_sibling(final)
        self._take_room(temporary, chain.held)
        try:
            put_together(chain, temporary, go_on=go_on, at_once=at_once)
            return temporary.rename(final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _take_room(self, folder: Path, start: VersionKey | None) -> None:
        """Make the folder of a version out of one that is not needed any more, whose files are then written over, or an
        empty one. What else is not needed is removed, but for the version that is needed to start with.
        """
        passed = [*(self._passed & self._there.keys() - {start})]
        for key in passed[1:]:
            self._remove(key)
        if passed:
            self._there.pop(passed[0]).rename(folder)
        else:
            folder.mkdir()

    def _remove(self, key: VersionKey) -> None:
        shutil.rmtree(self._there.pop(key), ignore_errors=True)


# Verification of the next weights version while the server still samples with the current one; where it was published
# as a delta, the version is put together, too.
#
# The switch to it then costs the loading alone, which reads from the page cache of the machine what was verified.


FileStamp = tuple[str, int, int, int, int]
"""The path of a file, its inode, its bytes, and the times (ns) of the last change of its content and of its inode."""


class _OverError(Exception):
    """The round is over before all files were read."""


@dataclass
class Prefetch:
    """Verifies newer weights versions in a thread, for the length of one round of sampling.

    It decides nothing: a version that it finds damaged, or has not read to the end when the round is over, is verified
    at the switch, as any other.
    """

    local: LocalWeights
    """Verifies versions, and puts them together."""
    newest: int
    """The newest known version: at first the one that the server holds."""
    last: int
    """The newest version that the task will sample with. The thread starts only if it is newer than ``newest``."""
    _over: Event = field(default_factory=Event, init=False)
    _verified: tuple[Weights, set[Path], list[FileStamp]] | None = field(default=None, init=False)
    """A version, the directories that it depends on, and the stamps of their files."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Look for newer versions within the block. The end of the block waits for nothing: the thread ends after its
        current file.
        """
        if self.newest < self.last:
            Thread(target=self._watch, name="prefetch", daemon=True).start()
        try:
            yield
        finally:
            self._over.set()

    def newer_than(self, version: int) -> Weights | None:
        """The newest verified version, if it is newer than ``version`` and its files have not changed since."""
        newest = self._verified
        return None if newest is None or newest[0].version <= version else self.weights(newest[0].version)

    def weights(self, version: int) -> Weights | None:
        """A version, if it was verified and its files have not changed since; else None."""
        verified = self._verified
        if verified is None or verified[0].version != version:
            return None
        weights, directories, stamps = verified
        try:
            return weights if _stamps(directories) == stamps else None
        except OSError as error:
            log.warning("weights version %d is verified again, as its files cannot be opened: %r", version, error)
            return None

    def _watch(self) -> None:
        try:
            while not self._over.wait(LONGEST_LOOK_S):
                self._look()
        except _OverError:
            log.info("weights version %d was not verified to its end while sampling went on", self.newest)
        except (UserError, OSError) as error:
            log.warning("weights version %d is verified again before it is loaded: %s", self.newest, error)

    def _look(self) -> None:
        """Verify the newest version, if it is newer than the last known one."""
        layout = self.local.layout
        newest = max((v for v in published_versions(layout) if v <= self.last), default=self.newest)
        if newest > self.newest:
            self.newest = newest
            directory = layout.weights_version(newest)
            stamps = _stamps({directory})  # before the reading: a file that changes meanwhile is verified again
            weights = self.local.of(newest, self._in_turn, self._go_on, at_once=1)
            own = {weights.directory} - {directory}
            self._verified = weights, {directory, *own}, sorted([*stamps, *_stamps(own)])

    def _go_on(self) -> None:
        """Raise where the round is over.

        Raises:
            _OverError: it is.
        """
        if self._over.is_set():
            raise _OverError

    def _in_turn(self, files: Sequence[Path]) -> Iterator[str]:
        """[files] SHA-256 of each, one file after the other: the cores are the server's and the graders'."""
        for file in files:
            self._go_on()
            yield checksum(file)


def _stamps(directories: Iterable[Path]) -> list[FileStamp]:
    return sorted(_stamp(file) for directory in directories for file in tree(directory)[1])


def _stamp(file: Path) -> FileStamp:
    """The stamp of a file, taken by opening it: a network filesystem then asks its server, and not its own memory."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return str(file), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


# Weights versions that are read with their checksums; a damaged one is set aside, and its maker makes it again.


def verified_weights(task: Task, version: int, local: LocalWeights | None = None) -> Weights:
    """A weights version whose checksums are right.

    A damaged one is set aside: the trainer publishes it again, or the first job of an evaluation on its own.

    Args:
        task: who asks.
        version: its number.
        local: puts versions together that were published as deltas; without it only whole models are taken.

    Raises:
        DamagedError: it was damaged.
        UserError: the first job published it, and only this job can make it again; or it is no whole model.
    """
    layout = task.layout
    directory, before = layout.weights_version(version), _identities(layout)
    try:
        return task.retrying(lambda: _found(layout, version, local), f"reading {directory}")
    except DamagedError as damage:
        if version == 0:
            raise UserError(
                f"weights version 0 is damaged: {damage.what}",
                where=damage.where,
                advice=f"rm -r {word(directory)} {word(layout.root / 'tasks/prepare')}, and the same command again",
            ) from damage
        _set_aside_damaged(task, version, damage, before)
        raise


def _set_aside_damaged(task: Task, version: int, damage: DamagedError, before: dict[int, int]) -> None:
    """Set aside a damaged version, and what it cannot be put together of; but none that was published again.

    Args:
        task: who asked.
        version: what it asked for.
        damage: what it found.
        before: the inodes of all versions when it asked.
    """
    layout, now = task.layout, _identities(task.layout)
    damaged = damage.versions if isinstance(damage, BrokenChainError) else (version,)
    same = [v for v in damaged if v in before and now.get(v) == before[v]]
    if version in same:
        if version == task.plan.iterations:  # no trainer continues from there
            task.reopen(trainer_to(task.plan, version), f"weights version {version}, its last, was damaged")
        if not task.experiment.trains:
            publish_again(task, f"model {version} was damaged")
    paths = [layout.weights_version(v) for v in same]
    task.set_aside(paths, f"weights version {version} is damaged: {damage.what} ({damage.where})")


def _found(layout: RunLayout, version: int, local: LocalWeights | None) -> Weights:
    if local is not None:
        return local.of(version)
    directory = layout.weights_version(version)
    digest = verify(directory).digest
    refuse_delta(directory)
    return Weights(version, digest, directory)


def publish_again(task: Task, why: str) -> None:
    """Have the next submission of an evaluation on its own run the first job again, which publishes all models."""
    first = [job.name for job in task.plan.jobs if job.role is Role.PREPARE]
    task.reopen([(name, 0) for name in first], why)


def _identities(layout: RunLayout) -> dict[int, int]:
    """The inodes of the published versions: that of a directory that has taken another's place differs."""
    identities: dict[int, int] = {}
    for version in published_versions(layout):
        with suppress(FileNotFoundError):
            identities[version] = layout.weights_version(version).stat().st_ino
    return identities


def collecting_weights(task: Task, version: int) -> Weights:
    """The weights version that a collection is sampled with, verified.

    The trainer that published it has ended, and no other trains before the collection is whole: where the version is
    damaged, that one has to publish it again.

    Raises:
        UserError: it was damaged.
    """
    try:
        return verified_weights(task, version)
    except DamagedError as damage:
        if max(published_versions(task.layout), default=0) > version:
            raise UserError(
                f"weights version {version} is damaged, which a damaged collection has to be sampled with again, and "
                f"training has gone on from there: {damage.what}",
                where=damage.where,
                advice="the same submit command with another --run directory, which makes a run of its own",
            ) from damage
        task.reopen(trainer_to(task.plan, version), f"weights version {version}, which a collection needs, was damaged")
        raise UserError(
            f"weights version {version}, which a collection is sampled with, was damaged: {damage.what}",
            where=damage.where,
            advice="mrt-hpc submit RUN: the trainer publishes it again",
            exit_code=ExitCode.RETRYABLE,
        ) from damage


def trainer_to(plan: Plan, version: int) -> list[tuple[str, int]]:
    """The task that publishes a weights version at its end."""
    trainers = [job for job in plan.jobs if job.does(Role.TRAINER)]
    return [(job.name, 0) for job in trainers if job.end_iteration == version]
