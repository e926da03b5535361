"""What it costs to share out the groups of an iteration among tasks, on a filesystem where every call takes a while.

The tasks are threads with the code of the inference role: they look for work, claim groups, and look again. A group is
finished at once: its folder is made without cost, as sampling and commit are not what is measured. Calls of the
filesystem are counted and wait; two calls of different threads wait at the same time.

    python benchmarks/bench_many_groups.py --groups 64 512 4096 10000 --tasks 8 --latency-ms 2
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from benchmarking import options, table, written
from run_of import publish_some, run_of, say, task_of

from mrt_hpc.roles.sampling.round_sampler import Rounds
from mrt_hpc.run.leases import Heart
from mrt_hpc.run.task_state import TaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mrt_hpc.run.layout import RunLayout

CALLS = ("stat", "lstat", "listdir", "scandir", "mkdir", "link", "unlink", "rename", "replace", "fsync", "open")
INFERENCE, TRAINER = "segment-000.inference", "segment-000.trainer"
LIMIT_S = 600.0  # after which a heart that stands still counts as dead


@dataclass
class SlowFilesystem:
    """Counts the calls of this process by their names, and lets each take a while."""

    latency_s: float
    calls: Counter[str] = field(default_factory=Counter)
    free: threading.local = field(default_factory=threading.local)
    """``free.now`` is set in a thread whose calls are not counted at the moment."""

    def slow(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def slowed(*arguments: Any, **named: Any) -> Any:
            if not getattr(self.free, "now", False):
                self.calls[name] += 1
                time.sleep(self.latency_s)
            return call(*arguments, **named)

        return slowed

    @contextmanager
    def at_work(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name in CALLS:
                stack.enter_context(patch.object(os, name, self.slow(name, getattr(os, name))))
            stack.enter_context(patch.object(io, "open", self.slow("open", io.open)))
            yield

    @contextmanager
    def at_no_cost(self) -> Iterator[None]:
        self.free.now = True
        try:
            yield
        finally:
            self.free.now = False


@dataclass
class Sharing:
    """One iteration whose groups are shared out."""

    layout: RunLayout
    groups: int
    disk: SlowFilesystem
    claimed: Counter[int] = field(default_factory=Counter)

    def work(self, index: int) -> None:
        """What a task does, without sampling."""
        rounds = Rounds(task_of(self.layout, INFERENCE, index), self.groups)
        while (work := rounds.await_round()) is not None:
            for position in work.positions:
                if work.leases.claim(position):
                    self.finish(index, position)

    def finish(self, index: int, position: int) -> None:
        with self.disk.at_no_cost():
            self.layout.group(0, position).mkdir(parents=True)
            self.claimed[index] += 1
            if self.claimed.total() == self.groups:
                publish_some(self.layout, 1)  # what the tasks wait for at the end


def shared_out(root: Path, groups: int, tasks: int, latency_s: float) -> list[object]:
    """A row of the table."""
    data = root.with_suffix(".jsonl")
    lines = [{"id": str(n), "problem": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(groups)]
    data.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    changes = {
        "data": f"{{type: jsonl, path: {data}}}",
        "sampling.problems_per_iteration": groups,
        "schedule": "{iterations: 1, iterations_per_job: 1}",
        "resources.inference.tasks": tasks,
    }
    layout = run_of(root, *(f"{name}={value}" for name, value in changes.items()))
    publish_some(layout, 0)
    say(layout, TRAINER, TaskState.RUNNING)
    sharing = Sharing(layout, groups, SlowFilesystem(latency_s))
    with ExitStack() as stack, ThreadPoolExecutor(tasks) as pool:
        for job, index in ((TRAINER, 0), *((INFERENCE, index) for index in range(tasks))):
            say(layout, job, TaskState.RUNNING, index)
            stack.enter_context(Heart(layout.heart(job, index), "a", LIMIT_S))
        stack.enter_context(sharing.disk.at_work())
        began = time.perf_counter()
        list(pool.map(sharing.work, range(tasks)))
        seconds = time.perf_counter() - began
    assert sharing.claimed.total() == groups
    calls = sharing.disk.calls
    most = ", ".join(f"{name} {count / groups:.2f}" for name, count in calls.most_common(5))
    return [groups, f"{seconds:.1f}", f"{calls.total() / groups:.2f}", most]


HEAD = ("groups", "seconds until all are shared out", "calls a group", "the most frequent, a group")


def main() -> None:
    given = options(__doc__, groups=[64, 512, 4096], tasks=8, latency_ms=2.0, output=Path)
    rows = []
    for groups in given.groups:
        with tempfile.TemporaryDirectory(prefix="bench-many-groups-") as scratch:
            rows.append(shared_out(Path(scratch) / "run", groups, given.tasks, given.latency_ms / 1e3))
            print(rows[-1], flush=True)
    title = f"# {given.tasks} tasks, {given.latency_ms:g} ms a call of the filesystem"
    written("\n".join([title, "", *table(HEAD, rows, words=0)]), given.output)


if __name__ == "__main__":
    main()
