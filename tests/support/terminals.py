"""Types commands as a user does: on a terminal, or into a pipe that nothing reads. Each runs in a process of its own,
which a helper that has loaded the package forks, since loading takes longer than most commands.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from basics import ROOT

HELPER = """
import fcntl, json, os, pty, struct, sys, termios, tempfile, traceback
from mrt_hpc.cli.main import main

def run(words):
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")
    try:
        main([os.fsdecode(bytes.fromhex(word)) for word in words], prog_name="mrt-hpc")
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 99
    try:
        sys.stdout.flush(), sys.stderr.flush()
    except OSError:
        code = 120
    os._exit(code or 0)

def on_a_terminal(words, columns):
    child, terminal = pty.fork()
    if not child:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        run(words)
    parts = []
    try:
        while part := os.read(terminal, 65536):
            parts.append(part)
    except OSError:
        pass
    return child, b"".join(parts)

def into_a_closed_pipe(words, _):
    reader, writer = os.pipe()
    os.close(reader)
    with tempfile.TemporaryFile() as errors:
        child = os.fork()
        if not child:
            os.dup2(writer, 1), os.dup2(errors.fileno(), 2)
            run(words)
        os.close(writer)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        errors.seek(0)
        return child, errors.read()

asked = json.load(sys.stdin)
for words in asked["commands"]:
    child, printed = globals()[asked["where"]](words, asked["columns"])
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([code, printed.hex()]), flush=True)
"""


class Typed(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    text: str


def on_a_terminal(*commands: Sequence[object], here: Path, columns: int = 400, **environment: str) -> list[Typed]:
    return _typed("on_a_terminal", commands, here, columns, environment)


def into_a_closed_pipe(*commands: Sequence[object], here: Path) -> list[Typed]:
    """What is printed are the errors."""
    return _typed("into_a_closed_pipe", commands, here, 0, {})


def _typed(
    where: str, commands: Sequence[Sequence[object]], here: Path, columns: int, environment: dict[str, str]
) -> list[Typed]:
    words = [[os.fsencode(str(word)).hex() for word in command] for command in commands]
    own = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", **environment}
    asked = json.dumps({"where": where, "commands": words, "columns": columns})
    command = [sys.executable, "-c", HELPER]
    done = subprocess.run(
        command, input=asked, env=own, cwd=here, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return [Typed(code, bytes.fromhex(printed).decode(errors="surrogateescape")) for code, printed in answers]
