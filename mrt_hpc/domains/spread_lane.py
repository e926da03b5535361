"""A queue of pairs with grader processes on all nodes of a Ray cluster.

On each node an actor owns a :class:`Lane`: the limits on an answer, and what becomes of a process that exceeds them,
are those of a lane on one node, and a process that hangs is replaced within milliseconds. Ray starts an actor whose own
process was killed again on its node, with new grader processes, and asks it for what it had not answered.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from mrt_hpc.domains.base import Judgement, Verifier
from mrt_hpc.domains.grader_queue import REPLACEMENTS, START_LIMIT_S, Lane, VerdictStatus
from mrt_hpc.errors import ExitCode, UserError

MOST_AT_A_TIME = 100_000
"""Pairs that one actor holds: they wait in its lane, which grades some at a time."""


class NodeGrader:
    """Grades on one node; Ray makes it an actor."""

    def __init__(
        self, verifier: Verifier, processes: int, memory_limit_bytes: int, niceness: int, path: Sequence[str]
    ) -> None:
        sys.path.extend(folder for folder in path if folder not in sys.path)  # that of a user's own verifier
        self.lane = Lane(verifier, processes, memory_limit_bytes, niceness)
        self.lane.started()

    async def judge(
        self, answer: str, gold: str, limit_s: float
    ) -> tuple[Judgement, float] | VerdictStatus | UserError:
        """What :meth:`Lane.judge` returns or raises: errors lose what they say on their way between the processes of
        Ray.
        """
        try:
            return await self.lane.judge(answer, gold, limit_s)
        except UserError as error:
            return error

    async def place(self) -> str:
        """The id of its node."""
        return str(ray.get_runtime_context().get_node_id())


@dataclass
class SpreadLane:
    """Grader processes on several nodes, started when they are first needed; to be used as a :class:`Lane`."""

    verifier: Verifier
    processes: int
    """The processes of each node."""
    memory_limit_bytes: int
    niceness: int = 0
    nodes: Sequence[str] = ()
    """The ids of the nodes, as Ray names them; at least one."""
    graders: list[Any] = field(default_factory=list, init=False)
    """The actor of each node, in order; empty until they are started."""
    unfinished: Counter[int] = field(default_factory=Counter, init=False)
    """The number of pairs that each of them is grading."""

    async def judge(self, answer: str, gold: str, limit_s: float) -> tuple[Judgement, float] | VerdictStatus:
        """The judgement of one pair by the node that has the fewest, as of :meth:`Lane.judge`.

        Raises:
            UserError: the processes cannot be started, or are killed again and again, or their node is lost.
        """
        graders = self.started()
        least = min(range(len(graders)), key=self.unfinished.__getitem__)
        self.unfinished[least] += 1
        outcome: tuple[Judgement, float] | VerdictStatus | UserError
        try:
            outcome = await graders[least].judge.remote(answer, gold, limit_s)
        except RayActorError as error:
            raise self._lost(self.nodes[least], error) from error
        finally:
            self.unfinished[least] -= 1
        if isinstance(outcome, UserError):
            raise outcome
        return outcome

    def started(self) -> list[Any]:
        """The actors; started where they are not.

        Raises:
            UserError: they do not start.
        """
        if not self.graders:
            graders = [self._on(node) for node in self.nodes]
            try:
                ray.get([grader.place.remote() for grader in graders], timeout=START_LIMIT_S)
            except (RayError, TimeoutError) as error:
                raise self._not_started(error) from error
            self.graders = graders
        return self.graders

    def stop(self) -> None:
        """End the processes on all nodes, and their current work."""
        graders, self.graders = self.graders, []
        for grader in graders:
            ray.kill(grader)

    def _on(self, node: str) -> Any:
        options = {
            "num_cpus": 0,
            "max_concurrency": MOST_AT_A_TIME,
            "max_restarts": -1,
            "max_task_retries": REPLACEMENTS,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
        }
        made = ray.remote(NodeGrader).options(**options)
        return made.remote(self.verifier, self.processes, self.memory_limit_bytes, self.niceness, list(sys.path))

    def _lost(self, node: str, error: Exception) -> UserError:
        return UserError(
            f"the graders of a node are lost: {str(error).splitlines()[0]}",
            value=f"{self.processes} grader processes",
            where=f"the node with the Ray id {node}",
            expected=f"at most {REPLACEMENTS} ends of their process while a pair is graded",
            advice="nothing where the node itself was lost: the task runs again; where memory ran out, raise "
            "resources.inference.memory_gib, or lower grading.processes",
            exit_code=ExitCode.RETRYABLE,
        )

    def _not_started(self, error: Exception) -> UserError:
        return UserError(
            f"the graders on the nodes of this task do not start: {getattr(error, 'cause', None) or error}",
            value=f"{self.processes} grader processes on each node",
            where=f"the nodes with the Ray ids {', '.join(self.nodes)}",
            expected=f"all of them within {START_LIMIT_S:.0f} s",
            advice="raise grading.memory_limit_gib, or lower grading.processes",
            exit_code=ExitCode.RETRYABLE,
        )
