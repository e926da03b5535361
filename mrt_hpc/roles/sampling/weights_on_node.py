"""Weights versions as an inference task loads them: whole models from the run directory; deltas are put together in a
folder on the node.
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

from mrt_hpc.errors import Advice, UserError, retryable_error
from mrt_hpc.plan.jobs import Plan, Role
from mrt_hpc.roles.task.context import LONGEST_LOOK_S, Task
from mrt_hpc.run.access import is_mine
from mrt_hpc.run.atomic import CHECKSUMS_AT_ONCE, checksum, checksums, temporary_sibling, tree
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import DamagedError, verify
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.turns import try_lock
from mrt_hpc.run.weights import Weights, published_versions, refuse_delta
from mrt_hpc.run.weights_delta import BrokenChainError, Chain, ContentsError, VersionKey, chain_to, put_together

log = logging.getLogger(__name__)


# A folder of one task on its node, for large files that only this task needs. It is removed with the task; what a task
# that was killed has left is removed by the next one on the node.


PREFIX = "mrt-hpc-weights-"
UNMARKED = ".mrt-hpc-weights-new-"
MARK = "in_use"
"""Locked while the task lives; the kernel frees the lock when the process ends."""


@dataclass(frozen=True)
class NodeFolder:
    """A private folder below the node's temporary folder."""

    path: Path
    _lock: int

    @staticmethod
    def make() -> "NodeFolder":
        """Make a folder, and remove those of killed tasks."""
        parent = Path(tempfile.gettempdir())
        remove_abandoned(parent)
        new = Path(tempfile.mkdtemp(prefix=UNMARKED, dir=parent))
        lock = os.open(new / MARK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try_lock(lock, new / MARK)
        except UserError:
            NodeFolder(new, lock).remove()
            raise
        path = new.rename(parent / (PREFIX + new.name.removeprefix(UNMARKED)))  # is locked when it gets its name
        return NodeFolder(path, lock)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned(parent: Path) -> None:
    for path in list_directory(parent, f"{PREFIX}*"):
        if is_mine(path, stat.S_ISDIR) and _is_abandoned(path / MARK):
            log.info("%s was left by a task that was killed, and is removed", path)
            shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(mark: Path) -> bool:
    try:
        descriptor = os.open(mark, os.O_RDWR)
    except OSError:
        return False  # another task is removing it
    try:
        return try_lock(descriptor, mark)
    finally:
        os.close(descriptor)


@dataclass
class LocalWeights:
    """A task's verified weights versions. Two threads may ask; one version is put together at a time."""

    layout: RunLayout
    _there: dict[VersionKey, Path] = field(default_factory=dict, init=False)
    _passed: frozenset[VersionKey] = field(default=frozenset(), init=False)
    _folder: NodeFolder | None = field(default=None, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Clears the node at the end of the block."""
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
        """A version as a whole model, verified.

        Args:
            read: gives the SHA-256 of each file, in order.
            go_on: called repeatedly; raises where the version is not wanted any more.
            at_once: files written in parallel.

        Raises:
            BrokenChainError: the version or a link of its chain is damaged or missing.
        """
        with self._lock:
            go_on()
            chain = chain_to(self.layout, version, self._there, read)
            if chain.links:
                chain = self._build_version(chain, read, go_on, at_once)
            return Weights(version, chain.key.digest, chain.start)

    def note_served(self, weights: Weights) -> None:
        """Note the server's version: the task needs no older ones any more."""
        held = VersionKey(weights.version, weights.digest)
        self._passed = frozenset(key for key in [*self._there] if key != held and key.version <= held.version)

    def _build_version(
        self, chain: Chain, read: Callable[[Sequence[Path]], Iterable[str]], go_on: Callable[[], None], at_once: int
    ) -> Chain:
        """Put a version together and return the chain of it alone. A version on the node that leads elsewhere is
        removed, and the published model is used.
        """
        try:
            directory = self._put_together(chain, go_on, at_once)
        except ContentsError as damage:
            if chain.held is None:
                raise BrokenChainError(damage, chain.versions) from damage
            log.warning("the copy of weights version %d on this node is damaged, and removed", chain.held.version)
            self._remove(chain.held)
            again = chain_to(self.layout, chain.key.version, self._there, read)
            return self._build_version(again, read, go_on, at_once) if again.links else again
        self._there[chain.key] = directory
        return Chain(chain.key, directory, (), (), chain.key)

    def _put_together(self, chain: Chain, go_on: Callable[[], None], at_once: int) -> Path:
        """The folder appears whole or not at all."""
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
        """Reuse the folder of a version that is no longer needed, whose files are overwritten, or make an empty one.
        Other unneeded versions go, except the start.
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
"""Path, inode, bytes, and times (ns) of the last change of content and inode."""


class _OverError(Exception):
    """The round ended before all files were read."""


@dataclass
class Prefetch:
    """Verifies newer versions in a thread during one round of sampling.

    It decides nothing: a version that is damaged or unfinished at the round's end is verified at the switch, as any
    other.
    """

    local: LocalWeights
    newest: int
    """The newest known version: at first the server's."""
    last: int
    """The newest version that the task will sample with; the thread only starts if it is above ``newest``."""
    _over: Event = field(default_factory=Event, init=False)
    _verified: tuple[Weights, set[Path], list[FileStamp]] | None = field(default=None, init=False)
    """A version, the directories it depends on, and their files' stamps."""

    @contextmanager
    def watch_versions(self) -> Iterator[None]:
        """Look for newer versions in the block. Its end waits for nothing: the thread ends after its current file."""
        if self.newest < self.last:
            Thread(target=self._watch, name="prefetch", daemon=True).start()
        try:
            yield
        finally:
            self._over.set()

    def newer_than(self, version: int) -> Weights | None:
        """The newest verified version above ``version`` whose files are unchanged."""
        newest = self._verified
        return None if newest is None or newest[0].version <= version else self.weights(newest[0].version)

    def weights(self, version: int) -> Weights | None:
        """A verified version whose files are unchanged."""
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
        layout = self.local.layout
        newest = max((v for v in published_versions(layout) if v <= self.last), default=self.newest)
        if newest > self.newest:
            self.newest = newest
            directory = layout.weights_version(newest)
            stamps = _stamps({directory})  # before the reading: a file that changes meanwhile is verified again
            weights = self.local.of(newest, self._checksum_each, self._go_on, at_once=1)
            own = {weights.directory} - {directory}
            self._verified = weights, {directory, *own}, sorted([*stamps, *_stamps(own)])

    def _go_on(self) -> None:
        if self._over.is_set():
            raise _OverError

    def _checksum_each(self, files: Sequence[Path]) -> Iterator[str]:
        """[files] SHA-256 one after the other: the cores belong to the server and the graders."""
        for file in files:
            self._go_on()
            yield checksum(file)


def _stamps(directories: Iterable[Path]) -> list[FileStamp]:
    return sorted(_stamp(file) for directory in directories for file in tree(directory)[1])


def _stamp(file: Path) -> FileStamp:
    """It opens the file: a network filesystem then asks its server, not its cache."""
    with file.open("rb") as stream:
        status = os.fstat(stream.fileno())
    return str(file), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


# Weights versions that are read with their checksums; a damaged one is set aside, and its maker makes it again.


def verified_weights(task: Task, version: int, local: LocalWeights | None = None) -> Weights:
    """A weights version with right checksums. A damaged one is set aside: the trainer, or a separate evaluation's first
    job, publishes it again. Without ``local``, which puts deltas together, only whole models are taken.

    Raises:
        DamagedError: it was damaged.
    """
    layout = task.layout
    directory, before = layout.weights_version(version), _identities(layout)

    def find() -> Weights:
        if local is not None:
            return local.of(version)
        digest = verify(directory).digest
        refuse_delta(directory)
        return Weights(version, digest, directory)

    try:
        return task.retry(find, f"reading {directory}")
    except DamagedError as damage:
        if version == 0:
            removed = [directory, layout.root / "tasks/prepare"]
            raise UserError(
                f"weights version 0 is damaged: {damage.what}",
                where=damage.where,
                advice=Advice("rm -r {removed}, and the same command again", removed=removed),
            ) from damage
        _set_aside_damaged(task, version, damage, before)
        raise


def _set_aside_damaged(task: Task, version: int, damage: DamagedError, before: dict[int, int]) -> None:
    """Set aside a damaged version, and damaged parts of its chain, but none that was published again since ``before``,
    the versions' inodes at the request.
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


def publish_again(task: Task, why: str) -> None:
    """Make the next submission of a separate evaluation rerun its first job, which publishes all models."""
    task.reopen([(job.name, 0) for job in task.plan.jobs if job.role is Role.PREPARE], why)


def _identities(layout: RunLayout) -> dict[int, int]:
    """Inodes of published versions, which tell a replaced directory."""
    identities: dict[int, int] = {}
    for version in published_versions(layout):
        with suppress(FileNotFoundError):
            identities[version] = layout.weights_version(version).stat().st_ino
    return identities


def collecting_weights(task: Task, version: int) -> Weights:
    """The verified version that samples a collection.

    Its trainer has ended and no other runs before the collection is whole: if damaged, that trainer's task runs again
    to publish it.
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
        raise retryable_error(
            f"weights version {version}, which a collection is sampled with, was damaged: {damage.what}",
            where=damage.where,
            advice="mrt-hpc submit RUN: the trainer publishes it again",
        ) from damage


def trainer_to(plan: Plan, version: int) -> list[tuple[str, int]]:
    return [(job.name, 0) for job in plan.jobs if job.does(Role.TRAINER) and job.end_iteration == version]
