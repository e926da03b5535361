"""Runs Slurm's commands with argument lists and deadlines, turns failures into errors that say what to do, and reads
the answers, between which a site may print text of its own.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryFile

from tenacity import retry, retry_if_exception, stop_after_delay, wait_random_exponential

from mrt_hpc.errors import ExitCode, UserError

_OPTIONS = ("SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SCONTROL_", "SLURM_")
"""The prefixes of the variables that are options of Slurm's commands, or that describe the job of a shell. They win
over the lines of a job script, so that another job than the planned one would be queued.
"""
_OF_THE_SITE = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_SACK_SOCKET"}
"""The variables that select the cluster and authenticate the user; they are kept."""
_OF_WRAPPERS = {"SLURM_ROOT", "SLURM_HOME", "SLURM_PREFIX", "SLURM_DIR", "SLURM_VERSION"}
"""The variables by which a site's own commands know where Slurm is; they are kept, and Slurm reads none of them."""
_FORMS = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
"""Slurm prints times in seconds since the epoch, which do not depend on the time zone or on summer time, and lists of
the tasks of an array as long as they are.
"""
PING_S = 10.0
"""Seconds that a Slurm controller may take to answer: a command that is to work on this machine waits for it."""
TIMEOUT_S = 120.0
"""The time-out of one command: a controller under load answers in tens of seconds; a longer wait means that it is
down."""


QUIET_S = 3.0
"""Seconds after which the user sees what the command waits for."""
BACK_OFF_S = 90.0
"""A controller that cannot be reached is asked again for this many seconds, at growing intervals, because it may be
restarting.
"""
_UNREACHABLE = re.compile(
    r"unable to contact|unexpected message received|timed out|connection refused|connect failure|zero bytes|"
    r"not responding|try again later",
    re.IGNORECASE,
)


class SlurmRefusedError(UserError):
    """Slurm refused a request. ``reason`` holds Slurm's own message."""

    def __init__(self, command: Sequence[str], reason: str) -> None:
        super().__init__(f"{command[0]} refused", value=reason, where=shlex.join(command), exit_code=ExitCode.RETRYABLE)
        self.reason = reason


def is_unreachable(error: BaseException) -> bool:
    """Whether an error says that the controller cannot be reached."""
    return isinstance(error, SlurmRefusedError) and _UNREACHABLE.search(error.reason) is not None


@retry(
    retry=retry_if_exception(is_unreachable),
    wait=wait_random_exponential(multiplier=1.0, max=20.0),
    stop=stop_after_delay(BACK_OFF_S),
    reraise=True,
)
def ask_slurm(command: Sequence[str]) -> str:
    """Run a command that is safe to repeat, and retry it with backoff while the controller cannot be reached.

    Raises:
        UserError: as :func:`run_slurm`.
    """
    return run_slurm(command)


@dataclass(frozen=True)
class Answer:
    """What a command that ended well has printed."""

    printed: str
    """What stands on standard output."""
    remarks: str
    """What stands on standard error."""


def run_slurm(command: Sequence[str], timeout_s: float = TIMEOUT_S) -> str:
    """Run one of Slurm's commands, once, and return what it printed on standard output.

    Raises:
        UserError: as :func:`answer_of`.
    """
    return answer_of(command, timeout_s).printed


def answer_of(command: Sequence[str], timeout_s: float, script: str = "") -> Answer:
    """Run one of Slurm's commands, once, without the user's own Slurm variables: ``SQUEUE_STATES`` would hide jobs, and
    ``SBATCH_TIMELIMIT`` overrides the plan. A command that takes long is reported on standard error.

    Args:
        command: its words.
        timeout_s: seconds after which it counts as not answered.
        script: what it reads from standard input.

    Raises:
        SlurmRefusedError: it ended with an error.
        UserError: it is not installed here, or did not answer in time; with the words that it has printed so far.
    """
    with _input(script) as given, _in_memory() as output, _in_memory() as errors:
        with _started(command, given, output, errors) as process:
            try:
                _wait(process, command, timeout_s, errors)
            except BaseException:
                process.kill()
                raise
        printed, complaint = _text(output), _text(errors)
    if process.returncode:
        reason = complaint.strip() or printed.strip() or f"exit code {process.returncode}"
        raise SlurmRefusedError(command, reason)
    return Answer(printed, complaint)


@contextmanager
def _input(script: str) -> Iterator[int]:
    """The descriptor of a file with this text. Without a text no file is made: the disk may be full."""
    if not script:
        yield subprocess.DEVNULL
        return
    with TemporaryFile() as file:
        file.write(script.encode())
        file.seek(0)
        yield file.fileno()


@contextmanager
def _in_memory() -> Iterator[int]:
    """The descriptor of a file in memory. It takes what a command prints: the end of a pipe would be that of the last
    process which a wrapper has left running, and the disk may be full.
    """
    descriptor = os.memfd_create("answer")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _text(descriptor: int) -> str:
    """The content of a file. Names and comments of other jobs may be text in any encoding."""
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")


def _started(command: Sequence[str], given: int, output: int, errors: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(list(command), stdin=given, stdout=output, stderr=errors, env=_environment())
    except FileNotFoundError:
        raise UserError(
            f"{command[0]} was not found",
            where=shlex.join(command),
            expected="a machine with Slurm's commands",
            advice="log in to the cluster and try again; `mrt-hpc plan` works anywhere",
        ) from None
    except OSError as error:
        raise UserError(
            f"{command[0]} cannot be run here: {error.strerror or error}",
            where=shlex.join(command),
            expected="a command that this user may run",
            advice=f"`ls -l $(command -v {command[0]})` shows who may; ask the administrators",
        ) from error


def _wait(process: subprocess.Popen[bytes], command: Sequence[str], timeout_s: float, errors: int) -> None:
    """Wait for a command to end. While it runs, its error output is passed on."""
    end, said = time.monotonic() + timeout_s, None
    while True:
        try:
            process.wait(timeout=max(0.0, min(QUIET_S, end - time.monotonic())))
        except subprocess.TimeoutExpired:
            words = _text(errors).strip()
        else:
            return
        if time.monotonic() >= end:
            raise _no_answer(command, timeout_s, words)
        if words != said:
            print(f"waiting for {command[0]}: {words or 'no answer yet'}", file=sys.stderr, flush=True)
            said = words


def _no_answer(command: Sequence[str], timeout_s: float, words: str) -> UserError:
    return UserError(
        f"{command[0]} did not answer within {timeout_s:.0f} s",
        value=words or None,
        where=shlex.join(command),
        advice="look at `scontrol ping`; try again when the controller is up",
        exit_code=ExitCode.RETRYABLE,
    )


def _environment() -> dict[str, str]:
    """Return the environment without the options that a shell, a module or the job of an interactive shell has set."""
    kept = _OF_THE_SITE | _OF_WRAPPERS
    return {k: v for k, v in os.environ.items() if k in kept or not k.startswith(_OPTIONS)} | _FORMS


def ignored_options() -> list[str]:
    """The options of sbatch that the user's environment sets and that no job gets, as ``NAME=value``."""
    return sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("SBATCH_"))


def controller_here() -> str | None:
    """The answer of a Slurm controller that is reached from this machine, or that it takes long, which a busy one does;
    None where there is none.
    """
    if shutil.which("scontrol") is None:
        return None
    try:
        printed = run_slurm(("scontrol", "ping"), PING_S)
    except SlurmRefusedError as refusal:
        printed = refusal.reason  # a second controller may answer where the first does not
    except UserError as error:
        return error.what if error.exit_code is ExitCode.RETRYABLE else None
    return next((line.strip() for line in printed.splitlines() if line.split()[-1:] == ["UP"]), None)


# Reads what Slurm's commands print, for everything that calls them. What stands between the records is passed over:
# the lines of login banners and of a site's wrappers, and the text of other jobs.


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
