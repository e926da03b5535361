"""A warning about gold answers that their verifier cannot read, before anything is sampled: only their own text equals
them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mrt_hpc.domains.verifiers import unreadable_answers, verifier_of
from mrt_hpc.roles.preparation.prompt_lengths import problem_files
from mrt_hpc.roles.sampling.grader_processes import grader_pool
from mrt_hpc.run.data import read_problems
from mrt_hpc.run.records import golds_of

if TYPE_CHECKING:
    from mrt_hpc.roles.preparation.prompt_lengths import ProblemFile
    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.records import Problem

NAMED = 20
"""The number of problem ids in a line of the log."""

log = logging.getLogger(__name__)


def name_unreadable(task: Task) -> None:
    """Warn of every file of problems with gold answers that its verifier cannot read.

    A run whose gold answers can all be read at once, as numbers can, starts no grader process here.

    Raises:
        UserError: the grader processes cannot be started.
    """
    for source in problem_files(task):
        problems = read_problems(source.path)
        if unreadable := _unreadable(task, source, problems):
            names = ", ".join(p.id for p in unreadable[:NAMED]) + (" ..." if len(unreadable) > NAMED else "")
            log.warning(
                "%s: the grader cannot read gold answers of %d of %d problems of %s, so an answer in another "
                "spelling scores 0; correct them in the data, or leave these problems out: %s",
                source.field, len(unreadable), len(problems), source.path, names,
            )  # fmt: skip


def _unreadable(task: Task, source: ProblemFile, problems: list[Problem]) -> list[Problem]:
    verifier = verifier_of(source.section, task.experiment.grading)
    answers = [gold for problem in problems for gold in golds_of(problem.answer)]
    unreadable = unreadable_answers(answers, verifier, lambda: grader_pool(task, source.section))
    return [problem for problem in problems if not unreadable.isdisjoint(golds_of(problem.answer))]
