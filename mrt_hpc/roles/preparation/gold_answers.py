"""Names the gold answers that the grader cannot read, before anything is sampled: only their own text equals them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mrt_hpc.domains.math.quantities import read_quantity
from mrt_hpc.roles.preparation.prompt_lengths import problem_files
from mrt_hpc.roles.sampling.serving import grader_pool
from mrt_hpc.run.data import read_problems

if TYPE_CHECKING:
    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.records import Problem

NAMED = 20
"""Problem ids in a line of the log."""

log = logging.getLogger(__name__)


def name_unreadable(task: Task) -> None:
    """Warn of every file of problems with gold answers that are no expression to the grader.

    Numbers need no look, so that a run whose gold answers are numbers starts no grader process here.

    Raises:
        UserError: the grader processes cannot be started.
    """
    for source in problem_files(task):
        problems = read_problems(source.path)
        if unreadable := _unreadable(task, [p for p in problems if read_quantity(p.answer) is None]):
            names = ", ".join(p.id for p in unreadable[:NAMED]) + (" ..." if len(unreadable) > NAMED else "")
            log.warning(
                "%s: the grader cannot read %d of %d gold answers of %s, so an answer in another spelling scores 0; "
                "mend them in the data, or leave these problems out: %s",
                source.field, len(unreadable), len(problems), source.path, names,
            )  # fmt: skip


def _unreadable(task: Task, problems: list[Problem]) -> list[Problem]:
    if not problems:
        return []
    with grader_pool(task) as pool:
        readable = pool.readable_all([problem.answer for problem in problems])
    return [problem for problem, is_readable in zip(problems, readable, strict=True) if not is_readable]
