"""Turns of two processes on the GPUs of one task."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from functools import partial
from typing import TYPE_CHECKING

import pytest

from mrt_hpc.errors import UserError
from mrt_hpc.roles.sampling.weights import NodeFolder
from mrt_hpc.run.turns import Turn, remove_abandoned
from mrt_hpc.run.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

HOLDER = "import sys, time; from pathlib import Path; from mrt_hpc.run.turns import Turn; \
turn = Turn(Path(sys.argv[1])); print(turn.take(), flush=True); sys.stdin.read()"


def test_one_of_two_has_the_turn(tmp_path: Path) -> None:
    trainer, inference = Turn(tmp_path / "turn"), Turn(tmp_path / "turn")
    assert inference.take()
    assert inference.take(), "who has it keeps it"
    assert not trainer.take()
    trainer.pass_on()
    assert not trainer.take(), "only its holder passes it on"
    inference.pass_on()
    assert not inference.is_mine
    assert trainer.take()
    assert not inference.take()


def test_a_task_alone_always_has_the_turn() -> None:
    turn = Turn()
    turn.pass_on()
    assert turn.take()
    assert turn.is_mine
    assert not turn.is_shared


def test_the_turn_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path / "turn")], stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"True\n"
        turn = Turn(tmp_path / "turn")
        assert not turn.take()
        holder.send_signal(signal.SIGKILL)
        wait_until(turn.take, reason="the turn of a process that was killed", deadline_s=30)


def test_a_process_that_the_holder_starts_does_not_keep_the_turn(tmp_path: Path) -> None:
    turn, other = Turn(tmp_path / "turn"), Turn(tmp_path / "turn")
    assert turn.take()
    with subprocess.Popen(["sleep", "60"], close_fds=False) as child:
        turn.pass_on()
        assert other.take()
        child.kill()


def test_what_a_killed_process_has_left_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, held = tmp_path / "left", Turn(tmp_path / "held")
    left.touch()
    assert held.take()
    other_kind = tmp_path / "link"
    other_kind.symlink_to(left)
    remove_abandoned([left, tmp_path / "held", other_kind, tmp_path / "gone"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["held", "link"]
    held.pass_on()
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    remove_abandoned([tmp_path / "held"])
    assert (tmp_path / "held").exists(), "it belongs to another user"
    monkeypatch.undo()
    remove_abandoned([tmp_path / "held"])
    assert not (tmp_path / "held").exists()


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(UserError, match="belongs to another user"):
        Turn(tmp_path / "turn").take()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, 524])
def test_a_filesystem_without_locks_is_named(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "left").touch()
    for attempt in (Turn(tmp_path / "turn").take, partial(remove_abandoned, [tmp_path / "left"]), NodeFolder.make):
        with pytest.raises(UserError) as refused:
            attempt()
        assert "scratch" in str(refused.value.advice)
        assert str(tmp_path) in str(refused.value.where)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["left", "turn"]
