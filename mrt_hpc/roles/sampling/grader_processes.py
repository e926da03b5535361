"""The grader processes of a task, on one node or on several."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from mrt_hpc.domains.lane import Lane
from mrt_hpc.domains.pool import GraderPool
from mrt_hpc.domains.verifiers import verifier_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.domains.pool import LaneMaker
    from mrt_hpc.recipe.sections.data import ProblemSource
    from mrt_hpc.roles.task.context import Task


@contextmanager
def grader_pool(task: Task, problems: ProblemSource, nodes: tuple[str, ...] = ()) -> Iterator[GraderPool]:
    """The grader processes of this task.

    Args:
        task: whose.
        problems: the section of the recipe that the problems are from: it names their verifier.
        nodes: the ids of the nodes of the task's Ray cluster, on each of which answers are graded; none where it has no
            cluster.
    """
    grading = task.experiment.grading
    with GraderPool(
        verifier_of(problems, grading),
        grading.processes,
        grading.time_limit_s,
        memory_limit_gib=grading.memory_limit_gib,
        lane=lane_over(nodes) if nodes else Lane,
    ) as pool:
        yield pool


def lane_over(nodes: tuple[str, ...]) -> LaneMaker:
    """What makes lanes of graders on these nodes of a Ray cluster."""
    from mrt_hpc.domains.spread_lane import SpreadLane  # Ray is loaded by tasks of several nodes only

    return partial(SpreadLane, nodes=nodes)
