"""What a trainer takes in: the groups of one iteration, as they come, and who samples them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from mrt_hpc.plan.model import Role
from mrt_hpc.recipe.errors import ExitCode, UserError
from mrt_hpc.roles.peers import Life
from mrt_hpc.run.groups import Group, complete_groups, read_group
from mrt_hpc.run.manifest import DamagedError, unreadable

if TYPE_CHECKING:
    from mrt_hpc.roles.peers import Peers
    from mrt_hpc.roles.task import Task


@dataclass
class Intake:
    """The groups of an iteration, as far as this rank has read them."""

    task: Task
    iteration: int
    _groups: dict[int, Group] = field(default_factory=dict, init=False)
    """By position."""

    @property
    def samplers(self) -> Peers:
        """Who samples this iteration: not this segment's inference, where a damaged checkpoint has sent it back."""
        return self.task.peers(Role.INFERENCE, range(self.iteration, self.iteration + 1))

    def read_new(self) -> bool:
        """Read the groups that have come; whether all are there. A damaged one is set aside, to be sampled again."""
        layout = self.task.layout
        for position in sorted(complete_groups(layout.groups(self.iteration)) - self._groups.keys()):
            path = layout.group(self.iteration, position)
            try:
                self._groups[position] = self.task.patiently(partial(read_group, path), f"reading {path}")
            except DamagedError as damage:
                self.task.set_aside([path], f"a damaged group: {damage.what} ({damage.where})")
            except OSError as error:
                raise unreadable(path, error) from error
        return len(self._groups) == self._wanted

    def whole(self) -> list[Group]:
        """All groups, by position.

        Raises:
            UserError: some are missing, which the first rank has seen complete.
        """
        if not self.read_new():
            raise UserError(
                f"the groups of iteration {self.iteration} are not what the first rank saw",
                where=self.task.layout.groups(self.iteration),
                exit_code=ExitCode.RETRYABLE,
            )
        return [self._groups[position] for position in sorted(self._groups)]

    def reopen_samplers(self) -> None:
        """Where groups are missing, and no task of inference is left to sample them."""
        lives = self.samplers.lives()
        missing = len(complete_groups(self.task.layout.groups(self.iteration))) < self._wanted
        if missing and set(lives.values()) <= {Life.DONE, Life.FAILED}:
            self.task.reopen(lives, f"groups of iteration {self.iteration} were found damaged, or gone, after its end")

    @property
    def _wanted(self) -> int:
        return self.task.recipe.sampling.problems_per_iteration
