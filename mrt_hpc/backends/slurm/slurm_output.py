"""Reads what Slurm's commands print, between the lines of login banners and of a site's wrappers."""

import re
import shlex
import sys
from collections.abc import Iterator, Sequence

from mrt_hpc.errors import ExitCode, UserError

JOB_ID = re.compile(r"[1-9]\d*")
"""It names all tasks of an array as well."""
TASK_ID = re.compile(r"[1-9]\d*(?:_(?:\d+|\[[^\]]*\]?))?(?:\+\d+)?")
"""Tasks in squeue and sacct: ``12``, ``12_3``, or ``12_[0-3,7%2]`` that have not begun; ``12+1`` is a part of a
heterogeneous job.
"""
_PARSABLE_ID = re.compile(rf"({JOB_ID.pattern})(?:;\S+)?")
_SPOKEN_ID = re.compile(rf"Submitted batch job ({JOB_ID.pattern})(?: on cluster \S+)?\.?")
MARKS = _BEGIN, _BETWEEN, _END = "mrt-hpc(|", "|:|", "|)mrt-hpc"
_RECORD = re.compile(rf"{re.escape(_BEGIN)}((?:(?!{re.escape(_BEGIN)}).)*?){re.escape(_END)}", re.DOTALL)
_COUNT = re.compile(r"(\d+)([KMGTP]?)", re.IGNORECASE)
_CLUSTER = re.compile(r"CLUSTER: \S+")
"""Begins the answer of each of several clusters."""
_SETTING = re.compile(r"(\w+)\s*= (.*)")
_PAIR = re.compile(r"([\w/]+)=(.*?)(?= [\w/]+=|$)")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d+):(\d+)")
_VERSION = re.compile(r"slurm\S* (\d+)\.(\d+)\S*")
LONGEST_SHOWN = 300
_remarked: set[str] = set()


def remark(text: str) -> None:
    """Show a line on standard error, once in a process."""
    if text not in _remarked:
        _remarked.add(text)
        print(text, file=sys.stderr, flush=True)


def submitted_id(printed: str, command: Sequence[str]) -> tuple[str, list[str]]:
    """sbatch's id, and its other lines. Where a wrapper leaves out ``--parsable``, the id is in sbatch's sentence.
    Refuses none or several ids.
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
    """Marks records and fields, of which the first has to be an id. The header shows that the marks have arrived."""
    return f"--format={_BEGIN}{_BETWEEN.join(fields)}{_END}"


def squeue_records(printed: str, fields: int) -> list[list[str]]:
    """Fields may hold line breaks. Refuses output without a marked header, or a record without end."""
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
    # a name holds what stands between fields
    torn = [" ".join(record) for record in marked[1:] if len(record) != fields]
    _remark_other_lines("squeue", others + torn)
    return [record for record in marked if len(record) == fields and TASK_ID.fullmatch(record[0])]


def matching_lines(printed: str, record: re.Pattern[str], command: str) -> Iterator[re.Match[str]]:
    lines = _lines(printed)
    matches = {line: match for line in lines if (match := record.fullmatch(line))}
    _remark_other_lines(command, [line for line in lines if line not in matches])
    return (matches[line] for line in lines if line in matches)


def settings(printed: str) -> dict[str, str]:
    matches = (_SETTING.fullmatch(line.rstrip()) for line in printed.splitlines())
    return {match[1]: match[2].strip() for match in matches if match}


def partitions(printed: str) -> list[dict[str, str]]:
    return [dict(_PAIR.findall(line)) for line in _lines(printed) if line.startswith("PartitionName=")]


def version(printed: str) -> str | None:
    return next((line for line in _lines(printed) if _VERSION.match(line)), None)


def _lines(printed: str) -> list[str]:
    lines = (line.strip() for line in printed.splitlines())
    return [line for line in lines if line and not _CLUSTER.fullmatch(line)]


def _remark_other_lines(command: str, lines: Sequence[str]) -> None:
    if lines:
        remark(f"{command} also printed what is no answer of Slurm: {' / '.join(lines)[:LONGEST_SHOWN]}")


def count_of(text: str) -> int | None:
    """The count of a GRES, as ``4`` or ``4K``; None for what is no count."""
    match = _COUNT.fullmatch(text)
    return None if match is None else int(match[1]) * 1024 ** " KMGTP".index(match[2].upper() or " ")


def minutes_of(text: str) -> int | None:
    """Slurm's ``days-hours:minutes:seconds`` in whole minutes; None for ``UNLIMITED`` and anything else."""
    return seconds_of(text) // 60 if _CLOCK.fullmatch(text.strip()) else None


def seconds_of(text: str) -> int:
    """Slurm's ``days-hours:minutes:seconds`` in seconds; 0 for anything else."""
    match = _CLOCK.fullmatch(text.strip())
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0, 0)
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
