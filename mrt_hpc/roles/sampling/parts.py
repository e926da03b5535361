"""The parts of an evaluation's shard: one for each problem, committed when it is graded.

A task that is preempted goes on with the problems that have no part yet. When all are there they are merged into the
shard, and the parts are removed.
"""

from __future__ import annotations

import logging
import shutil
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from mrt_hpc.run.groups import commit_group, complete_groups, read_group
from mrt_hpc.run.manifest import DamagedError, read_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.evaluation_settings import EvaluationSettings
    from mrt_hpc.run.groups import Sampled

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """The parts of one shard."""

    task: Task
    directory: Path
    weights: str
    """The digest of the weights version that is evaluated."""
    settings: EvaluationSettings
    """The settings that the samples have to be made with."""
    samples: int
    """The number of samples of a problem."""

    def lacking(self, positions: range) -> dict[range, list[int]]:
        """By the numbers of the samples that have to be drawn, the positions of the problems within the shard."""
        there = self.sampled(positions)
        if there and len(there) < len(positions):
            log.info("%d of %d problems are sampled already", len(there), len(positions))
        missing = [position for position in positions if position not in there]
        return {range(self.samples): missing} if missing else {}

    def alive(self) -> AbstractContextManager[object]:
        """Nothing: no other task asks whether this one lives."""
        return nullcontext()

    def claimed(self, lacking: Mapping[range, list[int]]) -> dict[range, list[int]]:
        """All of them: one task alone samples a shard."""
        return dict(lacking)

    def wait(self, lacking: Mapping[range, list[int]]) -> None:
        """Never needed: nothing is left to others.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(f"another task was to sample {sum(map(len, lacking.values()))} problems of this shard")

    def sampled(self, positions: range) -> dict[int, Sampled]:
        """The parts that are there, by position of the problem within the shard.

        A part that is damaged, or that other weights or settings made, is set aside.
        """
        there = sorted(complete_groups(self.directory) & set(positions))
        found = {position: self._readable(self._path(position)) for position in there}
        return {position: part for position, part in found.items() if part is not None}

    def commit(self, position: int, samples: range, sampled: Sampled) -> bool:  # noqa: ARG002 - always all of them
        """Write the part of a problem, unless it is there."""
        path = self._path(position)
        return self.task.retrying(
            lambda: commit_group(path, sampled, weights=self.weights, settings=self.settings.now.sampled),
            f"the part {position} of {self.directory.name}",
        )

    def remove(self) -> None:
        """Remove all parts when the shard holds what they held."""
        self.task.retrying(partial(_remove, self.directory), f"removing {self.directory}")

    def _path(self, position: int) -> Path:
        return self.directory / f"{position:05d}"

    def _readable(self, path: Path) -> Sampled | None:
        try:
            return self.task.retrying(lambda: self._read(path), f"reading {path}")
        except DamagedError as damage:
            self.task.set_aside([path], f"a part that cannot be used: {damage.what} ({damage.where})")
            return None

    def _read(self, path: Path) -> Sampled:
        sampled, about = read_group(path), read_manifest(path).about
        if about.get("weights") != self.weights:
            raise DamagedError("other weights than those published sampled it", where=path, expected=self.weights)
        if not self.settings.sampled(about.get("settings")):
            raise DamagedError("settings other than those of the recipe sampled it", where=path)
        return sampled


def _remove(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)
