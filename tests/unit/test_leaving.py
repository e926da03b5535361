"""A task that is told to leave in the midst of its requests: all that it has started ends, soon and without noise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mrt_hpc.errors import UserError
from mrt_hpc.inference.server import VllmServer
from mrt_hpc.inference.server_start import ServerProcess, ServerSettings
from mrt_hpc.roles.task.shutdown import Interrupted, RequeueRequested, ShutdownRequest, run_until_told
from mrt_hpc.run.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

SOON_S = 15.0
DEAF = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "300"])
print(child.pid, flush=True)
signal.pause()
"""
BUSY = """
import asyncio, logging, os, signal, sys
from types import SimpleNamespace
from mrt_hpc.inference.client import SamplingSettings
from mrt_hpc.inference.sampler import RolloutPlan, RolloutSampler
from mrt_hpc.inference.traces import PromptedGroup, Start
from mrt_hpc.attempt.entry import heed_signals
from mrt_hpc.roles.task import shutdown
from mrt_hpc.run.records import Problem

class NeverDone:
    def __init__(self):
        self.asked = 0
    async def stream(self, requests):
        self.asked += 1
        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(asyncio.sleep(300))
            if self.asked == 4:
                os.kill(os.getpid(), signal.SIGUSR2)
        yield None

async def sample():
    start = Start([1], 1, SamplingSettings(max_tokens=4))
    groups = [PromptedGroup(Problem(str(n), "", ""), [1], (start,)) for n in range(4)]
    sampler = RolloutSampler(NeverDone(), None, RolloutPlan(0, 0, 1))
    async with asyncio.TaskGroup() as finishing:
        finishing.create_task(asyncio.sleep(300))
        async for _ in sampler.sample(groups):
            pass

task = SimpleNamespace(shutdown=shutdown.ShutdownRequest(), seconds_left=1000.0)
task.shutdown.record = lambda ending: print("recorded", ending.why)
heed_signals(task)
run = getattr(shutdown, "run_until_told", lambda _, work: asyncio.run(work))
try:
    run(task.shutdown, sample())
except shutdown.RequeueRequested:
    print("left")
"""


def test_a_task_that_gives_its_nodes_back_leaves_no_pending_tasks_behind() -> None:
    done = subprocess.run([sys.executable, "-c", BUSY], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    first, second = done.stdout.splitlines()
    assert first.startswith("recorded gave the nodes back")
    assert second == "left"


@pytest.fixture
def deaf_server(tmp_path: Path) -> Iterator[tuple[VllmServer, int]]:
    """A server that does not heed SIGTERM, and has a child."""
    server = VllmServer(ServerSettings(tmp_path, 8), tmp_path / "log")
    process = subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    with process.stdout:
        child = int(process.stdout.readline())
    server._process = ServerProcess(process)
    yield server, child
    server.close()


def test_a_server_that_does_not_heed_the_signal_is_gone_soon_with_its_children(
    deaf_server: tuple[VllmServer, int],
) -> None:
    server, child = deaf_server
    began = time.monotonic()
    server.close()
    assert time.monotonic() - began < SOON_S, "a task may have two servers"
    assert not server.socket.parent.exists()
    wait_until(lambda: has_ended(child) or None, reason="the child's end", deadline_s=20)


def has_ended(process: int) -> bool:
    """Whether nothing of it runs any more; who inherits it may take a while to fetch its exit status."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return "State:\tZ" in status


def test_a_closed_server_is_not_started_again_by_a_thread_that_waited_for_it(
    deaf_server: tuple[VllmServer, int],
) -> None:
    server, _ = deaf_server
    server.close()
    with pytest.raises(UserError, match="was closed"):
        server.restart_if_dead()
    assert server.starts == 0


async def _told(request: ShutdownRequest, ending: Interrupted) -> str:
    assert not request.tell(ending)
    return "done all the same"


def test_a_request_that_comes_when_all_is_done_is_heeded_too() -> None:
    with pytest.raises(RequeueRequested):
        run_until_told(request := ShutdownRequest(), _told(request, RequeueRequested("why")))
    assert not request.tell(Interrupted(128 + signal.SIGTERM)), "it leaves already"


def test_work_that_is_not_disturbed_gives_its_result() -> None:
    async def work() -> int:
        return os.getpid()

    assert run_until_told(ShutdownRequest(), work()) == os.getpid()
