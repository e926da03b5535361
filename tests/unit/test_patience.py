"""A full disk is waited out, a fleeting error is tried again, all else is raised at once."""

from __future__ import annotations

import errno
import os
import subprocess
from functools import partial
from typing import TYPE_CHECKING

import pytest

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.run.atomic import write_bytes
from mrt_hpc.run.retries import (
    FULL_DISK,
    NO_INODES,
    RetryPolicy,
    Shortage,
    error_number,
    list_directory,
    retrying,
    shortage,
)
from mrt_hpc.run.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

QUICK = RetryPolicy(full_limit_s=30, full_pause_s=0.001, fleeting_tries=4, fleeting_pause_s=0.0001)


def failing(times: int, number: int) -> tuple[Callable[[], str], list[int]]:
    """An action that fails so often and then works, and the list of its calls."""
    calls: list[int] = []

    def action() -> str:
        calls.append(1)
        if len(calls) <= times:
            raise OSError(number, os.strerror(number))
        return "done"

    return action, calls


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_waited_out_and_said(number: int, caplog: pytest.LogCaptureFixture) -> None:
    action, calls = failing(50, number)
    assert retrying(action, "a shard", QUICK) == "done"
    assert len(calls) == 51
    assert "PAUSED: the disk is full" in caplog.text
    assert "continues with: a shard" in caplog.text


@pytest.mark.parametrize(("room", "lacking"), [("nr_inodes=4", NO_INODES), ("size=16k", FULL_DISK)])
def test_full_inodes_are_told_from_a_full_disk(tmp_path: Path, room: str, lacking: Shortage) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", room, "tmpfs", str(tmp_path)], check=False).returncode:
        pytest.skip("mounting a small filesystem needs root")
    try:
        with pytest.raises(OSError, match="No space left") as full:
            for number in range(9):
                write_bytes(tmp_path / str(number), bytes(3000))
        assert shortage(full.value) is lacking
        with pytest.raises(UserError) as refused:
            retrying(partial(write_bytes, tmp_path / "new", bytes(20000)), "a shard", RetryPolicy(full_limit_s=0.0))
        assert lacking.shown_by in str(refused.value.advice)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_disk_that_stays_full_gives_the_nodes_back() -> None:
    action, _ = failing(10**6, errno.ENOSPC)
    with pytest.raises(UserError, match="stayed full") as caught:
        retrying(action, "a shard", RetryPolicy(full_limit_s=0.02, full_pause_s=0.001))
    assert caught.value.exit_code is ExitCode.GIVE_BACK
    assert "make room" in str(caught.value.advice)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_fleeting_error_is_tried_again_within_a_bound(number: int) -> None:
    action, calls = failing(3, number)
    assert retrying(action, "x", QUICK) == "done"
    action, calls = failing(100, number)
    with pytest.raises(OSError, match=os.strerror(number)):
        retrying(action, "x", QUICK)
    assert len(calls) == QUICK.fleeting_tries


def test_other_errors_are_raised_at_once() -> None:
    action, calls = failing(1, errno.EACCES)
    with pytest.raises(PermissionError):
        retrying(action, "x", QUICK)
    assert len(calls) == 1
    with pytest.raises(ZeroDivisionError):
        retrying(lambda: 1 / 0, "x", QUICK)


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (OSError(errno.ENOSPC, "full"), errno.ENOSPC),
        (RuntimeError("I/O error: No space left on device (os error 28)"), errno.ENOSPC),
        (RuntimeError("[enforce fail] write failed: No space left on device"), errno.ENOSPC),
        (OSError("[Errno 122] Disk quota exceeded"), errno.EDQUOT),
        (RuntimeError("shape mismatch"), None),
    ],
)
def test_the_number_is_found_also_where_a_library_has_put_it_into_text(error: Exception, number: int | None) -> None:
    assert error_number(error) == number


def test_a_listing_is_tried_again_and_never_taken_for_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.json", "a.json", "c.txt"):
        (tmp_path / name).touch()
    listed, listdir, scandir = [], os.listdir, os.scandir

    def failing_once(real: Callable[[Path], object]) -> Callable[[Path], object]:
        def answer(path: Path) -> object:
            listed.append(path)
            if len(listed) == 1:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            return real(path)

        return answer

    monkeypatch.setattr(os, "listdir", failing_once(listdir))
    monkeypatch.setattr(os, "scandir", failing_once(scandir))
    assert [p.name for p in list_directory(tmp_path, "*.json")] == ["a.json", "b.json"]
    assert len(listed) == 2
    assert list_directory(tmp_path / "absent") == []


def test_a_wait_that_ends_tells_its_place_and_what_to_type() -> None:
    with pytest.raises(UserError, match="gave up waiting for rank 1 after 0 s") as told:
        wait_until(lambda: None, reason="rank 1", deadline_s=0.0, where="its log", advice="read it")
    assert (told.value.where, told.value.advice) == ("its log", "read it")
    assert told.value.exit_code is ExitCode.RETRYABLE
