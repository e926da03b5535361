"""Runs and files of another user, and commands that an ordinary user types. Only root can make them."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from basics import ROOT

ANOTHER = 65534  # the id of another user
FIRST, SECOND = 20001, 20002
"""The ids of two ordinary users, who have no names."""
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a directory away")


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder that all users of this machine can enter."""
    path = Path(tempfile.mkdtemp(prefix="shared-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def give_away(run: Path, owner: int = ANOTHER) -> None:
    """Make a folder and all below it another user's, who lets everybody read it; what links lead to stays as it is."""
    for path in (run, *run.rglob("*")):
        os.lchown(path, owner, owner)
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)


def as_user(user: int, home: Path, *words: object, **environment: str) -> subprocess.Popen[str]:
    """A process of Python of an ordinary user, with these words."""
    rights = [shutil.which("setpriv") or "setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    own = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "COLUMNS": "200", **environment}
    command = [*rights, sys.executable, "-P", *map(str, words)]
    return subprocess.Popen(command, env=own, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
