"""Publication of weights versions: as whole models, or where the recipe asks for it, as deltas between these.

Rank 0 keeps the tensors that it published last in the memory of its node: they are the base of the next delta. A
trainer that has just started has none, so its first version is a whole model.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from mrt_hpc.plan.kept_weights import is_in_full
from mrt_hpc.run.manifest import DamagedError, read_manifest
from mrt_hpc.run.pins import pinned_versions
from mrt_hpc.run.weights import publish
from mrt_hpc.run.weights_delta import (
    TensorBytes,
    VersionKey,
    WeightsDelta,
    contents_of,
    delta_between,
    tensor_kinds,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.training.export import GatheredWeights

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LastPublished:
    """The version that this trainer published last, with its tensors in memory."""

    key: VersionKey
    tensors: Sequence[TensorBytes]


@dataclass
class Publisher:
    """Publishes the weights of a trainer. Only rank 0 has one."""

    task: Task
    refuse_if_superseded: Callable[[], None]
    """Called when a version is written and before it is committed; raises where another attempt of the task runs."""
    _last: LastPublished | None = None

    def publish(self, version: int, weights: GatheredWeights, *, in_full: bool = False) -> bool:
        """Publish a version.

        Args:
            version: its number.
            weights: what it holds.
            in_full: whether it has to be a whole model, whatever the recipe says.

        Returns:
            False when this version was there already.
        """
        if self.task.recipe.training.full_weights_every == 1:
            return self._commit(version, weights.write)
        base, self._last = self._last, None
        tensors = weights.as_bytes()
        wanted_in_full = in_full or self._is_in_full(version)
        delta = None if wanted_in_full or base is None else self._delta(version, base, tensors)
        if delta is None:
            mine = self._commit(version, weights.write, contents=contents_of(tensors))
        else:
            mine = self._commit(version, delta.write, contents=delta.contents, base=delta.base._asdict())
        if mine and (delta is not None or self._can_be_a_base(version, tensors)):
            self._last = LastPublished(VersionKey(version, self._digest(version)), tensors)
        return mine

    def _is_in_full(self, version: int) -> bool:
        layout = self.task.layout
        return is_in_full(layout, self.task.recipe, version) or version in pinned_versions(layout)

    def _delta(self, version: int, base: LastPublished, tensors: Sequence[TensorBytes]) -> WeightsDelta | None:
        """The changes since the version before; None where that is not the base any more, or not worth a delta."""
        if base.key.version != version - 1 or not self._is_there(base.key):
            return None
        return delta_between(base.key, base.tensors, tensors)

    def _is_there(self, key: VersionKey) -> bool:
        """Whether a version is still published as it was: it may have been damaged, and set aside."""
        try:
            return self._digest(key.version) == key.digest
        except DamagedError:
            return False

    def _digest(self, version: int) -> str:
        path = self.task.layout.weights_version(version)
        return self.task.retrying(lambda: read_manifest(path), f"reading {path}").digest

    def _can_be_a_base(self, version: int, tensors: Sequence[TensorBytes]) -> bool:
        """Whether the files of a whole model hold the trainer's tensors under their names: transformers stores those
        of some models otherwise.
        """
        path = self.task.layout.weights_version(version)
        fits = tensor_kinds(path) == sorted(tensor.kind for tensor in tensors)
        if not fits:
            log.warning("this model's tensors are stored under other names, so every weights version is a whole model")
        return fits

    def _commit(self, version: int, write: Callable[[Path], None], **about: Any) -> bool:
        """Write and commit a version; on a full disk, wait for room."""

        def write_unless_superseded(directory: Path) -> None:
            write(directory)
            self.refuse_if_superseded()  # checked at the last moment: the writing may have waited for room

        whole = {"iteration": version, "attempt": self.task.attempt, "time": time.time(), **about}
        committing = partial(publish, self.task.layout, version, write_unless_superseded, **whole)
        return self.task.retrying(committing, f"weights version {version}")
