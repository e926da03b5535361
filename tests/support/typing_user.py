"""Types lines of a file as the user of this process, and tells of each how it ended and what it has done.

Its words: a file with the lines, this user's home, the folder in it in which lines are typed, and the folder in which
the other user's code leaves marks. It prints an object of JSON for each line.
"""

import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from click.testing import CliRunner

from mrt_hpc.cli.main import main

SECONDS = 60
"""A line that takes longer waits for the other user, who never comes."""


class HungError(BaseException):
    """A line has not ended."""


def give_up(_: int, __: FrameType | None) -> None:
    raise HungError


def state(home: Path, besides: Sequence[Path]) -> dict[str, tuple[int, int, bytes]]:
    """Mode, inode and content of each file below a folder, without those below others."""
    found = {}
    for folder, names, files in os.walk(home):
        names[:] = [name for name in names if Path(folder, name) not in besides]
        for path in (Path(folder, name) for name in files):
            status = path.lstat()
            found[str(path)] = (status.st_mode, status.st_ino, path.read_bytes() if path.is_file() else b"")
    return found


def typed(words: list[str], folder: str) -> tuple[str, str]:
    """What a line prints, and the traceback where it ended with one."""
    os.chdir(folder)
    umask, modules, places = os.umask(0o022), {*sys.modules}, [*sys.path]
    signal.alarm(SECONDS)
    try:
        done = CliRunner().invoke(main, words)
        error = done.exception
    except HungError as hung:
        return "", f"it has not ended: {''.join(traceback.format_exception(hung)[-6:])}"
    finally:
        signal.alarm(0)
        os.umask(umask)
        sys.path[:] = places
        for name in {*sys.modules} - modules:
            if "planted" in name:
                del sys.modules[name]
    if error is None or isinstance(error, SystemExit):
        return done.output, ""
    return done.output, "".join(traceback.format_exception(error)[-6:])


def tell(lines: Path, home: Path, work: Path, marks: Path) -> None:
    """Type the lines one after the other."""
    besides = (work, home / ".cache")
    before = state(home, besides)
    signal.signal(signal.SIGALRM, give_up)
    for folder, words in json.loads(lines.read_text()):
        began = sum(os.times()[:4])
        printed, failed = typed(words, folder)
        after = state(home, besides)
        changed = [path for path in before if before[path] != after.get(path)]
        ran = [mark.name for mark in marks.iterdir()]
        for mark in ran:
            (marks / mark).unlink()
        told = {"words": words, "folder": folder, "printed": printed, "failed": failed, "changed": changed, "ran": ran}
        told |= {"made": sorted(after.keys() - before.keys()), "misused": printed if "Usage: " in printed else ""}
        print(json.dumps({**told, "seconds": sum(os.times()[:4]) - began}), flush=True)
        before = after


if __name__ == "__main__":
    gc.disable()
    tell(*map(Path, sys.argv[1:]))
