"""Asks Slurm when jobs could start if they were submitted now. ``sbatch --test-only`` submits nothing.

What it prints differs between versions, and a site's plugins add lines of their own. No answer is an error of the plan,
which shows it.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from mrt_hpc.backends.backend import StartEstimate
from mrt_hpc.backends.slurm import plain_paths
from mrt_hpc.backends.slurm.arrays import QUEUE_FULL, TOO_MANY, ArrayExecutor, Show
from mrt_hpc.backends.slurm.commands import SlurmRefusedError, answer_of, is_unreachable
from mrt_hpc.backends.slurm.queued_as import ASK_S, kinds_asked
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import Job, few_names
from mrt_hpc.run.layout import RunLayout

COMMAND = ("sbatch", "--test-only")
_START = re.compile(r"\bto start at (\S+)")
_NOT_OF_JOB = re.compile(r"not available|unavailable|\bbusy\b|\bdown\b|drained|test-only|exit code \d+$", re.IGNORECASE)
"""Words about the nodes at present, or about the question: sbatch may queue the job all the same."""
_PREFIX = re.compile(r"^sbatch: (?:error: |fatal: )?")


def start_estimates(jobs: Sequence[Job], site: SlurmSite, layout: RunLayout) -> list[StartEstimate]:
    """Estimates for the first job of each kind (partition, size and time limit), without its dependencies. Once Slurm
    is not reached, the other kinds get the same answer.
    """
    layout = plain_paths.require_plain_path(layout, site.container)
    starts: list[StartEstimate] = []
    left = kinds_asked(jobs)
    while left:
        alike = left.pop(0)
        try:
            estimate = _estimate(alike[0], site, layout)
        except UserError as error:
            refused = isinstance(error, SlurmRefusedError) and not is_unreachable(error)
            estimate = _refused_start(error, alike[0], site)
            if not refused:
                alike, left = [job for same in [alike, *left] for job in same], []
        starts.append(replace(estimate, jobs=tuple(job.name for job in alike)))
    return _join_estimates(starts)


def _estimate(job: Job, site: SlurmSite, layout: RunLayout) -> StartEstimate:
    alone = job.model_copy(update={"after": ()})
    script = ArrayExecutor(alone, site, layout, waited_for=False).text({})
    answer = answer_of(COMMAND, ASK_S, script)
    words = f"{answer.remarks}\n{answer.printed}"
    at = _start_in(words)
    return _no_time(words) if at is None else StartEstimate(asked=" ".join(COMMAND), at=at)


def _refused_start(error: UserError, job: Job, site: SlurmSite) -> StartEstimate:
    """No start, with the lines of the site profile on which sbatch refuses the job."""
    answer = replace(_no_time(_words_of(error)), is_taken=None)
    passing = (is_unreachable(error), *(words.search(answer.answer) for words in (_NOT_OF_JOB, TOO_MANY, QUEUE_FULL)))
    if not isinstance(error, SlurmRefusedError) or any(passing):
        return answer
    lines = site.lines_behind(answer.answer, job.resources.kind)
    return replace(answer, answer=f"{answer.answer} ({lines})", is_taken=False)


def refuse_untaken(jobs: Sequence[Job], site: SlurmSite, layout: RunLayout, show: Show) -> None:
    """Let sbatch test a job of each kind first, and show where its answer is unclear."""
    for answer in start_estimates(jobs, site, layout):
        if answer.is_taken is None:
            show(f"whether Slurm takes {few_names(answer.jobs)} is not known: {answer.asked} said {answer.answer}")
        if answer.is_taken is False:
            raise UserError(
                f"Slurm would refuse {few_names(answer.jobs)}; nothing was submitted",
                value=answer.answer,
                where=answer.asked,
                expected="a request that the site's partitions, account and limits allow",
                advice="correct the site profile (mrt-hpc doctor compares it with the cluster); then the same command",
            )


def _start_in(words: str) -> float | None:
    """Seconds since the epoch, as SLURM_TIME_FORMAT asks for, or by the local clock."""
    match = _START.search(words)
    if match is None:
        return None
    try:
        return float(match[1]) if match[1].isdigit() else datetime.fromisoformat(match[1]).timestamp()
    except ValueError:
        return None  # the answer is shown in its own words


def _words_of(error: UserError) -> str:
    if isinstance(error, SlurmRefusedError):
        return error.reason
    return error.what if error.value is None else f"{error.what}: {error.value}"


def _no_time(words: str) -> StartEstimate:
    """An answer without a time, and without sbatch's prefixes of lines."""
    lines = (_PREFIX.sub("", line.strip()) for line in words.splitlines())
    return StartEstimate(asked=" ".join(COMMAND), at=None, answer="; ".join(filter(None, lines)) or "nothing")


def _join_estimates(estimates: Sequence[StartEstimate]) -> list[StartEstimate]:
    joined: dict[object, StartEstimate] = {}
    for number, estimate in enumerate(estimates):
        key = estimate.answer if estimate.at is None else number
        joined[key] = replace(estimate, jobs=(*joined[key].jobs, *estimate.jobs)) if key in joined else estimate
    return list(joined.values())
