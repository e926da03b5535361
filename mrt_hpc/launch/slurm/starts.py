"""Asks Slurm when jobs could start if they were submitted now. ``sbatch --test-only`` submits nothing.

What it prints differs between versions, and a site's plugins add lines of their own. Some clusters name no time, and
some do not answer soon. All of these are answers, which the plan shows; none of them is an error of the plan.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from mrt_hpc.errors import UserError
from mrt_hpc.launch.backend import StartEstimate
from mrt_hpc.launch.slurm.arrays import ArrayExecutor
from mrt_hpc.launch.slurm.commands import SlurmRefusedError, answer_of, is_unreachable
from mrt_hpc.launch.slurm.parameters import require_plain_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mrt_hpc.launch.slurm.site import SlurmSite
    from mrt_hpc.plan.jobs import Job
    from mrt_hpc.run.layout import RunLayout

COMMAND = ("sbatch", "--test-only")
ASK_S = 15.0
"""The limit for one call, seconds."""
MOST_ASKED = 6
"""Kinds of jobs that are asked about, at most."""
_START = re.compile(r"\bto start at (\S+)")
_PREFIX = re.compile(r"^sbatch: (?:error: |fatal: )?")


def start_estimates(jobs: Sequence[Job], site: SlurmSite, layout: RunLayout) -> list[StartEstimate]:
    """The estimates for the first job of each kind, which has partition, size and time limit of its own. The jobs are
    asked about with the script of a submission, without the jobs that they wait for.

    Once sbatch is missing or does not reach Slurm, the other kinds are not asked about: they have the same answer.

    Raises:
        UserError: the run directory has a path that Slurm would misread.
    """
    layout = require_plain_path(layout)
    kinds: dict[object, list[Job]] = {}
    for job in jobs:
        kinds.setdefault(job.resources, []).append(job)
    found: list[StartEstimate] = []
    left = list(kinds.values())[:MOST_ASKED]
    while left:
        alike = left.pop(0)
        try:
            estimate = _estimate(alike[0], site, layout)
        except UserError as error:
            refused = isinstance(error, SlurmRefusedError) and not is_unreachable(error)
            estimate = _no_time(_words_of(error))
            if not refused:
                alike, left = [job for same in [alike, *left] for job in same], []
        found.append(replace(estimate, jobs=tuple(job.name for job in alike)))
    return _joined(found)


def _estimate(job: Job, site: SlurmSite, layout: RunLayout) -> StartEstimate:
    """Ask about one job.

    Raises:
        UserError: sbatch is missing, did not answer, or refused.
    """
    alone = job.model_copy(update={"after": ()})
    script = ArrayExecutor(alone, site, layout, waited_for=False).text({})
    answer = answer_of(COMMAND, ASK_S, script)
    words = f"{answer.remarks}\n{answer.printed}"
    at = _start_in(words)
    return _no_time(words) if at is None else StartEstimate(asked=" ".join(COMMAND), at=at)


def _start_in(words: str) -> float | None:
    """The start that an answer names, as seconds since the epoch; None where it names none. The time is in seconds, as
    SLURM_TIME_FORMAT asks for, or by the local clock.
    """
    found = _START.search(words)
    if found is None:
        return None
    try:
        return float(found[1]) if found[1].isdigit() else datetime.fromisoformat(found[1]).timestamp()
    except ValueError:
        return None  # the answer is shown in its own words


def _words_of(error: UserError) -> str:
    if isinstance(error, SlurmRefusedError):
        return error.reason
    return error.what if error.value is None else f"{error.what}: {error.value}"


def _no_time(words: str) -> StartEstimate:
    """An answer without a time, on one line, without the prefixes that sbatch gives its own lines."""
    lines = (_PREFIX.sub("", line.strip()) for line in words.splitlines())
    return StartEstimate(asked=" ".join(COMMAND), at=None, answer="; ".join(filter(None, lines)) or "nothing")


def _joined(estimates: Sequence[StartEstimate]) -> list[StartEstimate]:
    """The same estimates, with those of the same words in place of a time as one."""
    joined: dict[object, StartEstimate] = {}
    for number, one in enumerate(estimates):
        key = one.answer if one.at is None else number
        joined[key] = replace(one, jobs=(*joined[key].jobs, *one.jobs)) if key in joined else one
    return list(joined.values())
