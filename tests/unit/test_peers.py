"""How a task sees its peers, and when it gives up waiting for them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.plan.jobs import Job, JobResources, Role
from mrt_hpc.recipe.sections import Resilience
from mrt_hpc.roles.task import peers as peers_module
from mrt_hpc.roles.task.peers import Peers, PeerStatus, PeerWait
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.heartbeats import Observer
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task

if TYPE_CHECKING:
    from pathlib import Path

ONE = JobResources(
    nodes=1, ranks_per_node=1, gpus_per_rank=0, cpus_per_rank=1, memory_gib_per_node=1.0, time_limit_minutes=1
)
JOB = Job(name="trainer", role=Role.TRAINER, tasks=2, resources=ONE)
SECOND_MINUTES = 1 / 60


@pytest.fixture(autouse=True)
def look_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "LOOK_EVERY_S", 0.0)


@pytest.fixture
def peers(tmp_path: Path) -> Peers:
    return Peers(RunLayout(tmp_path), (JOB,), Observer(limit_s=1000))


def say(peers: Peers, *states: TaskState, beating: bool = False) -> None:
    for index, state in enumerate(states):
        write_task(peers.layout, "trainer", index, TaskRecord(state, attempt="a"))
        if beating:
            write_json(peers.layout.heart("trainer", index), {"attempt": "a", "beat": 1})


def test_lives(peers: Peers) -> None:
    assert set(peers.lives().values()) == {PeerStatus.QUEUED}
    say(peers, TaskState.RUNNING, TaskState.RETRYING)
    assert list(peers.lives().values()) == [PeerStatus.LOST, PeerStatus.QUEUED]
    write_json(peers.layout.heart("trainer", 0), {"attempt": "earlier", "beat": 1})
    assert peers.lives()["trainer", 0] is PeerStatus.LOST
    say(peers, TaskState.RUNNING, TaskState.FAILED, beating=True)
    assert list(peers.lives().values()) == [PeerStatus.RUNNING, PeerStatus.FAILED]
    say(peers, TaskState.DONE, TaskState.GAVE_BACK)
    assert list(peers.lives().values()) == [PeerStatus.DONE, PeerStatus.QUEUED]


def give_up(wait: PeerWait) -> UserError:
    """Look until the wait gives up."""
    end = time.monotonic() + 20
    with pytest.raises(UserError) as caught:
        while time.monotonic() < end:
            wait.check()
    return caught.value


def test_no_peer_at_work_for_the_limit_gives_the_nodes_back(peers: Peers) -> None:
    limits = Resilience(wait_limit_minutes=0.1 * SECOND_MINUTES)
    error = give_up(PeerWait(peers, limits, "rollouts"))
    assert error.exit_code is ExitCode.GIVE_BACK
    assert "trainer has not run" in error.what


def test_a_peer_at_work_is_waited_for(peers: Peers) -> None:
    say(peers, TaskState.RUNNING, TaskState.WAITING, beating=True)
    wait = PeerWait(peers, Resilience(wait_limit_minutes=0.001), "rollouts")
    for _ in range(100):
        wait.check()
    say(peers, TaskState.WAITING, TaskState.WAITING)
    assert give_up(wait).exit_code is ExitCode.GIVE_BACK, "as soon as it does not work any more"


def test_a_peer_that_works_and_brings_nothing_gives_the_nodes_back(peers: Peers) -> None:
    say(peers, TaskState.RUNNING, beating=True)
    error = give_up(PeerWait(peers, Resilience(stall_limit_minutes=0.1 * SECOND_MINUTES), "rollouts"))
    assert error.exit_code is ExitCode.GIVE_BACK
    assert "has not produced rollouts" in error.what


def test_all_failed_ends_the_wait_at_once(peers: Peers) -> None:
    say(peers, TaskState.FAILED, TaskState.FAILED)
    error = give_up(PeerWait(peers, Resilience(), "rollouts"))
    assert error.exit_code is ExitCode.FATAL
    assert "has failed" in error.what


def test_one_that_may_come_back_is_waited_for(peers: Peers) -> None:
    say(peers, TaskState.FAILED, TaskState.RETRYING)
    wait = PeerWait(peers, Resilience(), "rollouts")
    wait.check()
    say(peers, TaskState.FAILED, TaskState.FAILED)
    assert "has failed" in give_up(wait).what


def test_all_ended_without_a_result_is_an_error_after_a_while(peers: Peers) -> None:
    say(peers, TaskState.DONE, TaskState.FAILED)
    error = give_up(PeerWait(peers, Resilience(heartbeat_limit_s=0.05), "rollouts"))
    assert error.exit_code is ExitCode.RETRYABLE
    assert "has ended" in error.what
