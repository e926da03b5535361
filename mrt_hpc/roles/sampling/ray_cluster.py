"""The Ray cluster of an inference task with several nodes, one rank on each.

Rank 0 starts the first Ray node and samples; the others each run a node until it is done. If a rank ends early, the
back end ends all.
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

from mrt_hpc.errors import Advice, UserError, retryable_error
from mrt_hpc.inference.ray_node import RayNode, RayPlace
from mrt_hpc.roles.task.context import Task
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.network import LOOPBACK, address_towards, answers, free_port
from mrt_hpc.run.retries import wait_until

LONGEST_LOOK_S = 0.5
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Meeting:
    task: Task

    def here(self, rank: int) -> Path:
        """A rank writes its host there at its start."""
        return self._file(f"rank{rank}")

    @property
    def head(self) -> Path:
        """Rank 0 writes there where its Ray node takes connections."""
        return self._file("head")

    @property
    def end_file(self) -> Path:
        """Rank 0 writes it when it no longer needs the others."""
        return self._file("over")

    def say(self, path: Path, value: dict[str, str]) -> None:
        self.task.retry(lambda: write_json(path, value), f"{path}")

    def read(self, path: Path) -> dict[str, str]:
        said: dict[str, str] = json.loads(self.task.retry(path.read_text, f"{path}"))
        return said

    def _file(self, what: str) -> Path:
        return self.task.layout.rendezvous / f"{self.task.log_stem}.ray.{what}.json"


def spans_nodes(task: Task) -> bool:
    """A colocated task has no cluster: its ranks are its trainer's, on one node."""
    return task.job.resources.nodes > 1


@contextmanager
def release_ranks(task: Task) -> Iterator[None]:
    """The other ranks may end when this block ends, however it does."""
    try:
        yield
    finally:
        if spans_nodes(task):
            meeting = Meeting(task)
            meeting.say(meeting.end_file, {})


def lend_node(task: Task) -> None:
    """Run a Ray node for rank 0 until it is done; called on every other rank."""
    meeting = Meeting(task)
    with task.shutdown.defer_to_safe_points():
        meeting.say(meeting.here(task.rank), {"host": socket.gethostname()})
        wait_until(
            lambda: meeting.head.exists() or meeting.end_file.exists() or task.shutdown.is_given,
            reason="the first rank",
            deadline_s=inf,  # the back end ends this rank with the first one
        )
        if meeting.head.exists() and not meeting.end_file.exists():
            head = meeting.read(meeting.head)["address"]
            with RayNode(_place(task, head), task.log(f"ray-{task.rank}"), task.job.resources.cpus_per_rank) as node:
                _stay(task, node, meeting)
        task.shutdown.leave_if_given()


def _stay(task: Task, node: RayNode, meeting: Meeting) -> None:
    """Wait for rank 0's end. A rank asked to leave gives rank 0 time to end too."""
    wait_until(
        lambda: meeting.end_file.exists() or (task.shutdown.is_given and not answers(node.place.head)),
        reason="the end of the first rank",
        deadline_s=inf,
        check=node.raise_if_ended,
        longest_pause_s=LONGEST_LOOK_S,
    )


@contextmanager
def join_nodes(task: Task) -> Iterator[RayNode | None]:
    """The first node of a cluster whose nodes have all joined; None for a single node."""
    if not spans_nodes(task):
        yield None
        return
    if importlib.util.find_spec("ray") is None:
        raise retryable_error(
            "a task of several nodes needs Ray, which the Python of this task lacks",
            value=sys.executable,
            where="resources.inference.nodes",
            expected="the Python of an environment that env/setup made, or an image",
            advice="run env/setup again, or set resources.inference.nodes to 1; then mrt-hpc submit RUN",
        )
    meeting, limit_s = Meeting(task), task.experiment.serving.start_limit_s
    hosts = _hosts(meeting, limit_s)
    own = address_towards(hosts[0]) if hosts else LOOPBACK
    place = _place(task, f"{own}:{free_port(own)}", is_head=True)
    with RayNode(place, task.log("ray-0"), task.job.resources.cpus_per_rank) as node:
        node.wait_for_head(limit_s, _advice(task))
        meeting.say(meeting.head, {"address": place.head})
        with _driver(place):
            import ray

            wait_until(
                lambda: sum(one["Alive"] for one in ray.nodes()) == task.world_size,
                reason=f"the Ray nodes of {task.world_size} ranks",
                deadline_s=limit_s,
                check=node.raise_if_ended,
                where=node.log,
                advice=_advice(task),
            )
            yield node


def _hosts(meeting: Meeting, deadline_s: float) -> list[str]:
    """The other ranks' hosts but this one, once all have come."""
    task, hosts = meeting.task, []
    for rank in range(1, task.world_size):
        path = meeting.here(rank)
        reason = f"rank {rank} of this task, on a node of its own"
        wait_until(path.exists, reason=reason, deadline_s=deadline_s, where=path, advice=_advice(task))
        hosts.append(meeting.read(path)["host"])
    return [host for host in hosts if host != socket.gethostname()]


def _place(task: Task, head: str, *, is_head: bool = False) -> RayPlace:
    key = (task.layout.secrets / "server_key").read_text()
    return RayPlace(
        address=address_towards(head.rpartition(":")[0]),
        head=head,
        token=hashlib.sha256(f"{key} {task.log_stem}".encode()).hexdigest(),  # a secret of the attempt's ranks
        gpus=node_gpus(task),
        is_head=is_head,
    )


def node_gpus(task: Task) -> tuple[str, ...]:
    """This rank's GPUs, as CUDA names them: its share where it sees those of all ranks."""
    own = task.job.resources.gpus_per_rank
    seen = seen_gpus(own)
    first = task.local_rank * own if len(seen) > own else 0
    return tuple(seen[first : first + own])


def seen_gpus(needed: int) -> list[str]:
    """GPUs that this process may see, as CUDA names them; the first ``needed`` where nothing limits them."""
    visible = os.environ.get(VISIBLE)
    seen = [str(gpu) for gpu in range(needed)] if visible is None else [gpu for gpu in visible.split(",") if gpu]
    if len(seen) < needed:
        raise UserError(
            f"the servers of this task need {needed} GPU(s), and its first process sees {len(seen)}",
            value=f"{VISIBLE}={visible}",
            where=f"node {socket.gethostname()}",
            expected=f"a process that sees at least {needed}",
            advice="remove gpu-bind and the like from sbatch: in the site profile, so that each rank "
            "sees all GPUs of its node; then mrt-hpc submit RUN",
        )
    return seen


@contextmanager
def _driver(place: RayPlace) -> Iterator[None]:
    """It puts this process and its children into the cluster."""
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
    """Keep this process's SIGTERM handler, which Ray replaces."""
    import ray

    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(head, log_to_driver=False, configure_logging=False)
    finally:
        signal.signal(signal.SIGTERM, handler)


def _advice(task: Task) -> str:
    return Advice(
        "mrt-hpc logs {run} {role} shows what the ranks did; where they only need more time: "
        "--set serving.start_limit_s=SECONDS; else ask the administrators whether compute nodes "
        "reach each other's ports",
        run=task.layout.root,
        role=task.job.role,
    )
