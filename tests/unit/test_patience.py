"""A full disk is waited out, a fleeting error is tried again, and a task waits for its peers for so long."""

import errno
import os
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest
from commands import refusal
from run_of import bare_run, job_of, say

from mrt_hpc.errors import ExitCode
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.sections import Resilience
from mrt_hpc.roles.task import peers as peers_module
from mrt_hpc.roles.task.peers import Peers, PeersFailedError, PeerStatus, PeerWait
from mrt_hpc.run import retries
from mrt_hpc.run.atomic import write_bytes, write_json
from mrt_hpc.run.leases import Observer
from mrt_hpc.run.retries import RetryPolicy, Shortage, error_number, list_directory, retry_action, wait_until
from mrt_hpc.run.task_state import TaskState

QUICK = RetryPolicy(full_limit_s=30, full_pause_s=0.001, fleeting_tries=4, fleeting_pause_s=0.0001)


def failing(times: int, number: int) -> Mock:
    return Mock(side_effect=[*[OSError(number, os.strerror(number))] * times, "done"])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_waited_out_within_a_limit(number: int, caplog: pytest.LogCaptureFixture) -> None:
    action = failing(50, number)
    assert retry_action(action, "a shard", QUICK) == "done"
    assert action.call_count == 51
    assert all(words in caplog.text for words in ("PAUSED: the disk is full, or no inodes", "continues with: a shard"))
    short = RetryPolicy(full_limit_s=0.02, full_pause_s=0.001)
    assert refusal(retry_action, failing(10**4, number), "a shard", short).exit_code is ExitCode.GIVE_BACK


@pytest.mark.parametrize(("room", "lacking"), [("nr_inodes=4", retries.NO_INODES), ("size=16k", retries.FULL_DISK)])
def test_full_inodes_are_told_from_a_full_disk(tmp_path: Path, room: str, lacking: Shortage) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", room, "tmpfs", str(tmp_path)], check=False).returncode:
        pytest.skip("mounting a small filesystem needs root")
    try:
        with pytest.raises(OSError, match="No space left") as full:
            for number in range(9):
                write_bytes(tmp_path / str(number), bytes(3000))
        assert retries.shortage(full.value) is lacking
        write = partial(write_bytes, tmp_path / "new", bytes(20000))
        assert lacking.shown_by in str(refusal(retry_action, write, "a shard", RetryPolicy(full_limit_s=0.0)).advice)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize(("number", "tries"), [
    (errno.EIO, 4), (errno.ESTALE, 4), (errno.EKEYEXPIRED, 4), (errno.ENOTCONN, 4), (errno.EACCES, 1)
])  # fmt: skip
def test_a_fleeting_error_is_tried_again_within_a_bound_and_no_other_is(number: int, tries: int) -> None:
    assert retry_action(failing(tries - 1, number), "x", QUICK) == "done"
    action = failing(100, number)
    with pytest.raises(OSError, match=os.strerror(number)):
        retry_action(action, "x", QUICK)
    assert action.call_count == tries
    with pytest.raises(ZeroDivisionError):
        retry_action(lambda: 1 / 0, "x", QUICK)


def test_the_number_is_found_also_where_a_library_has_put_it_into_text() -> None:
    for error, number in (
        (OSError(errno.ENOSPC, "full"), errno.ENOSPC),
        (RuntimeError("I/O error: No space left on device (os error 28)"), errno.ENOSPC),
        (RuntimeError("[enforce fail] write failed: No space left on device"), errno.ENOSPC),
        (OSError("[Errno 122] Disk quota exceeded"), errno.EDQUOT),
        (RuntimeError("shape mismatch"), None),
    ):
        assert error_number(error) == number


def test_a_listing_is_tried_again_and_never_taken_for_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.json", "a.json", "c.txt"):
        (tmp_path / name).touch()
    either = ("listdir", "scandir")  # Path.iterdir calls one of them, by the version of Python
    outcomes = [OSError(errno.ESTALE, "stale"), DEFAULT, DEFAULT]
    failing_once = {name: Mock(wraps=getattr(os, name), side_effect=outcomes) for name in either}
    for name, listing in failing_once.items():
        monkeypatch.setattr(os, name, listing)
    assert [p.name for p in list_directory(tmp_path, "*.json")] == ["a.json", "b.json"]
    assert max(listing.call_count for listing in failing_once.values()) == 2, "the error was met"
    assert list_directory(tmp_path / "absent") == []


@pytest.fixture
def peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Peers:
    monkeypatch.setattr(peers_module, "LOOK_EVERY_S", 0.0)
    return Peers(bare_run(tmp_path), (job_of("trainer", Role.TRAINER, 2),), Observer(limit_s=1000))


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


def look(wait: PeerWait, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        wait.check()


def test_a_peer_that_works_or_may_come_back_is_waited_for(peers: Peers) -> None:
    are(peers, TaskState.RUNNING, TaskState.WAITING)
    look(PeerWait(peers, Resilience(wait_limit_minutes=0.001), "rollouts"), 0.1)
    are(peers, TaskState.FAILED, TaskState.RETRYING)
    look(PeerWait(peers, Resilience(), "rollouts"), 0.1)
    ended = refusal(lambda: wait_until(lambda: None, reason="rank 1", deadline_s=0.0, where="its log"))
    assert (ended.where, ended.exit_code) == ("its log", ExitCode.RETRYABLE)


@pytest.mark.parametrize(("states", "limit", "exit_code", "why"), [
    ([TaskState.WAITING, TaskState.WAITING], {"wait_limit_minutes": 0.001}, ExitCode.GIVE_BACK, "has not run"),
    ([TaskState.RUNNING], {"stall_limit_minutes": 0.001}, ExitCode.GIVE_BACK, "rollouts"),
    ([TaskState.FAILED, TaskState.FAILED], {}, ExitCode.FATAL, "rollouts"),
    ([TaskState.DONE, TaskState.FAILED], {"heartbeat_limit_s": 0.05}, ExitCode.RETRYABLE, "rollouts"),
])  # fmt: skip
def test_a_wait_for_nothing_ends(peers: Peers, states: Any, limit: Any, exit_code: ExitCode, why: str) -> None:
    are(peers, *states)
    ended = refusal(look, PeerWait(peers, Resilience(**limit), "rollouts"), 20.0)
    assert isinstance(ended, PeersFailedError) is (exit_code is ExitCode.FATAL)
    assert (ended.exit_code, "trainer" in ended.what, why in ended.what) == (exit_code, True, True)
