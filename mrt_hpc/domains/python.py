"""Programs: the answer is Python code, the gold answer a text of assertions that it has to pass."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from typing import Literal

from mrt_hpc.domains.base import Judgement, Verifier, after_thought
from mrt_hpc.domains.boxed import THOUGHT_END
from mrt_hpc.recipe.base import Gib, Seconds
from mrt_hpc.run.parent_death import die_with_parent

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
WALL_FACTOR = 4.0
"""Seconds on the clock for a second of the processor, at most."""
KEPT = ("PATH", "LANG", "LC_ALL")
"""Variables of the environment that a program gets."""
MOST_FILE_BYTES = 10 * 2**20


class PythonVerifier(Verifier):
    """A program in the last fenced code block after the thought, right where it passes the assertions of the gold
    answer, which are run behind it.

    The program runs in an empty folder, without the secrets of the environment, with limits on time, memory, processes
    and files. This protects a run from programs that hang or fill the disk. It is no sandbox: a program can read files
    that you can read, and reach the network where the node can.
    """

    reads_boxes = False
    type: Literal["python"] = "python"
    time_limit_s: Seconds = 2.0
    """Processor seconds for a program with its assertions."""
    memory_limit_gib: Gib = 1.0
    """Memory of a program, GiB."""

    def extract(
        self, text: str, *, thinking: bool = False, thought_end: str = THOUGHT_END, cut: bool = False
    ) -> str | None:
        """The last whole block of code after the thought; None where there is none, or the text was cut inside one."""
        searched = after_thought(text, thinking=thinking, thought_end=thought_end)
        if searched is None or (cut and searched.count("```") % 2):
            return None
        blocks = _BLOCK.findall(searched)
        return blocks[-1].strip() or None if blocks else None

    def reads(self, gold: str) -> bool:
        """Whether the assertions are Python."""
        return is_python(gold)

    def judge(self, answer: str, gold: str) -> Judgement:
        """Whether the program ends well with the assertions behind it."""
        if not is_python(answer):
            return Judgement(correct=False, readable=False)
        with tempfile.TemporaryDirectory(prefix="mrt-hpc-program-") as folder:
            return Judgement(correct=self._ends_well(f"{answer}\n\n{gold}\n", folder), readable=True)

    def _ends_well(self, program: str, folder: str) -> bool:
        environment = {name: os.environ[name] for name in KEPT if name in os.environ} | {
            "HOME": folder,
            "TMPDIR": folder,
        }
        process = subprocess.Popen(
            [sys.executable, "-I", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=environment,
            start_new_session=True,
            preexec_fn=self._limit,
        )
        try:
            process.communicate(program.encode(), timeout=WALL_FACTOR * self.time_limit_s + 1.0)
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end(process)
        return process.returncode == 0

    def _limit(self) -> None:
        """In the program's own process, before it begins."""
        die_with_parent()
        seconds, memory = int(self.time_limit_s) + 1, int(self.memory_limit_gib * 2**30)
        for kind, limit in (
            (resource.RLIMIT_CPU, seconds),
            (resource.RLIMIT_AS, memory),
            (resource.RLIMIT_FSIZE, MOST_FILE_BYTES),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(kind, (limit, limit))


def _end(process: subprocess.Popen[bytes]) -> None:
    """The program and all that it has started."""
    with contextlib.suppress(ProcessLookupError):  # it has ended, with all that it started
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def is_python(text: str) -> bool:
    """Whether a text is a Python program, as far as its grammar says."""
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
