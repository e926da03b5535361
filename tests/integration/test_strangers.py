"""Another user of a node tries to get into a trainer: as a rank, through its listeners and through its folder."""

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from listeners import NOBODY, beyond_loopback, listeners, send_rubbish

from mrt_hpc.errors import ExitCode
from mrt_hpc.run.retries import wait_until

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user"),
    pytest.mark.timeout(300),
]
DEADLINE_S = 120.0
STRANGER = """
import os, sys, threading, time
from datetime import timedelta
from torch import distributed
folder, mark, *ports = sys.argv[1:]
for attempt in (lambda: os.listdir(folder), lambda: open(folder + "/store", "r+b"), lambda: open(folder + "/x", "wb")):
    try:
        attempt()
    except PermissionError:
        print("refused", flush=True)
class Evil:
    def __reduce__(self):
        return os.system, ("touch " + mark,)
def join(port):
    store = distributed.TCPStore("127.0.0.1", port, 2, False, timedelta(seconds=1), wait_for_workers=False)
    print("a store", flush=True)
    distributed.init_process_group("gloo", store=store, rank=1, world_size=2, timeout=timedelta(seconds=20))
    distributed.all_gather_object([None, None], Evil())
attempts = []
for port in map(int, ports):
    attempts.append(threading.Thread(target=join, args=(port,), daemon=True))
    attempts[-1].start()
ends = time.monotonic() + 4
for attempt in attempts:
    attempt.join(max(0, ends - time.monotonic()))  # for gloo's listeners do not answer
print("done", flush=True)
os._exit(0)
"""


@dataclass(frozen=True)
class Trainer:
    folder: Path
    nodes: int = 1

    @property
    def address(self) -> Path:
        return self.folder / "address.json"

    def start(self, rank: int, *key: str) -> psutil.Popen:
        """Start a rank, in an environment that sends gloo to another interface than the loopback one."""
        worker = Path(__file__).with_name("rendezvous_worker.py")
        command = [sys.executable, str(worker), str(rank), str(self.address), str(self.nodes), *key]
        path = os.pathsep.join(map(str, [worker.parent, worker.parents[2]]))
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(self.folder), "PYTHONPATH": path}
        if self.nodes == 1 and (other := other_interface()):
            environment["GLOO_SOCKET_IFNAME"] = other
        with (self.folder / f"{rank}.log").open("wb") as log:
            return psutil.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.log")))


@pytest.fixture
def mark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mark") / "made"


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[Any]]]:
    started: list[subprocess.Popen[Any]] = []
    yield started
    for process in started:
        with suppress(psutil.NoSuchProcess):
            process.kill()
        process.wait()


def other_interface() -> str | None:
    found = psutil.net_if_addrs().items()
    return next((name for name, at in found if name != "lo" and any(a.family is socket.AF_INET for a in at)), None)


def attack(trainer: Trainer, mark: Path, ranks: list[psutil.Popen]) -> subprocess.Popen[str]:
    found = listeners(ranks)
    stays = send_rubbish(found)
    folder = json.loads(trainer.address.read_text())["folder"]
    assert stat.S_IMODE(Path(folder).stat().st_mode) == stat.S_IRWXU
    command = [sys.executable, "-c", STRANGER, folder, str(mark), *(str(port) for _, port in found)]
    nobody: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "env": {"OMP_NUM_THREADS": "1"}}
    ended = subprocess.run(command, cwd="/", text=True, capture_output=True, check=True, **nobody)
    assert ended.stdout == "refused\n" * 3 + "done\n"
    return stays


@pytest.mark.parametrize("nodes", [1, 2])
def test_strangers_do_no_harm(nodes: int, tmp_path: Path, mark: Path, processes: list[subprocess.Popen[Any]]) -> None:
    """On one node, or on two, which are both this one."""
    trainer = Trainer(tmp_path, nodes)
    ranks = [trainer.start(rank) for rank in range(2)]
    processes += ranks
    joined = [tmp_path / f"joined-{rank}" for rank in range(2)]
    wait_until(lambda: all(map(Path.exists, joined)), reason=trainer.logs(), deadline_s=DEADLINE_S)
    assert (found := listeners(ranks)), "gloo listens"
    assert beyond_loopback(found) == []
    processes.append(attack(trainer, mark, ranks))
    (tmp_path / "go").touch()
    assert [rank.wait(DEADLINE_S) for rank in ranks] == [0, 0], trainer.logs()
    assert not mark.exists()


def test_no_stranger_is_taken_for_a_rank(tmp_path: Path, mark: Path, processes: list[subprocess.Popen[Any]]) -> None:
    """Of two ranks it is chance which one connects to the other: only the one that listens can meet a stranger."""
    trainer = Trainer(tmp_path)
    (tmp_path / "go").touch()
    processes.append(first := trainer.start(0))
    wait_until(lambda: trainer.address.exists() and listeners([first]), reason="rank 0", deadline_s=DEADLINE_S)
    processes.append(attack(trainer, mark, [first]))
    processes.append(second := trainer.start(1))
    codes = [rank.wait(DEADLINE_S) for rank in (first, second)]
    assert not mark.exists()
    assert codes in ([0, 0], [ExitCode.RETRYABLE] * 2), trainer.logs()
    assert (codes == [0, 0]) != (trainer.logs().count("no rank of this attempt") == 2), trainer.logs()


def test_a_rank_that_does_not_know_the_key_is_refused(tmp_path: Path, processes: list[subprocess.Popen[Any]]) -> None:
    trainer = Trainer(tmp_path)
    (tmp_path / "go").touch()
    processes += [trainer.start(0), trainer.start(1, "a guess")]
    assert [rank.wait(DEADLINE_S) for rank in processes] == [ExitCode.RETRYABLE] * 2, trainer.logs()
    for rank in range(2):
        assert f"wrong proofs of ranks [{1 - rank}]" in (tmp_path / f"{rank}.log").read_text()
