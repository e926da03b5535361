"""The groups of an iteration as roles see them: which are there, and what happens to damaged ones."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mrt_hpc.run.archive import sampled_positions, unpack
from mrt_hpc.run.groups import complete_groups
from mrt_hpc.run.manifest import DamagedError

if TYPE_CHECKING:
    from mrt_hpc.roles.task.context import Task


def positions_there(task: Task, iteration: int) -> set[int]:
    """The positions of the complete groups of an iteration. An archive that cannot be read is set aside."""
    try:
        return sampled_positions(task.layout, iteration)
    except DamagedError as damage:
        task.set_aside([task.layout.group_archive(iteration)], f"a damaged archive: {damage.what}")
        return complete_groups(task.layout.groups(iteration))


def set_group_aside(task: Task, iteration: int, position: int, damage: DamagedError) -> None:
    """Move a damaged group away, so that it can be sampled again. Other groups of its archive are unpacked and stay."""
    archive, reason = task.layout.group_archive(iteration), f"a damaged group: {damage.what} ({damage.where})"
    if archive.exists():
        task.retrying(partial(unpack, task.layout, iteration), f"unpacking {archive}")
        task.set_aside([archive], reason)
    else:
        task.set_aside([task.layout.group(iteration, position)], reason)
