"""An inference task of two nodes, both of them on this machine: what each of them can reach, and the end of everything.

As on two machines, the folder for temporary files has the same path on both nodes and is not the same folder: each rank
has a mount namespace of its own, where the kernel lets this user make one.
"""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from families import assert_gone, family
from listeners import beyond_loopback, listeners, unix_sockets
from ray_rank_worker import task_of
from run_of import bare_run

from mrt_hpc.inference.ray_node import RayNode
from mrt_hpc.inference.server import VllmServer
from mrt_hpc.inference.server_start import ServerSettings
from mrt_hpc.roles.sampling.ray_cluster import join_nodes, release_ranks

WORKER = Path(__file__).with_name("ray_rank_worker.py")
NAMESPACE = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]
HIDE = 'mount -t tmpfs node "$TMPDIR" && exec "$@"'


def start(root: Path, rank: int, scratch: Path) -> subprocess.Popen[str]:
    """A rank of the task as a process, which sees an empty folder of its own at the path of ``scratch``."""
    secrets = bare_run(root).secrets
    secrets.mkdir(exist_ok=True)
    (secrets / "server_key").write_text("key")
    environment = {**os.environ, "TMPDIR": str(scratch)}
    may = subprocess.run([*NAMESPACE, "sh", "-c", HIDE, "rank", "true"], env=environment, check=False).returncode == 0
    own = [*NAMESPACE, "sh", "-c", HIDE, "rank"] if may else []
    command = [*own, sys.executable, str(WORKER), str(root), str(rank)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """The folder for temporary files of each node, with a path that is short enough for Ray's sockets."""
    path = Path(tempfile.mkdtemp(prefix="n-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@contextmanager
def in_scratch(scratch: Path) -> Iterator[None]:
    """This process has its temporary files there, as the first node."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(scratch))
        patch.setattr(tempfile, "tempdir", None)
        yield


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory, scratch: Path) -> Iterator[RayNode]:
    """The first node of a cluster whose first rank is this process, until the last test; then its other rank ends by
    itself."""
    assert "ray" not in sys.modules, "Ray reads some of its variables when it is imported, and they are not set yet"
    root = tmp_path_factory.mktemp("two_nodes")
    other = start(root, 1, scratch)
    task = task_of(root, 0)
    handler = signal.getsignal(signal.SIGTERM)
    with in_scratch(scratch), release_ranks(task), join_nodes(task) as node:
        assert node is not None
        assert signal.getsignal(signal.SIGTERM) is handler, "a request to leave would not reach the task"
        yield node
        processes = [*family(node.pid), *family(other.pid)]
    assert other.wait(60) == 0
    assert_gone(processes)


@pytest.mark.usefixtures("two_nodes")
def test_each_node_has_private_folders_of_its_own() -> None:
    """A process of vLLM on another node takes over the environment of the server where its node has none of its own."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
    from vllm.v1.executor.ray_utils import WORKER_SPECIFIC_ENV_VARS

    def worker(environment: dict[str, str]) -> tuple[list[str], list[bool]]:
        import zmq
        from vllm.utils.network_utils import get_open_zmq_ipc_path

        for name, value in environment.items():
            os.environ.setdefault(name, value)
        with zmq.Context() as context, context.socket(zmq.PUB) as queue:
            queue.bind(get_open_zmq_ipc_path())
        folders = [os.environ[name] for name in ("VLLM_RPC_BASE_PATH", "TMPDIR")]
        return folders, [Path(folder).is_dir() for folder in folders]

    with closing(VllmServer(ServerSettings(Path(), 8, over_ray=True), Path())) as server:
        environment = {k: v for k, v in server.command.environment().items() if k not in WORKER_SPECIFIC_ENV_VARS}
        on = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in ray.nodes()]
        started = [ray.remote(worker).options(num_cpus=0, scheduling_strategy=one).remote(environment) for one in on]
        folders, there = zip(*ray.get(started, timeout=240), strict=True)
    assert len(folders) == 2 and all(all(each) for each in there)
    assert not {*folders[0]} & {*folders[1]}
    assert environment["TMPDIR"] not in {*folders[0], *folders[1]}


def test_no_port_is_open_to_other_machines(two_nodes: RayNode) -> None:
    """Between processes of one machine; a node of its own listens at its address in the cluster."""
    found = listeners(family(two_nodes.pid))
    assert found and beyond_loopback(found) == []


def test_no_other_user_reaches_the_sockets(two_nodes: RayNode) -> None:
    sockets = unix_sockets([p for p in family(two_nodes.pid) if p.name() in ("raylet", "gcs_server")])
    assert sockets
    for socket in sockets:
        assert any(stat.S_IMODE(folder.stat().st_mode) == 0o700 for folder in socket.parents), socket


def test_who_has_not_the_token_cannot_join(two_nodes: RayNode) -> None:
    place = two_nodes.place
    program = f"import ray; ray.init({place.head!r}); print(ray.nodes())"
    environment = {**os.environ, **place.environment(), "RAY_AUTH_TOKEN": "0" * 64}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode != 0
    assert "token" in done.stderr.lower()


def test_nothing_outlives_a_task_that_is_killed(tmp_path: Path, scratch: Path) -> None:
    """The back end ends the other rank with a signal; it waits no longer than its deadline for rank 0."""
    first, second = (start(tmp_path, rank, scratch) for rank in (0, 1))
    assert first.stdout is not None
    processes = [*family(int(first.stdout.readline())), *family(second.pid)]
    first.kill()
    second.terminate()
    assert_gone(processes)
    assert (first.wait(60), second.wait(60)) == (-signal.SIGKILL, 128 + signal.SIGTERM)


def test_a_rank_whose_node_is_killed_fails(tmp_path: Path, scratch: Path) -> None:
    """The back end then ends the first rank, and runs the task again."""
    first, second = (start(tmp_path, rank, scratch) for rank in (0, 1))
    assert first.stdout is not None
    first.stdout.readline()
    raylet = next(p for p in family(second.pid) if p.name() == "raylet")
    processes = [*family(first.pid), *family(second.pid)]
    raylet.kill()
    assert second.wait(60) == 1
    first.terminate()
    assert first.wait(60) == 128 + signal.SIGTERM
    assert_gone(processes)
