"""A full disk is waited out, a fleeting error is tried again, all else is raised at once; and for how long a task waits
for its peers.
"""

from __future__ import annotations

import errno
import os
import subprocess
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest
from run_of import job_of, say

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.sections import Resilience
from mrt_hpc.roles.task import peers as peers_module
from mrt_hpc.roles.task.peers import Peers, PeersFailedError, PeerStatus, PeerWait
from mrt_hpc.run.atomic import write_bytes, write_json
from mrt_hpc.run.heartbeats import Observer
from mrt_hpc.run.layout import RunLayout
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
from mrt_hpc.run.task_state import TaskState
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
def test_a_full_disk_is_waited_out_within_a_limit(number: int, caplog: pytest.LogCaptureFixture) -> None:
    action, calls = failing(50, number)
    assert retrying(action, "a shard", QUICK) == "done"
    assert len(calls) == 51
    assert "PAUSED: the disk is full" in caplog.text
    assert "continues with: a shard" in caplog.text
    action, _ = failing(10**6, number)
    with pytest.raises(UserError) as caught:
        retrying(action, "a shard", RetryPolicy(full_limit_s=0.02, full_pause_s=0.001))
    assert caught.value.exit_code is ExitCode.GIVE_BACK


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


@pytest.mark.parametrize(
    ("number", "tries"), [(errno.EIO, QUICK.fleeting_tries), (errno.ESTALE, QUICK.fleeting_tries), (errno.EACCES, 1)]
)
def test_a_fleeting_error_is_tried_again_within_a_bound_and_no_other_is(number: int, tries: int) -> None:
    action, _ = failing(tries - 1, number)
    assert retrying(action, "x", QUICK) == "done"
    action, calls = failing(100, number)
    with pytest.raises(OSError, match=os.strerror(number)):
        retrying(action, "x", QUICK)
    assert len(calls) == tries
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
    listed: list[Path] = []

    def failing_once(real: Callable[[Path], object], path: Path) -> object:
        listed.append(path)
        if len(listed) == 1:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(path)

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, partial(failing_once, getattr(os, name)))
    assert [p.name for p in list_directory(tmp_path, "*.json")] == ["a.json", "b.json"]
    assert len(listed) == 2
    assert list_directory(tmp_path / "absent") == []


def test_a_wait_that_ends_tells_its_place_and_what_to_type() -> None:
    with pytest.raises(UserError, match="rank 1") as told:
        wait_until(lambda: None, reason="rank 1", deadline_s=0.0, where="its log", advice="read it")
    assert (told.value.where, told.value.advice) == ("its log", "read it")
    assert told.value.exit_code is ExitCode.RETRYABLE


# -- peers


@pytest.fixture
def peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Peers:
    """Two trainers, which are looked at in each check."""
    monkeypatch.setattr(peers_module, "LOOK_EVERY_S", 0.0)
    return Peers(RunLayout(tmp_path), (job_of("trainer", Role.TRAINER, 2),), Observer(limit_s=1000))


def are(peers: Peers, *states: TaskState) -> None:
    for index, state in enumerate(states):
        say(peers.layout, "trainer", state, index)


def test_lives(peers: Peers) -> None:
    assert set(peers.lives().values()) == {PeerStatus.QUEUED}
    are(peers, TaskState.RUNNING, TaskState.FAILED)
    assert list(peers.lives().values()) == [PeerStatus.RUNNING, PeerStatus.FAILED]
    heart = peers.layout.heart("trainer", 0)
    write_json(heart, {"attempt": "earlier", "beat": 1})
    assert peers.lives()["trainer", 0] is PeerStatus.LOST
    heart.unlink()
    assert peers.lives()["trainer", 0] is PeerStatus.LOST
    for state, status in ((TaskState.DONE, PeerStatus.DONE), (TaskState.RETRYING, PeerStatus.QUEUED)):
        are(peers, state, TaskState.GAVE_BACK)
        assert list(peers.lives().values()) == [status, PeerStatus.QUEUED]


def waits(wait: PeerWait) -> None:
    """Look for longer than the wait of these tests may last."""
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        wait.check()


def gives_up(wait: PeerWait, exit_code: ExitCode) -> UserError:
    """Look until the wait gives up."""
    end = time.monotonic() + 20
    with pytest.raises(UserError, match="trainer") as caught:
        while time.monotonic() < end:
            wait.check()
    assert caught.value.exit_code is exit_code
    return caught.value


def test_a_peer_at_work_is_waited_for_until_it_does_not_work_any_more(peers: Peers) -> None:
    are(peers, TaskState.RUNNING, TaskState.WAITING)
    wait = PeerWait(peers, Resilience(wait_limit_minutes=0.001), "rollouts")
    waits(wait)
    are(peers, TaskState.WAITING, TaskState.WAITING)
    error = gives_up(wait, ExitCode.GIVE_BACK)
    assert "has not run" in error.what


def test_a_peer_that_works_and_brings_nothing_gives_the_nodes_back(peers: Peers) -> None:
    are(peers, TaskState.RUNNING)
    error = gives_up(PeerWait(peers, Resilience(stall_limit_minutes=0.001), "rollouts"), ExitCode.GIVE_BACK)
    assert "rollouts" in error.what


def test_all_failed_ends_the_wait_at_once_and_one_that_may_come_back_does_not(peers: Peers) -> None:
    are(peers, TaskState.FAILED, TaskState.RETRYING)
    wait = PeerWait(peers, Resilience(), "rollouts")
    waits(wait)
    are(peers, TaskState.FAILED, TaskState.FAILED)
    assert isinstance(gives_up(wait, ExitCode.FATAL), PeersFailedError)


def test_all_ended_without_a_result_is_an_error_after_a_while(peers: Peers) -> None:
    are(peers, TaskState.DONE, TaskState.FAILED)
    gives_up(PeerWait(peers, Resilience(heartbeat_limit_s=0.05), "rollouts"), ExitCode.RETRYABLE)
