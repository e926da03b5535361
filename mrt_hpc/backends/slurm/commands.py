"""Runs Slurm's commands with argument lists and deadlines, and turns failures into errors that say what to do."""

from __future__ import annotations

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
    with TemporaryFile("w+") as file:
        file.write(script)
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
