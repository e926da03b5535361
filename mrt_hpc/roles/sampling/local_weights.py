"""Weights versions as an inference task loads them: whole models from the run directory; versions that were published
as deltas from a folder on the node, where the task puts them together.
"""

from __future__ import annotations

import logging
import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

from mrt_hpc.roles.sampling.node_folder import NodeFolder
from mrt_hpc.run.atomic import CHECKSUMS_AT_ONCE, checksums, temporary_sibling
from mrt_hpc.run.weights import Weights
from mrt_hpc.run.weights_delta import BrokenChainError, Chain, ContentsError, VersionKey, chain_to, put_together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from mrt_hpc.run.layout import RunLayout

log = logging.getLogger(__name__)


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
