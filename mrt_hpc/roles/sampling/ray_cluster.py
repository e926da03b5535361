"""The Ray cluster of an inference task that has several nodes, one rank on each.

Rank 0 is the task: it starts the first Ray node and samples. The other ranks lend their nodes: each runs a Ray node
until rank 0 is done. They find each other by files of the attempt in the run's ``rendezvous`` folder. If a rank ends
before, the back end ends all ranks, and the task is run again.
"""

import hashlib
import importlib.util
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.inference.ray_node import LOOPBACK, RayNode, RayPlace, address_towards, answers, free_port
from mrt_hpc.roles.task.context import Task
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.retries import wait_until

LONGEST_LOOK_S = 0.5
VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The variable that says which GPUs a process may use."""


@dataclass(frozen=True)
class Meeting:
    """The files by which the ranks of one attempt find each other."""

    task: Task

    def here(self, rank: int) -> Path:
        """Written by a rank when it has started: the name of its host."""
        return self._file(f"rank{rank}")

    @property
    def head(self) -> Path:
        """Written by rank 0: where its Ray node takes connections."""
        return self._file("head")

    @property
    def over(self) -> Path:
        """Written by rank 0 when it needs the other nodes no more."""
        return self._file("over")

    def say(self, path: Path, value: dict[str, str]) -> None:
        """Write one of the files."""
        self.task.retrying(lambda: write_json(path, value), f"{path}")

    def read(self, path: Path) -> dict[str, str]:
        """What one of the files says."""
        said: dict[str, str] = json.loads(self.task.retrying(path.read_text, f"{path}"))
        return said

    def _file(self, what: str) -> Path:
        return self.task.layout.rendezvous / f"{self.task.log_stem}.ray.{what}.json"


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs."""

    node: RayNode
    """The one of this rank."""
    nodes: tuple[str, ...]
    """The ids of all nodes, as Ray names them."""


def spans_nodes(task: Task) -> bool:
    """Whether a task that samples has a Ray cluster. The ranks of a colocated task are those of its trainer, and on one
    node.
    """
    return task.job.resources.nodes > 1


@contextmanager
def for_all_ranks(task: Task) -> Iterator[None]:
    """Surrounds a block; when it ends, in whichever way, the other ranks may end, too."""
    try:
        yield
    finally:
        if spans_nodes(task):
            meeting = Meeting(task)
            meeting.say(meeting.over, {})


def lend_node(task: Task) -> None:
    """Run a Ray node for rank 0, until rank 0 is done; every other rank calls this.

    Raises:
        UserError: the node has ended, and so has what rank 0 did on it.
        Interrupted: the task was asked to leave.
    """
    meeting = Meeting(task)
    with task.shutdown.at_safe_points():
        meeting.say(meeting.here(task.rank), {"host": socket.gethostname()})
        wait_until(
            lambda: meeting.head.exists() or meeting.over.exists() or task.shutdown.given,
            reason="the first rank",
            deadline_s=inf,  # the back end ends this rank with the first one
        )
        if meeting.head.exists() and not meeting.over.exists():
            head = meeting.read(meeting.head)["address"]
            with RayNode(_place(task, head), task.log(f"ray-{task.rank}"), task.job.resources.cpus_per_rank) as node:
                _stay(task, node, meeting)
        task.shutdown.leave_if_given()


def _stay(task: Task, node: RayNode, meeting: Meeting) -> None:
    """Wait for the end of rank 0. A rank that is asked to leave gives rank 0, which is asked as well, time to end. A
    rank 0 that was killed says nothing any more, and its node has ended.
    """
    wait_until(
        lambda: meeting.over.exists() or (task.shutdown.given and not answers(node.place.head)),
        reason="the end of the first rank",
        deadline_s=inf,
        check=node.raise_if_ended,
        longest_pause_s=LONGEST_LOOK_S,
    )


@contextmanager
def joined(task: Task) -> Iterator[Cluster | None]:
    """The cluster of a task of several nodes, for the length of the block; None for one of a single node.

    Raises:
        UserError: a rank or its node did not come in time.
    """
    if not spans_nodes(task):
        yield None
        return
    _require_ray()
    meeting, limit_s = Meeting(task), task.experiment.serving.start_limit_s
    hosts = _hosts(meeting, limit_s)
    own = address_towards(hosts[0]) if hosts else LOOPBACK
    place = _place(task, f"{own}:{free_port(own)}", is_head=True)
    with RayNode(place, task.log("ray-0"), task.job.resources.cpus_per_rank) as node:
        node.wait_for_head(limit_s, _advice(task))
        meeting.say(meeting.head, {"address": place.head})
        with _driver(place):
            yield Cluster(node, _all_nodes(node, task, limit_s))


def _hosts(meeting: Meeting, deadline_s: float) -> list[str]:
    """The hosts of the other ranks that are not this one's, when all ranks are there."""
    task, hosts = meeting.task, []
    for rank in range(1, task.world_size):
        path = meeting.here(rank)
        wait_until(
            path.exists,
            reason=f"rank {rank} of this task, on a node of its own",
            deadline_s=deadline_s,
            where=path,
            advice=_advice(task),
        )
        hosts.append(meeting.read(path)["host"])
    return [host for host in hosts if host != socket.gethostname()]


def _place(task: Task, head: str, *, is_head: bool = False) -> RayPlace:
    """The place of this rank in the cluster."""
    return RayPlace(
        address=address_towards(head.rpartition(":")[0]),
        head=head,
        token=_token(task),
        gpus=node_gpus(task),
        is_head=is_head,
    )


def _token(task: Task) -> str:
    """What only the ranks of this attempt know, as only they can read the key of the run."""
    key = (task.layout.secrets / "server_key").read_text()
    return hashlib.sha256(f"{key} {task.log_stem}".encode()).hexdigest()


def node_gpus(task: Task) -> tuple[str, ...]:
    """The GPUs of this rank, as CUDA names them: its share, where it sees those of all ranks of its machine.

    Raises:
        UserError: it sees fewer than it needs.
    """
    own = task.job.resources.gpus_per_rank
    seen = seen_gpus(own)
    first = task.local_rank * own if len(seen) > own else 0
    return tuple(seen[first : first + own])


def seen_gpus(needed: int) -> list[str]:
    """The GPUs that this process may see, as CUDA names them; where nothing is said of them, the first ``needed``.

    Raises:
        UserError: they are fewer.
    """
    visible = os.environ.get(VISIBLE)
    seen = [str(gpu) for gpu in range(needed)] if visible is None else [gpu for gpu in visible.split(",") if gpu]
    if len(seen) < needed:
        raise UserError(
            f"the servers of this task need {needed} GPU(s), and its first process sees {len(seen)}",
            value=f"{VISIBLE}={visible}",
            where=f"node {socket.gethostname()}",
            expected=f"a process that sees at least {needed}",
            advice="remove gpus-per-task, gpu-bind and the like from sbatch: in the site profile, so that each rank "
            "sees all GPUs of its node; then mrt-hpc submit RUN",
        )
    return seen


@contextmanager
def _driver(place: RayPlace) -> Iterator[None]:
    """This process, and those that it starts, are of the cluster for the length of the block."""
    before = dict(os.environ)
    os.environ.update(place.environment())
    import ray  # it reads some of these variables when it is imported

    try:
        _join(place.head)
        yield
    finally:
        ray.shutdown()
        for name in place.environment():
            os.environ.pop(name)
            os.environ.update({name: before[name]} if name in before else {})


def _join(head: str) -> None:
    """Make this process one of the cluster. Its handler of SIGTERM, which Ray replaces, is put back."""
    import ray

    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(head, log_to_driver=False, configure_logging=False)
    finally:
        signal.signal(signal.SIGTERM, handler)


def _all_nodes(node: RayNode, task: Task, deadline_s: float) -> tuple[str, ...]:
    """The ids of all nodes, when all have joined."""
    import ray

    count = task.world_size

    def present() -> list[str]:
        alive = [str(node["NodeID"]) for node in ray.nodes() if node["Alive"]]
        return alive if len(alive) == count else []

    nodes = wait_until(
        present,
        reason=f"the Ray nodes of {count} ranks",
        deadline_s=deadline_s,
        check=node.raise_if_ended,
        where=node.log,
        advice=_advice(task),
    )
    return tuple(nodes)


def _advice(task: Task) -> str:
    """What to do where a rank or its node does not come in time."""
    return (
        f"mrt-hpc logs {task.layout.word} {task.job.role} shows what the ranks did; where they only need more time: "
        "--set serving.start_limit_s=SECONDS; else ask the administrators whether compute nodes reach each other's "
        "ports"
    )


def _require_ray() -> None:
    if importlib.util.find_spec("ray") is None:
        raise UserError(
            "a task of several nodes needs Ray, which the Python of this task lacks",
            value=sys.executable,
            where="resources.inference.nodes",
            expected="the Python of an environment that env/setup made, or an image",
            advice="run env/setup again, or set resources.inference.nodes to 1; then mrt-hpc submit RUN",
            exit_code=ExitCode.RETRYABLE,
        )
