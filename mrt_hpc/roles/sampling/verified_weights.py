"""Weights versions as a task loads them: verified by their checksums, the next one while the server still samples with
the current one, so that the switch costs the loading alone. A damaged version is set aside, and made again.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

from mrt_hpc.errors import Advice, UserError, retryable_error
from mrt_hpc.plan.jobs import Plan, Role
from mrt_hpc.roles.task.context import LONGEST_LOOK_S, Task
from mrt_hpc.run.atomic import checksum, checksums, tree
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import DamagedError, verify
from mrt_hpc.run.weights import Weights, published_versions

log = logging.getLogger(__name__)


FileStamp = tuple[str, int, int, int, int]
"""Path, inode, bytes, and times (ns) of the last change of content and inode."""


class _OverError(Exception):
    """The round ended before all files were read."""


@dataclass
class Prefetch:
    """Verifies newer versions in a thread during one round of sampling.

    A version that is damaged or unfinished at the round's end is verified at the switch.
    """

    layout: RunLayout
    newest: int
    """The newest known version: at first the server's."""
    last: int
    """The newest version that the task will sample with; the thread only starts if it is above ``newest``."""
    _over: Event = field(default_factory=Event, init=False)
    _verified: tuple[Weights, list[FileStamp]] | None = field(default=None, init=False)
    """A version, and its files' stamps."""

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
        weights, stamps = verified
        try:
            return weights if _stamps(weights.directory) == stamps else None
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
        newest = max((v for v in published_versions(self.layout) if v <= self.last), default=self.newest)
        if newest > self.newest:
            self.newest = newest
            directory = self.layout.weights_version(newest)
            stamps = _stamps(directory)  # before the reading: a file that changes meanwhile is verified again
            self._verified = _verify(self.layout, newest, self._checksum_each), stamps

    def _checksum_each(self, files: Sequence[Path]) -> Iterator[str]:
        """[files] SHA-256 one after the other: the cores belong to the server and the graders."""
        for file in files:
            if self._over.is_set():
                raise _OverError
            yield checksum(file)


def _stamps(directory: Path) -> list[FileStamp]:
    return sorted(_stamp(file) for file in tree(directory)[1])


def _stamp(file: Path) -> FileStamp:
    """It opens the file: a network filesystem then asks its server, not its cache."""
    with file.open("rb") as stream:
        status = os.fstat(stream.fileno())
    return str(file), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def verified_weights(task: Task, version: int) -> Weights:
    """A weights version with right checksums. A damaged one is set aside: the trainer, or a separate evaluation's first
    job, publishes it again.

    Raises:
        DamagedError: it was damaged.
    """
    directory = task.layout.weights_version(version)
    before = task.retry(lambda: _inode(directory), f"looking at {directory}")
    try:
        return task.retry(lambda: _verify(task.layout, version), f"reading {directory}")
    except DamagedError as damage:
        if version == 0:
            removed = [directory, task.layout.root / "tasks/prepare"]
            raise UserError(
                f"weights version 0 is damaged: {damage.what}",
                where=damage.where,
                advice=Advice("rm -r {removed}, and the same command again", removed=removed),
            ) from damage
        if before is not None and _inode(directory) == before:  # else it was published again meanwhile
            _set_aside_damaged(task, version, damage)
        raise


def _verify(layout: RunLayout, version: int, read: Callable[[Sequence[Path]], Iterable[str]] = checksums) -> Weights:
    """A version whose files are those of its manifest; ``read`` gives the SHA-256 of each, in order."""
    directory = layout.weights_version(version)
    return Weights(version, verify(directory, read).digest, directory)


def _set_aside_damaged(task: Task, version: int, damage: DamagedError) -> None:
    if version == task.plan.iterations:  # no trainer continues from there
        task.reopen(trainer_to(task.plan, version), f"weights version {version}, its last, was damaged")
    if not task.experiment.trains:
        publish_again(task, f"model {version} was damaged")
    what = f"weights version {version} is damaged: {damage.what} ({damage.where})"
    task.set_aside([task.layout.weights_version(version)], what)


def publish_again(task: Task, why: str) -> None:
    """Make the next submission of a separate evaluation rerun its first job, which publishes all models."""
    task.reopen([(job.name, 0) for job in task.plan.jobs if job.role is Role.PREPARE], why)


def _inode(directory: Path) -> int | None:
    """It tells a replaced directory."""
    try:
        return directory.stat().st_ino
    except FileNotFoundError:
        return None


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
