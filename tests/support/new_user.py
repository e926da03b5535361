"""Somebody who has installed the package and has nothing else: an empty home, an empty folder, and a shell."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from forked_commands import COMMANDS, Ended, run_command

AT_WORK = "; running "
"""The line of progress of a command holds this once a task runs."""
COMPUTES = " gradients, about "
"""A line of ``analyze gradients`` holds this after its first ones."""
NOWHERE = {"HF_ENDPOINT": "http://127.0.0.1:9", "SLURM_CONF": os.devnull}
"""No hub and no cluster is reached, whether or not the machine of the tests has a network and a controller."""
KEPT = ("OMP_WAIT_POLICY", "PYTHONDONTWRITEBYTECODE")
"""The tests say with these how busy their machine is, and who compiles."""
LONGEST_S = 2400


def is_at_work(line: str) -> bool:
    return AT_WORK in line or COMPUTES in line


@dataclass(frozen=True)
class NewUser:
    home: Path
    folder: Path  # where the commands are typed

    @classmethod
    def of(cls, place: Path) -> "NewUser":
        user = cls(place / "home", place / "work")
        for each in (user.home, user.folder):
            each.mkdir(parents=True, exist_ok=True)
        return user

    @property
    def environment(self) -> dict[str, str]:
        """That of a fresh login: nothing of what the tests have set."""
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        own = {"HOME": str(self.home), "PATH": path, "LANG": "C.UTF-8", **NOWHERE}
        return {**own, **{name: os.environ[name] for name in KEPT if name in os.environ}}

    def types(self, *words: object) -> Ended:
        """Type ``mrt-hpc`` with these words, with the output in a pipe, and wait for its end."""
        with self.started(*words) as process:
            printed, _ = process.communicate(timeout=LONGEST_S)
        return Ended(process.returncode, printed)

    def types_in_fork(self, *words: object, program: str = COMMANDS) -> Ended:
        """The same without the imports that a command begins with, or its tasks: see ``forked_commands``."""
        return run_command(words, self.environment, self.folder, program)

    def looks(self, *words: object) -> Ended:
        """The same in a terminal."""
        above, below = pty.openpty()
        with self.started(*words, output=below) as process:
            os.close(below)
            printed = b""
            with suppress(OSError):  # the terminal says so once nobody writes to it any more
                while more := os.read(above, 65536):
                    printed += more
            os.close(above)
            return Ended(process.wait(LONGEST_S), printed.decode())

    def begins(self, *words: object, when: Callable[[str], bool] = is_at_work) -> Ended:
        """The same until a line tells that it is at work, and then Ctrl-C; all that it printed."""
        with self.started(*words) as process:
            assert process.stdout is not None
            printed = ""
            for line in process.stdout:
                printed += line
                if when(line):
                    os.killpg(process.pid, signal.SIGINT)
                    break
            printed += process.communicate(timeout=LONGEST_S)[0]
        return Ended(process.returncode, printed)

    @contextmanager
    def started(self, *words: object, output: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
        """A process of the command, in a process group of its own as a shell gives it, which ends with the block."""
        with subprocess.Popen(
            ["mrt-hpc", *map(str, words)], cwd=self.folder, env=self.environment, start_new_session=True, text=True,
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            try:
                yield process
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
