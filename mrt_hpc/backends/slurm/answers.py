"""Reads what Slurm's commands print, for everything that calls them. What stands between the records is passed over:
the lines of login banners and of a site's wrappers, and the text of other jobs.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence

from mrt_hpc.errors import ExitCode, UserError

JOB_ID = re.compile(r"[1-9]\d*")
"""The id of a job, which names all tasks of an array as well."""
TASK_ID = re.compile(r"[1-9]\d*(?:_(?:\d+|\[[^\]]*\]?))?(?:\+\d+)?")
"""What squeue and sacct call a task, or several tasks of an array that have not begun: ``12``, ``12_3`` or
``12_[0-3,7%2]``; ``12+1`` is a part of a heterogeneous job.
"""
_PARSABLE_ID = re.compile(rf"({JOB_ID.pattern})(?:;\S+)?")
_SPOKEN_ID = re.compile(rf"Submitted batch job ({JOB_ID.pattern})(?: on cluster \S+)?\.?")
MARKS = _BEGIN, _BETWEEN, _END = "mrt-hpc(|", "|:|", "|)mrt-hpc"
"""They stand before, in and after the records that squeue is asked for."""
_RECORD = re.compile(rf"{re.escape(_BEGIN)}((?:(?!{re.escape(_BEGIN)}).)*?){re.escape(_END)}", re.DOTALL)
_COUNT = re.compile(r"(\d+)([KMGTP]?)", re.IGNORECASE)
_CLUSTER = re.compile(r"CLUSTER: \S+")
"""The line with which squeue and sinfo begin the answer of each of several clusters."""
_SETTING = re.compile(r"(\w+)\s*= (.*)")
_PAIR = re.compile(r"([\w/]+)=(.*?)(?= [\w/]+=|$)")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d+):(\d+)")
_VERSION = re.compile(r"slurm\S* (\d+)\.(\d+)\S*")
LONGEST_SHOWN = 300
"""The characters of a passed over text that are shown."""
_remarked: set[str] = set()


def remark(text: str) -> None:
    """Show a line to the user on standard error, once in a process."""
    if text not in _remarked:
        _remarked.add(text)
        print(text, file=sys.stderr, flush=True)


def submitted_id(printed: str, command: Sequence[str]) -> tuple[str, list[str]]:
    """The id of the job that sbatch has queued, and the other lines that it printed. Some wrappers of sbatch leave out
    ``--parsable``, so that the id is in the sentence that sbatch prints without it; that sentence says more than a line
    which is only a number.

    Raises:
        UserError: no line is an id, or several are.
    """
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    for form in (_SPOKEN_ID, _PARSABLE_ID):
        ids = {line: match[1] for line in lines if (match := form.fullmatch(line))}
        if len({*ids.values()}) == 1:
            return next(iter(ids.values())), [line for line in lines if line not in ids]
        if ids:
            break
    raise UserError(
        f"sbatch ended well and printed {'several ids of jobs' if ids else 'no id of a job'}; one may be queued",
        value=printed.strip() or "(nothing)",
        where=shlex.join(command),
        expected="a line with the id, as `sbatch --parsable` prints it",
        advice="squeue --me shows whether the job is queued; the same submit command takes over the jobs of this run "
        "that it finds in the queue. A wrapper around sbatch has to pass on what sbatch prints",
        exit_code=ExitCode.RETRYABLE,
    )


def squeue_format(*fields: str) -> str:
    """The option with which squeue marks the beginning and the end of each record, and what stands between its fields.
    The first field has to be an id. squeue is asked with its header: it shows that the marks have arrived.
    """
    return f"--format={_BEGIN}{_BETWEEN.join(fields)}{_END}"


def squeue_records(printed: str, fields: int) -> list[list[str]]:
    """The records of squeue, asked with :func:`squeue_format`. Their fields may hold any text, line breaks too.

    Raises:
        UserError: not even its header is marked, so this is no answer; or a record has no end.
    """
    marked = [record.split(_BETWEEN) for record in _RECORD.findall(printed)]
    others = _lines(_RECORD.sub("\n", printed))
    if not marked or any(_BEGIN in line for line in others):
        raise UserError(
            "what squeue printed is not what it was asked for",
            value=" / ".join(filter(None, map(str.strip, printed.splitlines()))) or "(nothing)",
            expected=f"records between {_BEGIN} and {_END}, as its option --format asks",
            advice="type `squeue --me --format='a %i b'`: a wrapper around squeue has to pass on its options",
            exit_code=ExitCode.RETRYABLE,
        )
    torn = [
        " ".join(record) for record in marked[1:] if len(record) != fields
    ]  # a name holds what stands between fields
    _passed_over("squeue", others + torn)
    return [record for record in marked if len(record) == fields and TASK_ID.fullmatch(record[0])]


def matching_lines(printed: str, record: re.Pattern[str], command: str) -> Iterator[re.Match[str]]:
    """The lines of a listing that have the form of its records."""
    lines = _lines(printed)
    matches = {line: match for line in lines if (match := record.fullmatch(line))}
    _passed_over(command, [line for line in lines if line not in matches])
    return (matches[line] for line in lines if line in matches)


def settings(printed: str) -> dict[str, str]:
    """The settings of ``scontrol show config``, by name."""
    matches = (_SETTING.fullmatch(line.rstrip()) for line in printed.splitlines())
    return {match[1]: match[2].strip() for match in matches if match}


def partitions(printed: str) -> list[dict[str, str]]:
    """The partitions of ``scontrol --oneliner show partition``, each by the names of its fields."""
    return [dict(_PAIR.findall(line)) for line in _lines(printed) if line.startswith("PartitionName=")]


def version(printed: str) -> str | None:
    """The line of ``sinfo --version``; None where there is none."""
    return next((line for line in _lines(printed) if _VERSION.match(line)), None)


def _lines(printed: str) -> list[str]:
    lines = (line.strip() for line in printed.splitlines())
    return [line for line in lines if line and not _CLUSTER.fullmatch(line)]


def _passed_over(command: str, lines: Sequence[str]) -> None:
    if lines:
        remark(f"{command} also printed what is no answer of Slurm: {' / '.join(lines)[:LONGEST_SHOWN]}")


def count_of(text: str) -> int | None:
    """The count of a GRES, as ``4`` or ``4K``; None for what is no count."""
    match = _COUNT.fullmatch(text)
    return None if match is None else int(match[1]) * 1024 ** " KMGTP".index(match[2].upper() or " ")


def minutes_of(text: str) -> int | None:
    """Slurm's ``days-hours:minutes:seconds`` in whole minutes; None for ``UNLIMITED`` and anything else."""
    match = _CLOCK.fullmatch(text.strip())
    return None if match is None else seconds_of(text) // 60


def seconds_of(text: str) -> int:
    """Slurm's ``days-hours:minutes:seconds`` in seconds; 0 for anything else."""
    match = _CLOCK.fullmatch(text.strip())
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0, 0)
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
