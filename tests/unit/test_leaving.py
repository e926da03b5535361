"""A task that is told to leave in the midst of its requests: all that it has started ends, soon and without noise."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from commands import python
from families import assert_gone

from mrt_hpc.errors import UserError
from mrt_hpc.inference.server import VllmServer
from mrt_hpc.inference.server_start import ServerProcess, ServerSettings
from mrt_hpc.roles.task.shutdown import Interrupted, RequeueRequested, ShutdownRequest, run_until_asked_to_leave

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
try:
    shutdown.run_until_asked_to_leave(task.shutdown, sample())
except shutdown.RequeueRequested:
    print("left")
"""


def test_a_task_that_gives_its_nodes_back_leaves_no_pending_tasks_behind() -> None:
    done = python("-c", BUSY)
    assert (done.stderr, [line.split()[0] for line in done.stdout.splitlines()]) == ("", ["recorded", "left"])


def test_a_server_that_does_not_heed_the_signal_is_gone_soon_with_its_children(tmp_path: Path) -> None:
    server = VllmServer(ServerSettings(tmp_path, 8), tmp_path / "log")
    process = subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE, start_new_session=True)
    server._process = ServerProcess(process)
    assert process.stdout is not None
    with process.stdout:
        child = psutil.Process(int(process.stdout.readline()))
    began = time.monotonic()
    server.close()
    assert time.monotonic() - began < 15.0, "a task may have two servers"
    assert not server.socket.parent.exists()
    assert_gone([child])
    with pytest.raises(UserError):  # by a thread that waited for it
        server.restart_if_dead()
    assert server.starts == 0


def test_a_request_that_comes_when_all_is_done_is_heeded_too() -> None:
    async def done(request: ShutdownRequest) -> None:
        assert not request.interrupt(RequeueRequested("why"))

    with pytest.raises(RequeueRequested):
        run_until_asked_to_leave(request := ShutdownRequest(), done(request))
    assert not request.interrupt(Interrupted(128 + signal.SIGTERM)), "it leaves already"
