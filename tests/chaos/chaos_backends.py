"""The run that faults strike: on this machine alone, or on a one-host cluster. The same shrunk recipe in both."""

import json
import os
import pwd
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from chaos_target import Target
from slurm_cluster import Cluster, is_known_to_have_ended
from slurm_submissions import quickstart
from submitted import current_ids

from mrt_hpc.backends.slurm.queue import QueueState, queue_states
from mrt_hpc.plan.jobs import read_plan
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskState, read_tasks

ROOT = Path(__file__).parents[2]
ITERATIONS = 6
SHRUNK = {
    "sampling.problems_per_iteration": 6, "sampling.rollouts_per_problem": 4, "schedule.iterations": ITERATIONS,
    "schedule.iterations_per_job": ITERATIONS // 2, "serving.stall_limit_s": 10.0, "serving.start_limit_s": 240.0,
    "evaluation.benchmarks.0.problems.problems": 8, "resources.inference.tasks": 2, "resources.inference.cpus": 1,
    "resources.trainer.cpus": 1, "resources.evaluation.max_parallel": 2, "resilience.heartbeat_limit_s": 5.0,
}  # fmt: skip
MOST_AGAIN = {"plain": 1, "rules": 40}
"""How often the same command is typed again on a cluster that cancels what it preempts, and on one where no job starts
again, whatever has ended it.
"""
PLAIN_ARRAY_SIZE = 10  # MaxArraySize of a plain cluster
QUEUE_LOOK_S = 3.0  # between two looks at Slurm's queue


def copy_folder(source: Path, target: Path) -> None:
    """A copy of a folder that others still write to."""
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-r", source, target], check=True)


def submit_command(run: Path, changes: tuple[str, ...]) -> list[str]:
    sets = [word for change in changes for word in ("--set", change)]
    module = [sys.executable, "-m", "mrt_hpc"]
    return [*module, "submit", str(ROOT / "recipes/quickstart.yaml"), "--site", "local", "--run", str(run), *sets]


def started(command: list[str], **variables: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.Popen(command, start_new_session=True, env=environment, stdout=subprocess.DEVNULL)


@dataclass
class LocalRun:
    """On this machine alone; when all of it is killed, the same command is typed again."""

    root: Path
    disk: Path | None
    changes: tuple[str, ...] = ()
    where: str = "this machine"
    _process: subprocess.Popen[bytes] = field(init=False)

    def submit(self) -> None:
        changes = tuple(f"{field}={value}" for field, value in SHRUNK.items())
        self._process = started(submit_command(self.root, (*changes, *self.changes)))

    def target(self) -> Target:
        return Target(RunLayout(self.root), self._process.pid, None, self.disk)

    def exit_code(self) -> int | None:
        """How it ended; None while it is running."""
        code = self._process.poll()
        if code == -signal.SIGKILL:
            self.submit()
            return None
        return code

    def end(self) -> int:
        """How it ended; where it has not, stop it and say 1."""
        if (code := self._process.poll()) is not None:
            return code
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return 1

    def keep(self, where: Path) -> None:
        copy_folder(self.root, where)


@dataclass
class SlurmRun:
    """On a cluster, as its ordinary user, in a partition or with a QOS that others may push out."""

    cluster: Cluster
    disk: Path | None
    changes: tuple[str, ...] = ()
    _root: Path = field(init=False)
    _kind: str = field(init=False)
    _looked: float = field(default=0.0, init=False)
    _typed_again: int = field(default=0, init=False)
    _code: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        kind = "QOS" if self.cluster.preempts_by_qos else "partition"
        self._kind = "rules" if self.cluster.has_rules else "plain" if self.cluster.is_plain else kind
        if self.disk is not None:
            account = pwd.getpwnam(self.cluster.user)
            os.chown(self.disk, account.pw_uid, account.pw_gid)
        self._root = (self.disk or self.cluster.folder("chaos")) / "run"

    @property
    def where(self) -> str:
        return f"Slurm, {self._kind}{f' +{self._typed_again}' if self._kind in MOST_AGAIN else ''}"

    def submit(self) -> None:
        """Type the command, and keep it for the fault that types it again."""
        site: dict[str, object] = {"partitions": {"cpu": "preempt"}}
        site = {"qos": "lowly"} if self.cluster.preempts_by_qos else site
        site |= {"max_array_size": PLAIN_ARRAY_SIZE} if self.cluster.is_plain else {}
        changes = {**SHRUNK, **dict(change.split("=", 1) for change in self.changes)}
        self._submission.write_text(json.dumps(["submit", *quickstart(self.cluster, self._root, changes, **site)]))
        self._type()

    @property
    def _submission(self) -> Path:
        return self._root.parent / "submission.json"

    def _type(self) -> None:
        done = self.cluster.mrt_hpc(*json.loads(self._submission.read_text()))
        assert done.returncode == 0, done.stderr

    def target(self) -> Target:
        return Target(RunLayout(self._root), None, self.cluster, self.disk)

    def exit_code(self) -> int | None:
        """0 when all jobs have ended and all tasks are done, 1 when they ended otherwise, None while any is running."""
        if self._code is None and time.monotonic() - self._looked > QUEUE_LOOK_S:
            self._looked = time.monotonic()
            self._code = self._found_in_files() if self._kind in MOST_AGAIN else self._found_in_queue()
        return self._code

    def _found_in_queue(self) -> int | None:
        states = queue_states(current_ids(RunLayout(self._root))).values()
        if not all(is_known_to_have_ended(state) for state in states):
            return None
        # one that was cancelled when its work was done was not submitted again
        ended = {state.state for state in states} <= {QueueState.COMPLETED, QueueState.CANCELLED}
        return int(not ended or not self._is_done())

    def _found_in_files(self) -> int | None:
        """Where jobs end early: a queue that holds nothing of the run any more, and a run that is done or is not."""
        states = queue_states(current_ids(RunLayout(self._root))).values()
        if not all(state.has_ended and state.state is not QueueState.ENDING for state in states):
            return None
        if self._is_done():
            return 0
        if self._typed_again == MOST_AGAIN[self._kind]:
            return 1
        self._typed_again += 1
        self._type()
        return None

    def _is_done(self) -> bool:
        layout = RunLayout(self._root)
        records = [r for job in read_plan(layout.plan).jobs for r in read_tasks(layout, job.name, job.tasks)]
        return all(record.state is TaskState.DONE for record in records)

    def end(self) -> int:
        """How it ended; where it has not, cancel it and say 1."""
        if self._code is None:
            self.cluster.mrt_hpc("cancel", str(self._root))
            return 1
        return self._code

    def keep(self, where: Path) -> None:
        """Copy the run directory, the cluster's logs and its accounting."""
        copy_folder(self._root, where)
        copy_folder(Path(self.cluster.settings["ONEHOST_ROOT"]) / "log", where / "cluster")
        if self.cluster.is_plain:
            return
        command = ["sacct", "--duplicates", "--parsable2", "--format=ALL", "--starttime=now-1days", "--endtime=now"]
        with (where / "cluster" / "sacct.txt").open("w") as table:
            subprocess.run(command, stdout=table, check=True)


Run = LocalRun | SlurmRun
