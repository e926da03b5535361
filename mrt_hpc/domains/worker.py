"""The code of a grader process: its limits, its end with the pool's owner, and the judgement of one pair.

The fork server imports what the verifier wants once, so that a worker that replaces a killed one is there within
milliseconds.
"""

from __future__ import annotations

import os
import resource
import signal
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.domains.base import Judgement
from mrt_hpc.errors import UserError
from mrt_hpc.run.parent_death import die_with_pool_owner

if TYPE_CHECKING:
    from mrt_hpc.domains.base import Verifier


def initialise(memory_limit_bytes: int, niceness: int) -> None:
    """Prepare a fresh worker process; to be called in it, before its first pair."""
    os.nice(niceness)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a Python handler would never run inside a long multiplication
    die_with_pool_owner()
    limit_memory(memory_limit_bytes)


def limit_memory(limit_bytes: int) -> None:
    """Let this process allocate ``limit_bytes`` beyond what it has mapped now; more raises MemoryError."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = mapped + limit_bytes
    resource.setrlimit(resource.RLIMIT_AS, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _in_a_line(error: Exception) -> str:
    """An error with the place where it was raised, short enough for a line of the log."""
    *_, place = traceback.extract_tb(error.__traceback__)
    return f"{error!r:.200} ({Path(place.filename).name}:{place.lineno})"


def judge_timed(verifier: Verifier, answer: str, gold: str, limit_s: float) -> tuple[Judgement, float]:
    """The judgement of one pair and the processor seconds it took; an error of the verifier makes the answer
    unreadable, but for what this machine lacks.

    Processor time does not pass while others have the core, so that a busy machine makes no right answer wrong. Past
    ``limit_s`` the kernel ends the process by SIGPROF, which has no handler: one in Python would have to wait for the
    end of a long multiplication.

    Raises:
        UserError: the verifier cannot judge on this machine.
    """
    started = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        judgement = verifier.judge(answer, gold)
    except UserError:
        raise
    except Exception as error:  # any error that a hostile answer causes, MemoryError and RecursionError too, scores 0
        judgement = Judgement(correct=False, readable=False, error=_in_a_line(error))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
    return judgement, time.process_time() - started
