"""Runs Slurm's commands with deadlines, and turns failures into errors that say what to do."""

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

from tenacity import retry, retry_if_exception, stop_after_delay, wait_random_exponential

from mrt_hpc.errors import Advice, ExitCode, UserError

_OPTIONS = ("SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SCONTROL_", "SLURM_")
"""Prefixes of variables that are options of Slurm's commands, or describe a shell's job. They win over a job script."""
_OF_THE_SITE = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_SACK_SOCKET"}
"""Kept: they select the cluster and authenticate the user."""
_OF_WRAPPERS = {"SLURM_ROOT", "SLURM_HOME", "SLURM_PREFIX", "SLURM_DIR", "SLURM_VERSION"}
"""Kept: a site's own commands find Slurm by them, and Slurm reads none."""
_FORMS = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
"""Times in seconds since the epoch, independent of time zone and summer time; untruncated lists of tasks."""
PING_S = 10.0
"""A controller's time to answer, for which a command that is to work on this machine waits."""
TIMEOUT_S = 120.0
"""A controller under load answers in tens of seconds; a longer wait means that it is down."""


QUIET_S = 3.0
"""The user then sees what is waited for."""
BACK_OFF_S = 90.0
"""An unreachable controller may be restarting: it is asked again for so long, at growing intervals."""
_UNREACHABLE = re.compile(
    r"unable to contact|unexpected message received|timed out|connection refused|connect failure|zero bytes|"
    r"not responding|try again later|configuration source",
    re.IGNORECASE,
)


class SlurmRefusedError(UserError):
    """``reason`` holds Slurm's own message."""

    def __init__(self, command: Sequence[str], reason: str) -> None:
        super().__init__(f"{command[0]} refused", value=reason, where=shlex.join(command), exit_code=ExitCode.RETRYABLE)
        self.reason = reason


def is_unreachable(error: BaseException) -> bool:
    return isinstance(error, SlurmRefusedError) and _UNREACHABLE.search(error.reason) is not None


@retry(
    retry=retry_if_exception(is_unreachable),
    wait=wait_random_exponential(multiplier=1.0, max=20.0),
    stop=stop_after_delay(BACK_OFF_S),
    reraise=True,
)
def ask_slurm(command: Sequence[str]) -> str:
    """Run a command that is safe to repeat, again while the controller is not reached."""
    return run_slurm(command)


@dataclass(frozen=True)
class Answer:
    printed: str
    remarks: str


def run_slurm(command: Sequence[str], timeout_s: float = TIMEOUT_S) -> str:
    return answer_of(command, timeout_s).printed


def answer_of(command: Sequence[str], timeout_s: float, script: str = "") -> Answer:
    """Run a Slurm command once, with ``script`` as its input and without the user's Slurm variables: ``SQUEUE_STATES``
    would hide jobs, and ``SBATCH_TIMELIMIT`` overrides the plan.

    Raises:
        SlurmRefusedError: it ended with an error.
        UserError: it is not installed, or did not answer in time.
    """
    with _memory_file(script) as given, _memory_file() as output, _memory_file() as errors:
        with _start_command(command, given, output, errors) as process:
            try:
                _wait(process, command, timeout_s, errors)
            except BaseException:
                process.kill()
                raise
        printed, complaint = _text(output), _text(errors)
    if process.returncode:
        raise SlurmRefusedError(command, complaint.strip() or printed.strip() or f"exit code {process.returncode}")
    return Answer(printed, complaint)


@contextmanager
def _memory_file(text: str = "") -> Iterator[int]:
    """The disk may be full, and a pipe would end only with the last process that a wrapper leaves running."""
    descriptor = os.memfd_create("answer")
    try:
        os.pwrite(descriptor, text.encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _text(descriptor: int) -> str:
    """Names and comments of other jobs may have any encoding."""
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")


def _start_command(command: Sequence[str], given: int, output: int, errors: int) -> subprocess.Popen[bytes]:
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
            advice=Advice("`ls -l $(command -v {command})` shows who may; ask the administrators", command=command[0]),
        ) from error


def _wait(process: subprocess.Popen[bytes], command: Sequence[str], timeout_s: float, errors: int) -> None:
    """Passes the command's error output on while it waits."""
    end, said = time.monotonic() + timeout_s, None
    while True:
        try:
            process.wait(timeout=max(0.0, min(QUIET_S, end - time.monotonic())))
        except subprocess.TimeoutExpired:
            words = _text(errors).strip()
        else:
            return
        if time.monotonic() >= end:
            raise UserError(
                f"{command[0]} did not answer within {timeout_s:.0f} s",
                value=words or None,
                where=shlex.join(command),
                advice="look at `scontrol ping`; try again when the controller is up",
                exit_code=ExitCode.RETRYABLE,
            )
        if words != said:
            print(f"waiting for {command[0]}: {words or 'no answer yet'}", file=sys.stderr, flush=True)
            said = words


def _environment() -> dict[str, str]:
    """The environment without the options that a shell, a module or an interactive job has set."""
    kept = _OF_THE_SITE | _OF_WRAPPERS
    return {k: v for k, v in os.environ.items() if k in kept or not k.startswith(_OPTIONS)} | _FORMS


def ignored_options() -> list[str]:
    """``NAME=value`` of options that no job gets."""
    return sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("SBATCH_"))


def controller_here() -> str | None:
    """A busy controller takes long; None where there is none."""
    if shutil.which("scontrol") is None:
        return None
    try:
        printed = run_slurm(("scontrol", "ping"), PING_S)
    except SlurmRefusedError as refusal:
        printed = refusal.reason  # a second controller may answer where the first does not
    except UserError as error:
        return error.what if error.exit_code is ExitCode.RETRYABLE else None
    return next((line.strip() for line in printed.splitlines() if line.split()[-1:] == ["UP"]), None)
